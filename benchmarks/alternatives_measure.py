"""Measure alternatives of synthetic tasks: what the cost model learns of programs by tlmd's rules.

`python -m benchmarks.alternatives_measure --state DIR --out FILE [--groups 150] [--candidates 32]`
draws single operators (`tlmd.workloads.synthetic`, with a seed of their own) and measures
candidates of all their alternatives: three fifths picked by the shipped checkpoint, a fifth near
the best programs so far, a fifth random. The direct programs are left to `tlmd train`. It goes over
all tasks again and again, 8 candidates at a time, so that it can be stopped at any moment and
continued with the same command.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from benchmarks import report
from benchmarks.measured import measure_in_rounds
from tlmd.types import TargetInfo, Task

_ROUND = 8
_SHARES = {"picked": 0.6, "near": 0.2, "random": 0.2}
_SEED = 20  # of the operators; `tlmd train --corpus synthetic` draws with 0


def main() -> int:
    """Measure and export."""
    parser = report.parser(__doc__)
    parser.add_argument("--state", type=Path, required=True, help="where the records are kept")
    parser.add_argument("--out", type=Path, required=True, help="the data set")
    parser.add_argument("--groups", type=int, default=150, help="with alternatives (default 150)")
    parser.add_argument("--candidates", type=int, default=32, help="per task (default 32)")
    options = parser.parse_args()
    draw = partial(_tasks, groups=options.groups)
    goals = range(_ROUND, options.candidates + 1, _ROUND)
    measure_in_rounds(options.state, options.out, draw, _SHARES, goals)
    return 0


def _tasks(target: TargetInfo, groups: int) -> list[Task]:
    """The alternatives of as many operators that have any."""
    from tlmd.workloads.alternatives import with_alternatives
    from tlmd.workloads.corpus import held_out_ids
    from tlmd.workloads.synthetic import synthetic_tasks

    found: list[Task] = []
    drawn = synthetic_tasks(target, held_out_ids(target), count=4 * groups, seed=_SEED)
    for task in (task for portion in drawn for task in portion):
        found += [one for one in with_alternatives([task]) if one.alternative]
        if len({one.group for one in found}) >= groups:
            break
    return found


if __name__ == "__main__":
    sys.exit(main())
