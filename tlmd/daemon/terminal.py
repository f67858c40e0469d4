"""`tlmd tune` on a terminal: a live line while it runs, a table at the end."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tlmd.config import Config
from tlmd.daemon import summary
from tlmd.daemon.state import default_state_dir

_ROWS = 30


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
    # TVM and torch warn about their own internals while they load; nothing a user could mend.
    warnings.filterwarnings("ignore")
    console = Console(stderr=True)
    with _live(console) as live:
        bar = live.add_task("starting", total=None, detail="")
        from tlmd.daemon import tune as tuning

        def stage(text: str) -> None:
            live.update(bar, description=text, detail="", total=None)

        def progress(p: Any) -> None:
            live.update(
                bar,
                description=f"measuring {p.task[:32]}",
                completed=p.measured,
                total=max(p.planned, p.measured),
                detail=_detail(p),
            )

        request = tuning.Request(
            model, shapes, target, time_budget, out, state_dir or default_state_dir()
        )
        result = tuning.run(request, config, tuning.Display(stage, progress))
    if as_json:
        print(json.dumps(result.summary, indent=1))
    elif not result.interrupted:
        _print(Console(), result)
    if result.interrupted:
        print(
            "tlmd: stopped; everything measured is kept, the same command continues",
            file=sys.stderr,
        )
    return 1 if result.interrupted else 0


def _live(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _detail(p: Any) -> str:
    """Tasks done, candidates per second, best against untuned, time left."""
    rate = p.measured_now / p.elapsed_s if p.elapsed_s > 0 else 0.0
    left = (p.planned - p.measured) / rate if rate > 0 else 0.0
    gain = p.baseline_s / p.estimate_s if p.estimate_s > 0 else 0.0
    return (
        f"{p.done}/{p.total} tasks, {p.measured} measured ({p.failed} failed), {rate:.1f}/s, "
        f"{p.estimate_s * 1e3:.2f} ms ({gain:.0f}x), {left:.0f} s left"
    )


def _print(console: Console, result: Any) -> None:
    document = result.summary
    table = Table(title=f"{document['model']} on {document['target']}", title_justify="left")
    table.add_column("task", overflow="fold")
    for name in ("weight", "untuned µs", "tuned µs", "speed-up", "GFLOP/s", "of peak", "verified"):
        table.add_column(name, justify="right")
    ordered = sorted(
        document["tasks"], key=lambda t: t["weight"] * (t["best_us"] or 0), reverse=True
    )
    for task in ordered[:_ROWS]:
        table.add_row(*_cells(task))
    console.print(table)
    if len(ordered) > _ROWS:
        console.print(f"... and {len(ordered) - _ROWS} lighter tasks")
    whole = document["e2e"]
    torch_text = f", PyTorch eager {result.pytorch_ms:.2f} ms" if result.pytorch_ms else ""
    console.print(
        f"whole model: untuned {whole['untuned_ms']:.2f} ms{torch_text}, "
        f"[bold]tuned {whole['tuned_ms']:.2f} ms[/bold] "
        f"({whole['untuned_ms'] / whole['tuned_ms']:.1f}x), "
        f"largest error {whole['max_abs_err']:.1e}"
    )
    console.print(
        f"{document['measured']} candidates measured in {document['wall_s']:.0f} s, "
        f"{document['failed']} failed; records applied to {whole['functions_with_record']} of "
        f"{whole['functions']} functions"
    )
    if result.out:
        console.print(f"written to {result.out}: model.so, run.py, report.html, database_*.json")


def _cells(task: dict[str, Any]) -> list[str]:
    share = task["peak_fraction"]
    untuned = task["untuned_us"]
    return [
        task["name"],
        str(task["weight"]),
        f"{untuned:.1f}" if untuned else "failed",
        f"{task['best_us']:.1f}" if task["best_us"] else "failed",
        f"{summary.speed_up(task):.1f}x",
        f"{summary.gflops(task):.1f}",
        f"{share:.0%}" if share is not None else "?",
        "yes" if task["verified"] else "default",
    ]
