"""The tables of the pages of benchmarks, made from the JSON files that the benchmarks wrote.

`python -m benchmarks.tables` writes each table anew that has a comment above it: the JSON file, and
a line for each column: its heading, the key of the rows, and how a number is written::

    <!-- table: data/store.json
    GB = GB | .1f
    opens in, ms = open s | 1000 .0f
    -->

A number before the format is a factor. Nothing is measured. A test keeps the tables equal to the
files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.report import markdown_table

PAGES = sorted(Path(__file__).parents[1].glob("*/*.md"))
_TABLE = re.compile(r"(<!-- table: (\S+)\n(.*?)-->\n\n?)((?:\|[^\n]*\n)*)", re.S)
_COLUMN = re.compile(
    r"(?P<heading>.*?) = (?P<key>.*?)(?: \| (?:(?P<factor>[\d.]+) )?(?P<form>\S+))?"
)


def rewritten(page: Path) -> str:
    """The text of a page with all its tables made anew. Raises `ValueError` for a wrong comment."""

    def table(match: re.Match[str]) -> str:
        comment, file, columns, _ = match.groups()
        rows = json.loads((page.parent / file).read_text())["rows"]
        wanted = [_column(line) for line in columns.splitlines() if line.strip()]
        cells = [[write(row) for _, write in wanted] for row in rows]
        return f"{comment}{markdown_table([heading for heading, _ in wanted], cells)}\n"

    return _TABLE.sub(table, page.read_text())


def _column(line: str) -> tuple[str, Callable[[dict[str, Any]], str]]:
    match = _COLUMN.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{line!r} is not HEADING = KEY | FORMAT")
    heading, key, factor, form = match.group("heading", "key", "factor", "form")

    def write(row: dict[str, Any]) -> str:
        value = row[key]
        return str(value) if form is None else format(value * float(factor or 1), form)

    return heading, write


def main() -> None:
    for page in PAGES:
        text = rewritten(page)
        if text != page.read_text():
            page.write_text(text)
            print(page)


if __name__ == "__main__":
    main()
