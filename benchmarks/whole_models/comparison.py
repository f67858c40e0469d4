"""The page of `benchmarks.end_to_end`: what all rows that were kept say, as tables.

`python -m benchmarks.comparison [--figure FILE]` writes comparison.md beside this file from the
rows under data/, prints the README's two tables, and draws all rows. Nothing is measured. `--add
FILE ... --to DATA` puts the rows of FILE, as `end_to_end --json FILE` wrote them, into DATA first;
a newer row takes the place of the one with the same model, cores, trials, precision and budget.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common import report
from benchmarks.whole_models.comparison_figure import draw
from benchmarks.whole_models.comparison_page import chosen, page, readme_means, readme_table
from benchmarks.whole_models.end_to_end import KEY
from tlmd.data.model_spec import FP32

_HERE = Path(__file__).parent
PAGE = _HERE / "comparison.md"
DATA = {
    "Zen 5": _HERE / "data" / "end_to_end.json",
    "Zen 4": _HERE / "data" / "end_to_end_zen4.json",
    "Zen 3": _HERE / "data" / "end_to_end_zen3.json",
    "Granite Rapids": _HERE / "data" / "end_to_end_granite_rapids.json",
    "Emerald Rapids": _HERE / "data" / "end_to_end_emerald_rapids.json",
}


def main() -> int:
    """Add rows, write the page, print the README's tables, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--to", type=Path, metavar="DATA", help="needed with --add")
    parser.add_argument("--figure", type=Path, help="draw the first two CPUs (needs matplotlib)")
    options = parser.parse_args()
    if bool(options.add) != bool(options.to):
        parser.error("--add and --to need each other")
    if options.add:
        add(options.add, options.to)
    machines = {name: rows(file) for name, file in DATA.items()}
    PAGE.write_text(page(machines))
    print(f"{readme_means(machines)}\n\n{readme_table(machines)}")
    if options.figure:
        draw(dict(list(machines.items())[:2]), options.figure)
    return 0


def rows(file: Path) -> list[report.Row]:
    """The rows of a file of `end_to_end`."""
    found: list[report.Row] = json.loads(file.read_text())["models"]
    return found


def add(files: Iterable[Path], data: Path) -> None:
    """Put the rows of `files` into `data`; of equal settings the last row stays."""
    document = json.loads(data.read_text())
    known = {_key(row): row for file in (data, *files) for row in rows(file)}
    document["models"] = sorted(known.values(), key=_order)
    headline = chosen(document["models"])
    document["ratio"] = report.geometric_mean(row["best / tlmd"] for row in headline)
    data.write_text(json.dumps(document, indent=1) + "\n")


def _key(row: report.Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in KEY)


def _order(row: report.Row) -> tuple[object, ...]:
    budget_s = row.get("budget_s") or 0.0
    return (row["precision"] != FP32, budget_s, row["trials"], row["cores"], -row["best / tlmd"])


if __name__ == "__main__":
    sys.exit(main())
