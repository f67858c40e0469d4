"""Measure the bank: candidates of strictly held-out tasks, each timed once.

`python -m benchmarks.bank_measure --state DIR [--out FILE]` measures
`--candidates` of each task of `bank_tasks`: half of them random, a quarter picked by the shipped
checkpoint, a quarter near the best programs so far. It goes over all tasks again and again, 64
candidates at a time, so that it can be stopped at any moment and continued with the same command.
One core times, the others build. With `--alternatives` the tasks are the alternatives of these, and
attention (with `--round 16 --candidates 48`). What it measures is never trained on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common import report
from benchmarks.common.measured import measure_in_rounds
from benchmarks.learning.bank_tasks import BANK, BANK_OF_ALTERNATIVES, bank_alternatives, bank_tasks

_SHARES = {"random": 0.5, "picked": 0.25, "near": 0.25}


def main() -> int:
    """Measure and export."""
    parser = report.parser(__doc__, state="where the records are kept")
    parser.add_argument("--candidates", type=int, default=256, help="per task (default 256)")
    parser.add_argument("--round", type=int, default=64, help="candidates at a time (default 64)")
    parser.add_argument("--alternatives", action="store_true", help="of the bank's tasks")
    parser.add_argument("--out", type=Path, help="default: the bank of benchmarks/learning/data")
    options = parser.parse_args()
    goals = range(options.round, options.candidates + 1, options.round)
    draw, out = (
        (bank_alternatives, BANK_OF_ALTERNATIVES) if options.alternatives else (bank_tasks, BANK)
    )
    measure_in_rounds(options.state, options.out or out, draw, _SHARES, goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
