"""What LLVM's optimisation levels cost when programs are built, and buy when they run.

The candidates of a model's tasks are built at level 3 (TVM's default), at level 2 (what tlmd uses)
and at level 1, and timed in turns. ``ratio`` is the build time at level 3 over that at level 2.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common import report

_LEVELS = (3, 2, 1)
_ROUNDS = 12


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("models", nargs="*", default=["resnet18", "bert-small"])
    parser.add_argument("--tasks", type=int, default=14, help="of each model (default 14)")
    parser.add_argument("--programs", type=int, default=2, help="of each task (default 2)")
    options = parser.parse_args()
    here = report.machine()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from benchmarks.common import setting

    generator = _generator(setting.load(options.checkpoint, options.untrained), options.seed)
    rows = []
    for model in options.models:
        for task in _tasks(model, options.tasks):
            for proposal in generator.write(task, options.programs, [])[0]:
                row = {"model": model, "task": task.name} | _measure(task, proposal.trace)
                print(json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
    summary = [_level(rows, number) for number in range(len(_LEVELS))]
    report.show("LLVM's levels, against level 3", summary)
    result = {
        "benchmark": "build_levels",
        "ratio": summary[0]["build s"] / summary[1]["build s"],
        "meaning": "build time at level 3 over that at level 2",
        "machine": here,
        "levels": summary,
        "rows": rows,
    }
    report.finish(result, options.json)
    return 0


def _generator(checkpoint: Any, seed: int) -> Any:
    from tlmd.data.config import GenerateConfig
    from tlmd.generate.generator import Generator
    from tlmd.tlm.torch_settings import use_threads

    use_threads(1)
    return Generator(checkpoint, GenerateConfig(), seed)


def _tasks(model: str, count: int) -> list[Any]:
    from tlmd.data.model_spec import ModelSpec
    from tlmd.lowering.preparation import lower_source, merged_tasks
    from tlmd.models import frontends
    from tlmd.space.hardware import target as targets

    ((spec, original),) = frontends.originals(ModelSpec(model))
    lowered = lower_source(spec, original.imported(), targets.resolve("native", 1), {})
    tasks = merged_tasks([lowered])
    random.Random(0).shuffle(tasks)
    return tasks[:count]


def _measure(task: Any, trace: str) -> dict[str, Any]:
    """Seconds to build and to run the program at each level."""
    import tvm

    from tlmd.alternatives.prefetch import with_prefetches
    from tlmd.measure.server.executable import Executable
    from tlmd.measure.server.program import make_inputs, parse
    from tlmd.space.apply_trace import build_module
    from tlmd.space.hardware import target as targets

    target = targets.tvm_target(task.target)
    module = with_prefetches(build_module(tvm.ir.load_json(task.module), trace, target))
    program = parse(task)
    inputs = make_inputs(program, False)
    built, executables = [], []
    for level in _LEVELS:
        at_level = tvm.target.Target({**json.loads(str(target)), "opt-level": level})
        began = time.perf_counter()
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            runtime = tvm.compile(module, at_level).jit()
        executable = Executable(runtime, program, tvm.cpu(), False)
        executable.allocate(inputs, False)
        executable.first_run()
        built.append(time.perf_counter() - began)
        executables.append(executable)
    times = [
        min(column) for column in zip(*(_round(executables) for _ in range(_ROUNDS)), strict=True)
    ]
    return {"build_s": built, "run_us": [seconds * 1e6 for seconds in times]}


def _round(executables: Sequence[Any]) -> list[float]:
    return [executable.once() for executable in executables]


def _level(rows: Sequence[dict[str, Any]], number: int) -> dict[str, Any]:
    slower = [row["run_us"][number] / row["run_us"][0] for row in rows]
    return {
        "level": _LEVELS[number],
        "programs": len(rows),
        "build s": round(sum(row["build_s"][number] for row in rows), 2),
        "slowest build s": round(max(row["build_s"][number] for row in rows), 2),
        "run time": round(report.geometric_mean(slower), 3),
        "worst": round(max(slower), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
