"""The terminal output of the commands that talk to a daemon."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tlmd.client import lifecycle
from tlmd.client.connection import Daemon
from tlmd.client.display.progress import STOPPED, LiveLine, detail_line, progress_of
from tlmd.client.job import Job
from tlmd.data.errors import BadInput, Interrupted, NoDaemon
from tlmd.data.job_request import JobRequest
from tlmd.data.types import JobState

_WATCH_S = 1.0
_PLAIN_S = 5.0
_WIDTH = 100


def status_text(status: dict[str, Any]) -> str:
    """The text of `tlmd status`."""
    return _plain(_status(status))


def jobs_text(jobs: list[dict[str, Any]]) -> str:
    """The text of `tlmd jobs`."""
    return _plain(_jobs(jobs)) if jobs else "no jobs yet; `tlmd submit MODEL` adds one"


def job_text(job: dict[str, Any]) -> str:
    """The text at the end of `tlmd wait`."""
    progress = job.get("progress")
    text = f"{job['id']} {job['state']}"
    if progress:
        text += f": {detail_line(progress_of(progress), finished=True)}"
    return text + f"; `tlmd export {job['id']} --out DIR` compiles the model"


def checkpoints_text(checkpoints: list[dict[str, Any]]) -> str:
    """The text of `tlmd checkpoints`."""
    table = _table("version", "", "records", "steps", "loss", "made")
    for entry in checkpoints:
        notes = entry["notes"]
        marks = {"in force": "current", "pinned": "pinned", "kept": "promoted"}
        table.add_row(
            str(entry["version"]),
            ", ".join(mark for mark, key in marks.items() if entry[key]),
            str(notes.get("records", notes.get("measured", ""))),
            str(notes.get("steps", "")),
            str(notes.get("loss", "")),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["created"])),
        )
    return _plain(table)


def wait(job: Job, quiet: bool) -> dict[str, Any]:
    """Wait for a job, with a live line on standard error, and return its status."""
    if quiet:
        return job.wait()
    with LiveLine(Console(stderr=True)) as line:
        line.stage(f"waiting for {job.id}")
        return job.wait(progress=lambda document: _show(line, document))


def until_accepted(job: Job) -> None:
    """Wait until the job's model is known to work. Raises `BadInput` with the cause if not."""
    with LiveLine(Console(stderr=True)) as line:
        for document in job.daemon.follow(job.id):
            state = document.get("state")
            if state == JobState.FAILED:
                raise BadInput(document["reason"])
            if state == JobState.PREPARING:
                line.stage(document.get("stage") or f"preparing {document['model']}")
            elif state is not None:  # before the first summary comes, a document is empty
                return


def _show(line: LiveLine, document: dict[str, Any]) -> None:
    if document["state"] == "preparing":
        line.stage(document.get("stage") or f"preparing {document['model']}")
    elif document.get("progress"):
        line.progress(progress_of(document["progress"]))


def watch(daemon: Daemon, as_json: bool) -> int:
    """Show the daemon's status until Ctrl-C or its end. Without a terminal, print plain lines."""
    console = Console()
    if as_json or not console.is_terminal:
        return _watch_plain(daemon, as_json)
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                live.update(_status(daemon.status()), refresh=True)
            except NoDaemon:
                break
            time.sleep(_WATCH_S)
        console.print("the daemon has ended")
    return 0


def _watch_plain(daemon: Daemon, as_json: bool) -> int:
    """Print one line every 5 s until no job is left to do."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                status = daemon.status()
            except NoDaemon:
                break
            print(json.dumps(status) if as_json else _line(status), flush=True)
            busy = any(not JobState(job["state"]).is_finished for job in status["jobs"])
            if not busy:
                break
            time.sleep(_PLAIN_S)
    return 0


def train(
    state_dir: Path,
    config: Path | None,
    request: JobRequest,
    as_json: bool,
) -> int:
    """Run a campaign and show its progress. Uses the running daemon or starts a private one."""
    with _running_or_private(state_dir, config) as daemon:
        job = daemon.submit_request(request)
        line = LiveLine(Console(stderr=True))
        try:
            with line:
                line.stage("lowering the corpus")
                document = job.wait(progress=lambda summary: _show(line, summary))
        except (KeyboardInterrupt, Interrupted):
            job.cancel()
            print(STOPPED, file=sys.stderr)
            return 1
        version = daemon.status()["version"]
    document = {**document, "version": version}
    print(
        json.dumps(document, indent=1)
        if as_json
        else f"{job_text(document).split(';')[0]}; version {version} is in force"
    )
    return 0


@contextlib.contextmanager
def _running_or_private(state_dir: Path, config: Path | None) -> Iterator[Daemon]:
    running = lifecycle.running(state_dir)
    if running is not None:
        yield running
        return
    with lifecycle.start(state_dir, config, ownership="private") as daemon:
        yield daemon


def _status(status: dict[str, Any]) -> Group:
    parts: list[Any] = [Text(_line(status))]
    if status["jobs"]:
        parts.append(_jobs(status["jobs"]))
    if status["slots"]:
        parts.append(_slots(status))
    return Group(*parts)


def _line(status: dict[str, Any]) -> str:
    failed = f" ({status['failed']} failed)" if status["failed"] else ""
    text = (
        f"{status['state']}: {status['measured']} measured{failed}, {status['rate_per_s']:.1f}/s, "
        f"batch {status['batch'] if status['batch'] is not None else '-'}, "
        f"version {status['version']}, lag {status['lag']}"
    )
    if carried := status.get("carried_over"):
        text += f"; {carried} programs carried over from before an upgrade"
    if (convergence := status["convergence"]) and convergence["gain"] is not None:
        text += f", {convergence['gain']:.1%} gained over the last {convergence['window']}"
    if status["state"] == "running" and (cores := status.get("cores_of_others")):
        text += f"; other programs use {cores:.1f} cores and come first"
    if error := (status.get("training") or {}).get("error"):
        text += f"; no trainer, so nothing is learnt: {error}"
    return text


def _jobs(jobs: list[dict[str, Any]]) -> Table:
    table = _table("job", "model", "state", "progress")
    for job in jobs:
        progress = job.get("progress")
        text = job["reason"]
        if progress and progress["measured"]:
            finished = JobState(job["state"]).is_finished
            text = detail_line(progress_of(progress), finished) + (f"; {text}" if text else "")
        shares = {"priority": 0, "weight": 1.0}
        said = ", ".join(f"{k} {job[k]:g}" for k, usual in shares.items() if job[k] != usual)
        state = f"{job['state']} ({said})" if said else job["state"]
        table.add_row(job["id"], escape(job["model"]), state, escape(text))
    return table


def _slots(status: dict[str, Any]) -> Table:
    table = _table("slot", "cores", "busy", "in flight")
    for slot in status["slots"]:
        cores = ",".join(map(str, slot["cores"]))
        share = slot["busy_s"] / max(slot["joined_s"], 1e-9)
        table.add_row(slot["name"], cores, f"{min(share, 1.0):.0%}", str(slot["in_flight"]))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _plain(renderable: Any) -> str:
    console = Console()
    console = console if console.is_terminal else Console(width=max(console.width, _WIDTH))
    with console.capture() as capture:
        console.print(renderable, highlight=False)
    return capture.get().rstrip()
