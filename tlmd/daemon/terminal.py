"""`tlmd tune` on a terminal: a live line while it runs, a table at the end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tlmd.config import Config
from tlmd.daemon import summary
from tlmd.daemon.progress import STOPPED, WIDE, LiveLine
from tlmd.daemon.silence import silenced
from tlmd.daemon.state import default_state_dir, make_state_dir
from tlmd.errors import Interrupted

_ROWS = 30
_PLAIN_COLUMNS = 120  # where the output is no terminal and any width will do
_COLUMNS = ("weight", "untuned µs", "tuned µs", "speed-up", "GFLOP/s", "of limit", "verified")
_NARROW = ("untuned µs", "tuned µs", "speed-up", "of limit")


def tune(
    model: str,
    shapes: Any,
    target: str,
    time_budget: float | None,
    out: Path | None,
    state_dir: Path | None,
    config: Config,
    config_file: Path | None,
    flags: dict[str, Any],
    as_json: bool,
) -> int:
    """Run one job with a progress display on standard error; the exit code."""
    state = make_state_dir(state_dir or default_state_dir())
    asked = threading.Event()

    def interrupt(_number: int, _frame: Any) -> NoReturn:
        asked.set()
        raise Interrupted

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)  # so that everything is cleaned up
    with silenced(state / "logs" / "tune.log") as stderr:
        with LiveLine(Console(file=stderr)) as live:
            from tlmd.daemon import tune as tuning

            request = tuning.Request(
                model, shapes, target, time_budget, out, state, config_file, flags
            )
            display = tuning.Display(live.stage, live.progress, live.stopping)
            try:
                result = tuning.run(request, config, display)
            except Exception as error:
                if asked.is_set():  # what interrupts TVM comes back as an error of its own
                    raise Interrupted from error
                raise
    if as_json:
        print(json.dumps(result.summary, indent=1))
    elif not result.interrupted:
        _print(_console(), result)
    if result.interrupted:
        print(STOPPED, file=sys.stderr)
    return 1 if result.interrupted else 0


def export(state_dir: Path, job_id: str, out: Path, as_json: bool) -> int:
    """Compile what a job has found and show it; the exit code."""
    with silenced(make_state_dir(state_dir) / "logs" / "export.log") as stderr:
        with LiveLine(Console(file=stderr)) as live:
            from tlmd.daemon import delivery

            live.stage("compiling and timing the whole model")
            result = delivery.export(state_dir, job_id, out)
    if as_json:
        print(json.dumps(result.summary, indent=1))
    else:
        _print(_console(), result)
    return 0


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PLAIN_COLUMNS))


def _print(console: Console, result: Any) -> None:
    document = result.summary
    console.print(_table(result, console.width >= WIDE))
    if (more := len(document["tasks"]) - _ROWS) > 0:
        console.print(f"... and {more} lighter tasks")
    whole = document["e2e"]
    torch_text = f", PyTorch eager {result.pytorch_ms:.2f} ms" if result.pytorch_ms else ""
    lines = [
        f"whole model: untuned {whole['untuned_ms']:.2f} ms{torch_text}, "
        f"[bold]tuned {whole['tuned_ms']:.2f} ms[/bold] "
        f"({whole['untuned_ms'] / whole['tuned_ms']:.1f}x), "
        f"largest error {whole['max_abs_err']:.1e}",
        f"{document['measured']} candidates measured, {document['failed']} failed, "
        f"{document['wall_s']:.0f} s in all; records applied to {whole['functions_with_record']} "
        f"of {whole['functions']} functions",
    ]
    if result.out:
        lines.append(
            f"written to {escape(str(result.out))}: model.so, run.py, report.html, "
            "summary.json, database_*.json"
        )
    for line in lines:
        console.print(line, highlight=False)


def _table(result: Any, wide: bool) -> Table:
    """The heaviest tasks; a narrow terminal shows no GFLOP/s and no weights."""
    document = result.summary
    title = f"{document['model']} on {document['target']}"
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", overflow="fold")
    for name in _COLUMNS if wide else _NARROW:
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(
        zip(document["tasks"], result.limits, strict=True),
        key=lambda pair: pair[0]["weight"] * (pair[0]["best_us"] or 0),
        reverse=True,
    )
    for task, limit in ordered[:_ROWS]:
        cells = _cells(task, limit)
        table.add_row(task["name"], *(cells[n] for n in (_COLUMNS if wide else _NARROW)))
    return table


def _cells(task: dict[str, Any], limit: str) -> dict[str, str]:
    untuned = task["untuned_us"]
    return {
        "weight": str(task["weight"]),
        "untuned µs": f"{untuned:.1f}" if untuned else "failed",
        "tuned µs": f"{task['best_us']:.1f}" if task["best_us"] else "failed",
        "speed-up": f"{summary.speed_up(task):.1f}x",
        "GFLOP/s": f"{summary.gflops(task):.1f}",
        "of limit": summary.of_limit(task, limit),
        "verified": summary.verdict(task),
    }
