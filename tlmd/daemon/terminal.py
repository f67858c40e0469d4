"""`tlmd tune` on a terminal: a live line while it runs, a table at the end."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tlmd.config import Config
from tlmd.daemon import summary
from tlmd.daemon.silence import silenced
from tlmd.daemon.state import default_state_dir, make_state_dir
from tlmd.errors import Interrupted

_ROWS = 30
_PLAIN_COLUMNS = 120  # where the output is no terminal and any width will do
_WIDE = 100  # columns that a table with everything needs
_PLAIN_EVERY_S = 30.0
_COLUMNS = ("weight", "untuned µs", "tuned µs", "speed-up", "GFLOP/s", "of peak", "verified")
_NARROW = ("untuned µs", "tuned µs", "speed-up", "of peak")


def tune(
    model: str,
    shapes: Any,
    target: str,
    time_budget: float | None,
    out: Path | None,
    state_dir: Path | None,
    config: Config,
    as_json: bool,
) -> int:
    """Run one job with a progress display on standard error; the exit code."""
    state = make_state_dir(state_dir or default_state_dir())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)  # so that everything is cleaned up
    with silenced(state / "logs" / "tune.log") as stderr:
        with _Live(Console(file=stderr)) as live:
            from tlmd.daemon import tune as tuning

            request = tuning.Request(model, shapes, target, time_budget, out, state)
            display = tuning.Display(live.stage, live.progress, live.stopping)
            result = tuning.run(request, config, display)
    if as_json:
        print(json.dumps(result.summary, indent=1))
    elif not result.interrupted:
        _print(_console(), result)
    if result.interrupted:
        print(
            "tlmd: stopped; everything measured is kept, the same command continues",
            file=sys.stderr,
        )
    return 1 if result.interrupted else 0


def _interrupt(_number: int, _frame: Any) -> NoReturn:
    raise Interrupted


class _Live:
    """The line that tells what is going on; where there is no terminal, one now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _bar(console)
        self._task = self._bar.add_task("starting", total=None, detail="")
        self._told = time.monotonic()
        self._ending = ""

    def __enter__(self) -> _Live:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        """What begins now."""
        self._bar.update(self._task, description=text, detail="", total=None)

    def stopping(self) -> None:
        """The user asked to stop; comes from a signal handler, so nothing is drawn here."""
        self._ending = "stopping after this batch, "

    def progress(self, p: Any) -> None:
        """One more candidate was measured."""
        task = f" {p.task[:24]}" if self._console.width >= _WIDE else ""
        self._bar.update(
            self._task,
            description=f"{self._ending}measuring{task}",
            completed=p.measured,
            total=max(p.planned, p.measured),
            detail=_detail(p),
        )
        if not self._console.is_terminal and time.monotonic() - self._told > _PLAIN_EVERY_S:
            self._told = time.monotonic()
            print(f"tlmd: {_detail(p)}", file=self._console.file, flush=True)


def _bar(console: Console) -> Progress:
    bar = [BarColumn(20)] if console.width >= _WIDE else []
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *bar,
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        # What libraries print belongs into the log, not above the bar.
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _detail(p: Any) -> str:
    """Tasks done, candidates per second, best against untuned, time left."""
    rate = p.measured_now / p.elapsed_s if p.elapsed_s > 0 else 0.0
    left = (p.planned - p.measured) / rate if rate > 0 else 0.0
    gain = p.baseline_s / p.estimate_s if p.estimate_s > 0 else 0.0
    failed = f" ({p.failed} failed)" if p.failed else ""
    return (
        f"{p.done}/{p.total} tasks, {p.measured} measured{failed}, {rate:.1f}/s, "
        f"{p.estimate_s * 1e3:.3g} ms ({gain:.1f}x), {left:.0f} s left"
    )


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PLAIN_COLUMNS))


def _print(console: Console, result: Any) -> None:
    document = result.summary
    console.print(_table(document, console.width >= _WIDE))
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


def _table(document: dict[str, Any], wide: bool) -> Table:
    """The heaviest tasks; a narrow terminal shows no GFLOP/s and no weights."""
    title = f"{document['model']} on {document['target']}"
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", overflow="fold")
    for name in _COLUMNS if wide else _NARROW:
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(
        document["tasks"], key=lambda t: t["weight"] * (t["best_us"] or 0), reverse=True
    )
    for task in ordered[:_ROWS]:
        cells = _cells(task)
        table.add_row(task["name"], *(cells[n] for n in (_COLUMNS if wide else _NARROW)))
    return table


def _cells(task: dict[str, Any]) -> dict[str, str]:
    share = task["peak_fraction"]
    untuned = task["untuned_us"]
    return {
        "weight": str(task["weight"]),
        "untuned µs": f"{untuned:.1f}" if untuned else "failed",
        "tuned µs": f"{task['best_us']:.1f}" if task["best_us"] else "failed",
        "speed-up": f"{summary.speed_up(task):.1f}x",
        "GFLOP/s": f"{summary.gflops(task):.1f}",
        "of peak": f"{share:.0%}" if share is not None else "?",
        "verified": summary.verdict(task),
    }
