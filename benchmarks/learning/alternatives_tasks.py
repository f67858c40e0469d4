"""Write alternatives of tasks: `python -m benchmarks.alternatives_tasks --tasks FILE --out OUT`.

`python -m tlmd.learn.distill --tasks OUT` makes demonstrations of them; nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Read, expand, write."""
    from tlmd.lowering.alternatives import with_alternatives
    from tlmd.records.task_file import read_tasks, save_tasks

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=Path, nargs="+", required=True, help="tasks or data sets")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    direct = [t for path in options.tasks for t in read_tasks(path) if not t.alternative]
    found = [task for task in with_alternatives(direct) if task.alternative]
    save_tasks(options.out, found)
    print(f"{len(found)} alternatives of {len(direct)} tasks in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
