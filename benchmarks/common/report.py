"""What all benchmarks print and write: the machine, the commit, a table, JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def parser(
    description: str | None, figure: bool = False, state: str = ""
) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks, and those of the ones that draw a `figure`.

    `state` says what the folder `--state` keeps, where a benchmark has one; it is made.
    """
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    found.add_argument("--checkpoint", type=Path, metavar="DIR", help="a TLM; default: shipped")
    found.add_argument(
        "--untrained", action="store_true", help="random weights where there is no checkpoint"
    )
    found.add_argument("--seed", type=int, default=0)
    if state:
        found.add_argument("--state", type=_folder, required=True, help=state)
    if figure:
        found.add_argument("--figure", type=Path, help="draw the figures here (needs matplotlib)")
        found.add_argument("--from-json", type=Path, help="draw figures measured before")
    return found


def document(options: argparse.Namespace, measure: Callable[[argparse.Namespace], Row]) -> Row:
    """Figures that were measured before and that `options` name; else measure them now."""
    if options.from_json is None:
        return measure(options)
    found: Row = json.loads(options.from_json.read_text())
    return found


def machine() -> Row:
    """CPU model, usable cores, load and commit; read before the benchmark loads the machine."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def show(title: str, rows: Iterable[Row]) -> None:
    """Print rows of equal keys as a table, without the columns in which all are None."""
    rows = list(rows)
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_text(row[name]) for name in names))
    Console(width=140).print(table)


def markdown_table(head: list[str], lines: list[list[str]]) -> str:
    """A table of Markdown. A bar or a line break in a cell would end it."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    rows = [head, ["---"] * len(head), *cells]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def finish(result: Row, path: Path | None) -> None:
    """Print the machine and the headline of `result`, and write all of it."""
    here = result["machine"]
    print(f"{here['cpu']}, {here['cores']} cores, load {here['load']}, commit {here['commit']}")
    print(f"ratio {result['ratio']:.2f} ({result['meaning']})")
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def interval(middle: float, low: float, high: float) -> str:
    """A figure with its interval."""
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def _folder(text: str) -> Path:
    Path(text).mkdir(parents=True, exist_ok=True)
    return Path(text)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 100
        else (f"{value:.0f}" if isinstance(value, float) else str(value))
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _commit() -> str:
    """The commit of the source; a plus means that files have changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
