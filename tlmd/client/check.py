"""`tlmd check`: would this model work? Nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from tlmd.client.display.output_capture import captured_output
from tlmd.client.display.progress import LiveLine
from tlmd.client.model_process import ModelProcess
from tlmd.data.config import Config
from tlmd.data.job_request import JobRequest
from tlmd.measure.cores.core_plan import plan_slots


def check(
    request: JobRequest, config: Config, log: Path, on_stage: Callable[[str], None]
) -> dict[str, Any]:
    """Properties of a model that works. Raises `BadInput` for one that does not."""
    from tlmd.models import frontends

    frontends.check(request.name)
    layout = plan_slots(config.measure.slots, run=config.measure.run_cores or None)[0]
    with ModelProcess(request.model_spec, config, log) as process:
        report = process.accept(request.target, layout, False, None, on_stage)
    return report | {"random_weights": frontends.weights_note(request)}


def run(request: JobRequest, config: Config, state_dir: Path, as_json: bool) -> int:
    """Check a model, show the result, and return the exit code."""
    log = state_dir / "logs" / "check.log"
    with captured_output(log) as stderr, LiveLine(Console(file=stderr)) as live:
        report = check(request, config, log, live.stage)
    document = {"model": request.name, "works": True, **report}
    print(json.dumps(document, indent=1) if as_json else _text(document))
    return 0


def _weights(reason: str) -> str:
    return f", but its weights are random ({reason})" if reason else ""


def _text(document: dict[str, Any]) -> str:
    error, seconds = document["error"], document["seconds"]
    compared = "outputs were not compared"
    if error is not None:
        compared = f"outputs are those of the original (relative error {error:.1e})"
    inputs = ", ".join(f"{n} {dtype}{shape}" for n, shape, dtype in document["inputs"])
    lines = [
        f"{document['model']} works{_weights(document['random_weights'])}: {compared}",
        f"inputs   {inputs}",
        f"outputs  {', '.join(path or 'a tensor' for path in document['outputs'])}",
        f"tasks    {document['tasks']} to tune, {document['programs']} calls, "
        f"{document['flops'] / 1e9:.3g} GFLOP a run",
        "seconds  " + ", ".join(f"{stage} {s:.1f}" for stage, s in seconds.items()),
    ]
    return "\n".join([*lines, *(f"note     {note}" for note in document["notes"])])
