"""Measure the bank: candidates of strictly held-out tasks, each timed once.

`python -m benchmarks.bank_measure --state DIR [--out benchmarks/data/bank.msgpack.gz]` measures
`--candidates` of each task of `bank_tasks`: half of them random, a quarter picked by the shipped
checkpoint, a quarter near the best programs so far. It goes over all tasks again and again, 64
candidates at a time, so that it can be stopped at any moment and continued with the same command.
One core times, the others build. What it measures is never trained on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import report
from benchmarks.bank_tasks import bank_tasks
from benchmarks.measured import measure_in_rounds

_ROUND = 64
_SHARES = {"random": 0.5, "picked": 0.25, "near": 0.25}


def main() -> int:
    """Measure and export."""
    parser = report.parser(__doc__)
    parser.add_argument("--state", type=Path, required=True, help="where the records are kept")
    parser.add_argument("--candidates", type=int, default=256, help="per task (default 256)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/data/bank.msgpack.gz"))
    options = parser.parse_args()
    goals = range(_ROUND, options.candidates + 1, _ROUND)
    measure_in_rounds(options.state, options.out, bank_tasks, _SHARES, goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
