"""Legal sentences per second on one core, per network preset and task.

"written" is sampling alone: every sentence is legal by construction. For "applied" TVM also applies
each distinct sentence with its postprocessors, as the generator does before its cost model picks;
"accepted" is the share that TVM accepts. Prompts and legal locations are cached, as they are after
the first batch of a task. Seconds are CPU seconds of this single-threaded process: on an idle core
they equal the wall clock, on a busy one they leave out other programs. The headline is the rate of
the nano network on the convolution, divided by 150 per second.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.common import report, setting
from tlmd.data.errors import TlmdError
from tlmd.data.types import Candidate
from tlmd.language.prompt import prompt
from tlmd.space.hardware.target import resolve
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.tlm import network
from tlmd.tlm.sampling import Sampler, SampleRequest

_WANTED = 150.0  # sentences a second
_GROUP = 96  # a batch of 8 is picked from so many


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--gpt2", action="store_true", help="also the paper's network")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="per network and task (default 5)"
    )
    options = parser.parse_args()
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
            rows.append({"network": preset, **_sampling_rates(sampler, space, options.seconds)})
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


def _sampling_rates(sampler: Sampler, space: TaskSpace, seconds: float) -> dict[str, Any]:
    words = tuple(prompt(space.computation, space.task.target, space.sketches))
    request = SampleRequest(space.task.id, words, space.sketches, space.locations, _GROUP)
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
        sys.exit(main())
    except TlmdError as error:
        sys.exit(f"benchmarks.sampling: {error}")
