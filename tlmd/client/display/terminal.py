"""The terminal output of `tlmd tune`: a live line while it runs, a table at the end."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tlmd.client.display.output_capture import captured_output
from tlmd.client.display.progress import STOPPED, WIDE, LiveLine
from tlmd.client.tune_request import TuneRequest
from tlmd.data.config import Config
from tlmd.data.errors import Interrupted
from tlmd.data.model_spec import FP32
from tlmd.data.state_dir import make_state_dir
from tlmd.export import reports
from tlmd.processes.children import ending_signals

_ROWS = 30
_PLAIN_COLUMNS = 120  # at least this width if the output is not a terminal
_BUSY = 0.3  # share of slowed times from which the user is told
_COLUMNS = ("weight", "untuned µs", "tuned µs", "speed-up", "GFLOP/s", "of limit", "verified")
_NARROW = ("untuned µs", "tuned µs", "speed-up", "of limit")


def tune(request: TuneRequest, config: Config, as_json: bool) -> int:
    """Run one job, show its progress on standard error, and return the exit code."""
    state = make_state_dir(request.state_dir)
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        interrupted.set()
        raise Interrupted

    for number in ending_signals():
        signal.signal(number, interrupt)  # an exception, so that everything is cleaned up
    with captured_output(state / "logs" / "tune.log") as stderr:
        with LiveLine(Console(file=stderr)) as live:
            from tlmd.client import tune as tuning

            display = tuning.Display(live.stage, live.tell, live.progress, live.stopping)
            try:
                result = tuning.run(request, config, display)
            except Exception as error:
                if interrupted.is_set():  # TVM turns the `Interrupted` into an error of its own
                    raise Interrupted from error
                raise
    if as_json:
        print(json.dumps(result.summary, indent=1))
    elif not result.interrupted:
        _print(_console(), result)
    if result.interrupted:
        print(STOPPED, file=sys.stderr)
    return 1 if result.interrupted else 0


def export(state_dir: Path, job_id: str, out: Path, lowered: bool, as_json: bool) -> int:
    """Compile the best programs of a job, show the result, and return the exit code.

    `lowered` as in `tlmd.export.job_export.export`.
    """
    with captured_output(make_state_dir(state_dir) / "logs" / "export.log") as stderr:
        with LiveLine(Console(file=stderr)) as live:
            from tlmd.export import job_export

            live.stage("compiling and timing the whole model")
            result = job_export.export(state_dir, job_id, out, lowered)
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
    if document["e2e"] is None:
        console.print(f"nothing was tuned or timed; written to {result.out}", highlight=False)
        return
    if "programs" in document:
        for line in _unmeasured(result):
            console.print(line, highlight=False)
        return
    console.print(_table(result, console.width >= WIDE))
    if (more := len(document["tasks"]) - _ROWS) > 0:
        console.print(f"... and {more} tasks that take less time")
    whole = document["e2e"]
    torch_text = f", PyTorch eager {result.pytorch_ms:.2f} ms" if result.pytorch_ms else ""
    lines = [
        f"whole model: untuned {reports.untuned_text(result)}{torch_text}, "
        f"[bold]tuned {whole['tuned_ms']:.2f} ms[/bold] "
        f"({reports.whole_speed_up(result)}x), "
        f"largest error {reports.error_text(result)}",
        f"{document['measured']} candidates measured, {document['failed']} failed, "
        f"{document['wall_s']:.0f} s total; records applied to {whole['functions_with_record']} "
        f"of {whole['functions']} functions",
    ]
    if "left" in document:
        lines.append(f"left as it is: {escape(reports.left_text(document))}")
    if result.slowed > _BUSY:
        lines.append(
            f"{result.slowed:.0%} of the times were taken while other programs slowed the cores; "
            "--wait-quiet waits for quieter moments"
        )
    if result.out:
        lines.append(_written(result.out))
    for line in lines:
        console.print(line, highlight=False)


def _unmeasured(result: Any) -> list[str]:
    """The lines on a model that was compiled without measuring."""
    document, error = result.summary, result.summary["error"]
    compared = "its outputs were not compared"
    if error is not None:
        compared = f"its outputs are those of the original (relative error {error:.1e})"
    programs = ", ".join(f"{count} {kind}" for kind, count in document["programs"].items())
    title = f"{document['model']} on {document['target']}, {document.get('precision', FP32)}"
    lines = [
        f"{escape(title)}: compiled in {document['wall_s']:.0f} s",
        compared,
        f"programs of {len(document['tasks'])} tasks: {programs or 'none'}; nothing was measured",
    ]
    if "left" in document:
        lines.append(f"left as it is: {escape(reports.left_text(document))}")
    lines.append("`tlmd tune` measures programs and finds faster ones (--effort quick, normal)")
    return lines + ([_written(result.out)] if result.out else [])


def _written(out: Path) -> str:
    """What was written."""
    some = ("model.so", "model.json", "run.py", "report.html", "summary.json", "intrinsics.py")
    names = [name for name in some if (out / name).exists()]
    return f"written to {escape(str(out))}: {', '.join([*names, 'database_*.json'])}"


def _table(result: Any, wide: bool) -> Table:
    """The table of the heaviest tasks. On a narrow terminal it has fewer columns."""
    document = result.summary
    title = f"{document['model']} on {document['target']}, {document.get('precision', FP32)}"
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
        "speed-up": f"{reports.speed_up(task):.1f}x",
        "GFLOP/s": f"{reports.gflops(task):.1f}",
        "of limit": reports.of_limit(task, limit),
        "verified": reports.verification_label(task),
    }
