"""How long it takes from the command to a model that runs, stage by stage.

tlmd compiles (`compile`), then tunes with ``--trials`` measurements per task: `tune`, with a daemon
of its own; `again`, the same command once more; `beside`, with a daemon that runs already. Stages
of several processes overlap. ``alone`` is the first call of PyTorch, torch.compile, ONNX Runtime
and OpenVINO, each in a new process that imports, loads or converts the model, and runs it once.
``ratio`` is the time of the fastest of the last three over that of `compile`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import report
from tlmd.processes.stage_times import STAGES

_PEERS = ("eager", "compile", "onnxruntime", "openvino")
_SHOWN = 0.05  # of the whole time


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("model", nargs="?", default="resnet18")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--trials", type=int, default=1, help="per task (default 1)")
    options = parser.parse_args()
    here, found = report.machine(), dict[str, Any]()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    with tempfile.TemporaryDirectory(prefix="tlmd-") as name:
        folder = Path(name)
        alone = {peer: _first_call(peer, options, folder) for peer in _PEERS}
        tune = ("tune", "--trials", str(options.trials))
        found["compile"] = _command(("compile",), options, folder, "empty")
        found["tune"] = _command(tune, options, folder, "tuned")
        found["again"] = _command(tune, options, folder, "tuned")
        with _Daemon(folder / "served", options.cores):
            found["beside"] = _command(tune, options, folder, "served")
    rows = [row for title, run in found.items() for row in _long_stages(title, run)]
    report.show("stages above 5 % of each run", rows)
    first = [{"first call of": peer, "s": seconds} for peer, seconds in alone.items()]
    report.show(f"{options.model}, {options.cores} cores", first)
    fastest = min(seconds for peer, seconds in alone.items() if peer != "eager" and seconds)
    result = {
        "benchmark": "time_to_model",
        "ratio": fastest / found["compile"]["wall_s"],
        "meaning": "first call of the fastest peer over tlmd compile",
        "machine": here,
        "model": options.model,
        "cores": options.cores,
        "trials": options.trials,
        "alone_s": alone,
        "rows": rows,
        "runs": found,
    }
    report.finish(result, options.json)
    return 0


class _Daemon:
    """A daemon that serves while the block runs."""

    def __init__(self, state: Path, cores: int) -> None:
        self._flags = ("--state-dir", str(state))
        self._cores = str(cores)

    def __enter__(self) -> None:
        _tlmd("start", *self._flags, "--cores", self._cores)

    def __exit__(self, *_: object) -> None:
        _tlmd("stop", *self._flags)


def _tlmd(*arguments: str, **variables: str) -> None:
    command = [sys.executable, "-m", "tlmd.cli", *arguments]
    subprocess.run(command, env=os.environ | variables, stdout=subprocess.DEVNULL, check=True)


def _command(command: Sequence[str], options: Any, folder: Path, state: str) -> dict[str, Any]:
    """The time of a command of tlmd and those of its stages."""
    stages, out = folder / "stages", folder / "out"
    stages.unlink(missing_ok=True)
    verb, *flags = command
    flags += ["--cores", str(options.cores), "--state-dir", str(folder / state)]
    began = time.time()
    _tlmd(verb, options.model, *flags, "--out", str(out), **{STAGES: str(stages)})
    wall_s = time.time() - began
    lines = [json.loads(line) for line in stages.read_text().splitlines()]
    return {"wall_s": wall_s, "stages": by_stage(lines, began)}


def by_stage(lines: Sequence[dict[str, Any]], began: float) -> list[report.Row]:
    """One row for each stage, in the order in which they began."""
    rows: dict[str, report.Row] = {}
    for line in sorted(lines, key=lambda line: float(line["began"])):
        start, wall_s = line["began"] - began, line["wall_s"]
        row = rows.setdefault(
            line["stage"],
            {"stage": line["stage"], "from": start, "to": 0, "wall s": 0, "CPU s": 0},
        )
        row["to"] = max(row["to"], start + wall_s)
        row["wall s"] += wall_s
        row["CPU s"] += line["cpu_s"]
    return list(rows.values())


def _long_stages(title: str, run: dict[str, Any]) -> list[report.Row]:
    """The stages that take more than a twentieth of a run, and its whole time."""
    long = [row for row in run["stages"] if row["wall s"] > _SHOWN * run["wall_s"]]
    whole = {"stage": "all", "from": 0, "to": run["wall_s"], "wall s": run["wall_s"]}
    whole["CPU s"] = sum(row["CPU s"] for row in run["stages"])
    return [{"run": title, **row} for row in [whole, *long]]


def _first_call(peer: str, options: Any, folder: Path) -> float | None:
    """Seconds from the start of a process to the first output; None if the peer is missing.

    The ONNX file is exported before: it is what the user of ONNX Runtime and OpenVINO has.
    """
    file = folder / "model.onnx"
    program = [sys.executable, "-m", "benchmarks.first_call"]
    if peer in ("onnxruntime", "openvino") and not file.exists():
        subprocess.run([*program, "export", options.model, str(file), "1"], check=False)
    began = time.time()
    arguments = [peer, options.model, str(file), str(options.cores)]
    done = subprocess.run([*program, *arguments], stdout=subprocess.DEVNULL, check=False)
    return None if done.returncode else time.time() - began


if __name__ == "__main__":
    sys.exit(main())
