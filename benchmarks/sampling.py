"""Legal sentences per second on one core, per network preset and task.

"written" is sampling alone: every sentence is legal by construction. "applied" also lets TVM apply
each distinct one with its postprocessors, as the generator does before it ranks; "accepted" is the
share of those that TVM takes. Prompts and legal locations are warm, as they are after the first
batch of a task. Seconds are CPU seconds of this single-threaded process: the same as wall clock on
an idle core, and not those of other programs on a busy one. The headline is the nano network on
the convolution over 150 a second.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks import report, setting
from tlmd.errors import TlmdError
from tlmd.language.prompt import prompt
from tlmd.model import network
from tlmd.model.sampling import Request, Sampler
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.space.target import resolve
from tlmd.types import Candidate

_WANTED = 150.0  # sentences a second
_GROUP = 96  # what a batch of 8 asks for


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--gpt2", action="store_true", help="the paper's network, too")
    parser.add_argument("--seconds", type=float, default=5.0, help="per network and task")
    options = parser.parse_args(arguments)
    here = report.machine()
    setting.pin((max(os.sched_getaffinity(0)),))
    given = setting.load(options.checkpoint, options.untrained)
    rows = []
    spaces = [TaskSpace(task) for task in setting.tasks(resolve("native", 1))]
    for preset in ("nano", "small", *(["gpt2"] if options.gpt2 else [])):
        # The weights hardly matter for speed, so other presets are not trained.
        model = given.model if preset == given.preset else network.create(preset)
        for space in spaces:
            sampler = Sampler(model, options.seed)
            rows.append({"network": preset, **_measure(sampler, space, options.seconds)})
    report.show("sentences per second on one core", rows)
    nano = next(r for r in rows if r["network"] == "nano" and str(r["task"]).startswith("conv"))
    result = {
        "benchmark": "sampling",
        "machine": here,
        "rows": rows,
        "ratio": nano["written"] / _WANTED,
        "meaning": f"nano's sentences per second on the convolution over {_WANTED:.0f}",
    }
    report.finish(result, options.json)
    return 0


def _measure(sampler: Sampler, space: TaskSpace, seconds: float) -> dict[str, Any]:
    words = tuple(prompt(space.computation, space.task.target, space.sketches))
    request = Request(space.task.id, words, space.sketches, space.locations, _GROUP)
    sampler.sample(request)
    written, writing_s = 0, 0.0
    tried, accepted, applying_s = 0, 0, 0.0
    while writing_s + applying_s < seconds:
        begin = time.process_time()
        samples = sampler.sample(request)
        middle = time.process_time()
        distinct = {s.candidate.id: s.candidate for s in samples}
        accepted += sum(_applies(space, candidate) for candidate in distinct.values())
        tried += len(distinct)
        written += len(samples)
        writing_s += middle - begin
        applying_s += time.process_time() - middle
    return {
        "task": space.task.name,
        "written": written / writing_s,
        "applied": written / (writing_s + applying_s),
        "distinct": tried / written,
        "accepted": accepted / tried,
    }


def _applies(space: TaskSpace, candidate: Candidate) -> bool:
    try:
        space.finish(candidate)
    except InvalidCandidate:
        return False
    return True


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TlmdError as error:
        sys.exit(f"benchmarks.sampling: {error}")
