"""The whole model after tuning: compiled, exported with a program that runs it, and timed.

`python -m tlmd.workloads.whole_model PLAN.json` is the timing process: pinned to the run cores, it
runs the untuned and the tuned model and PyTorch in turns and prints one line of JSON.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tlmd import children
from tlmd.errors import Failed

RUN_PY = '''"""Run the tuned model; needs tvm and numpy only. Usage: python run.py [inputs.npz]"""

import pathlib
import sys
import time

import numpy as np
import tvm
from tvm import relax

HERE = pathlib.Path(__file__).resolve().parent
INPUTS = {inputs}  # name, shape, dtype


def example(shape, dtype):
    if dtype.startswith(("int", "uint", "bool")):
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape).astype("float32").astype(dtype)


def main():
    given = np.load(sys.argv[1]) if len(sys.argv) > 1 else {{}}
    arrays = [given[n] if n in given else example(s, d) for n, s, d in INPUTS]
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(HERE / "model.so")), tvm.cpu())
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    outputs = vm["main"](*tensors)
    begin = time.perf_counter()
    vm["main"](*tensors)
    outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
    for index, output in enumerate(outputs):
        print(f"output {{index}}: shape {{tuple(output.shape)}}, dtype {{output.dtype}}")
    print(f"one run: {{(time.perf_counter() - begin) * 1e3:.3f}} ms")


if __name__ == "__main__":
    main()
'''

_FULL_BYTES = 1 << 20  # with less, a linker that fails has run out of disk


@dataclass(frozen=True)
class WholeModelTimes:
    """Best of the interleaved runs in milliseconds, and the largest deviation from the original.

    ``pytorch_ms`` is None where the model did not come from PyTorch; ``max_abs_err`` compares the
    tuned model with the original, or with the untuned model where the original cannot run.
    """

    untuned_ms: float
    tuned_ms: float
    pytorch_ms: float | None
    max_abs_err: float


def export(executable: Any, directory: Path, inputs: tuple[Any, ...]) -> Path:
    """Write ``model.so`` and ``run.py``; raises `Failed` where linking or writing fails."""
    library = directory / "model.so"
    try:
        executable.export_library(str(library))
        listing = [(i.name, i.shape, i.dtype) for i in inputs]
        (directory / "run.py").write_text(RUN_PY.format(inputs=listing))
    except OSError as error:
        raise Failed(f"cannot write {library}: {error.strerror or error}") from error
    except RuntimeError as error:
        if "No space left" in str(error) or shutil.disk_usage(directory).free < _FULL_BYTES:
            raise Failed(f"no space left to write {library}; free some disk") from error
        reason = str(error).strip().splitlines()[-1][:200]
        raise Failed(f"linking {library} failed: {reason}; is gcc installed?") from error
    return library


def measure(
    untuned: Path,
    tuned: Path,
    source: str,
    input_shapes: Any,
    inputs: list[np.ndarray],
    run_cores: tuple[int, ...],
    scratch: Path,
) -> WholeModelTimes:
    """Time both libraries and the original in one pinned process; raises `Failed` if it dies."""
    np.savez(scratch / "inputs.npz", *inputs)
    plan = {
        "untuned": str(untuned),
        "tuned": str(tuned),
        "source": source,
        "input_shapes": input_shapes,
        "inputs": str(scratch / "inputs.npz"),
        "cores": list(run_cores),
    }
    path = scratch / "plan.json"
    path.write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, "-m", "tlmd.workloads.whole_model", str(path)],
        env=children.running_tvm(len(run_cores), OMP_NUM_THREADS=str(len(run_cores))),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        raise Failed(f"timing the whole model failed (exit {done.returncode}): {reason}")
    times = WholeModelTimes(**json.loads(lines[-1]))
    if not math.isfinite(times.max_abs_err):
        raise Failed("the tuned model's outputs are not those of the original; nothing to export")
    return times


def _main(plan_path: str) -> None:
    plan = json.loads(Path(plan_path).read_text())
    os.sched_setaffinity(0, set(plan["cores"]))
    inputs = list(np.load(plan["inputs"]).values())
    shapes = plan["input_shapes"] and tuple(map(tuple, plan["input_shapes"]))
    original, torch_run = _original(plan["source"], shapes, inputs, len(plan["cores"]))
    untuned, tuned = _virtual_machine(plan["untuned"]), _virtual_machine(plan["tuned"])
    runs: dict[str, Callable[[], Any]] = {
        "untuned": lambda: untuned(inputs),
        "tuned": lambda: tuned(inputs),
    }
    if torch_run is not None:
        runs["pytorch"] = torch_run
    expected = original if original is not None else untuned(inputs)
    error = _largest_error(tuned(inputs), expected)
    best = _interleave(runs)
    times = WholeModelTimes(best["untuned"], best["tuned"], best.get("pytorch"), error)
    print(json.dumps(asdict(times)))


def _interleave(runs: dict[str, Callable[[], Any]], budget_s: float = 8.0) -> dict[str, float]:
    """Best milliseconds of each, in turns; a slow one sits out once it had its share of time."""
    best = dict.fromkeys(runs, float("inf"))
    spent = dict.fromkeys(runs, 0.0)
    for turn in range(60):
        for name, run in runs.items():
            if turn > 1 and spent[name] > budget_s / len(runs):
                continue
            begin = time.perf_counter()
            run()
            took = time.perf_counter() - begin
            spent[name] += took
            best[name] = min(best[name], took * 1e3)
    return best


def _virtual_machine(library: str) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    tensors: dict[int, Any] = {}

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        if not tensors:
            tensors.update(enumerate(tvm.runtime.tensor(a) for a in inputs))
        outputs = machine["main"](*tensors.values())
        listed = [outputs] if hasattr(outputs, "numpy") else list(outputs)
        return [o.numpy() for o in listed]

    return run


def _original(
    source: str, shapes: Any, inputs: list[np.ndarray], threads: int
) -> tuple[list[np.ndarray] | None, Callable[[], Any] | None]:
    """The original's outputs, and a function that runs it in PyTorch eager mode."""
    from tlmd.workloads.frontends import load_model

    model = load_model(source, shapes)
    if model.reference is None:
        return None, None
    import torch

    torch.set_num_threads(threads)
    reference = model.reference
    outputs = [np.asarray(o) for o in reference(*inputs)]
    is_torch = not source.endswith(".onnx")
    return outputs, (lambda: reference(*inputs)) if is_torch else None


def _largest_error(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Over all outputs; infinite where one is not finite and the other is something else."""
    pairs = zip(actual, expected, strict=True)
    return max((_error(a.astype(np.float64), e.astype(np.float64)) for a, e in pairs), default=0.0)


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        distance = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
    return float(distance.max(initial=0.0))


if __name__ == "__main__":
    _main(sys.argv[1])
