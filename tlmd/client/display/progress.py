"""The line on a terminal that shows the progress of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rich import progress as columns
from rich.console import Console

from tlmd.pipeline.tuning_jobs import Progress

WIDE = 100  # columns that the full table needs
STOPPED = "tlmd: stopped; everything measured is kept, the same command continues"
_PLAIN_EVERY_S = 30.0
_WORTH = 0.02  # a gain of the newest quarter for which more trials are worth their time


class LiveLine:
    """A live line with the progress of a job. Without a terminal it prints a line every 30 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = _bar(console)
        self._task = self._bar.add_task("starting", total=None, detail="")
        self._printed_at = time.monotonic()
        self._ending = ""

    def __enter__(self) -> LiveLine:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def stage(self, text: str) -> None:
        """Show `text` as the current stage of the job."""
        self._bar.update(self._task, description=text, detail="", total=None)

    def tell(self, text: str) -> None:
        """Print a line that stays: what the job will do, or what it found."""
        self._bar.console.print(f"tlmd: {text}", highlight=False, soft_wrap=True)

    def stopping(self) -> None:
        """Show that the user asked to stop. A signal handler calls this, so it draws nothing."""
        self._ending = "stopping after this batch, "

    def progress(self, p: Progress) -> None:
        """Show the progress `p` of the job."""
        task = f" {p.task[:24]}" if self._console.width >= WIDE else ""
        self._bar.update(
            self._task,
            description=f"{self._ending}measuring{task}",
            completed=p.measured,
            total=max(p.planned, p.measured),
            detail=detail_line(p),
        )
        if not self._console.is_terminal and time.monotonic() - self._printed_at > _PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            print(f"tlmd: {detail_line(p)}", file=self._console.file, flush=True)


def _bar(console: Console) -> columns.Progress:
    bar = [columns.BarColumn(20)] if console.width >= WIDE else []
    return columns.Progress(
        columns.SpinnerColumn(),
        columns.TextColumn("{task.description}"),
        *bar,
        columns.TextColumn("{task.fields[detail]}"),
        columns.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        # The output of libraries belongs in the log, not above the bar.
        redirect_stdout=False,
        redirect_stderr=False,
    )


def outlook(recent_gain: float) -> str:
    """Whether more trials would make the model faster, judged by the newest quarter of them."""
    text = f"the candidates measured last made the model {recent_gain:.1%} faster"
    if recent_gain < _WORTH:
        return f"{text}; more trials would gain little"
    return f"{text}; more trials (--effort thorough) would gain more"


def progress_of(document: Mapping[str, Any]) -> Progress:
    """The progress in a job's document. The daemon may be newer and write more fields."""
    names = {field.name for field in fields(Progress)}
    return Progress(**{name: value for name, value in document.items() if name in names})


def detail_line(p: Progress, finished: bool = False) -> str:
    """Format tasks done, candidates per second, best time and speed-up, and time left."""
    rate = p.measured_now / p.elapsed_s if p.elapsed_s > 0 else 0.0
    left = (p.planned - p.measured) / rate if rate > 0 else 0.0
    gain = p.baseline_s / p.estimate_s if p.estimate_s > 0 else 0.0
    failed = f" ({p.failed} failed)" if p.failed else ""
    text = f"{p.done}/{p.total} tasks, {p.measured} measured{failed}"
    if not finished:
        text += f", {rate:.1f}/s"
    if gain:
        text += f", {p.estimate_s * 1e3:.3g} ms ({gain:.1f}x)"
    if not finished and p.recent_gain is not None:
        text += f", last quarter {p.recent_gain:.1%} faster"
    return text if finished or not p.planned else f"{text}, {left:.0f} s left"
