"""`Daemon` talks to a daemon over HTTP on loopback. Imports no heavy packages."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

from tlmd.client.job import Job
from tlmd.data.errors import BadInput, Failed, NoDaemon

if TYPE_CHECKING:
    import subprocess

    from tlmd.data.job_request import JobRequest

_TIMEOUT_S = 65.0
_STOP_S = 120.0
_POLL_S = 0.1


class Daemon:
    """A running daemon. The end of a ``with`` block stops it, if this process started it.

    Methods raise `NoDaemon` if the daemon does not answer, and `BadInput` or `Failed` with the
    error message of the daemon.
    """

    def __init__(
        self, state_dir: Path, note: dict[str, Any], process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.state_dir = state_dir
        self.url = str(note["url"])
        self.pid = int(note["pid"])
        self.private = bool(note.get("private"))
        self.supervisor = int(note.get("supervisor", 0))
        self.process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.stop()

    @property
    def token(self) -> str:
        """The secret that every HTTP call needs."""
        return (self.state_dir / "token").read_text().strip()

    def status(self) -> dict[str, Any]:
        """Return the document of ``tlmd status --json``."""
        document: dict[str, Any] = self.ask("GET", "/v1/status")
        return document

    def submit(self, model: str = "", **options: Any) -> Job:
        """Start a job. It tunes `model`, or trains the TLM on a `corpus`.

        `options` are the fields of `JobRequest`, such as ``trials=16`` (measurements per task) or
        ``time_budget=60.0`` (seconds). Raises `BadInput` for others.
        """
        from tlmd.data.job_request import JobRequest

        request, others = JobRequest.from_keywords(model, options)
        if others:
            names = ", ".join(sorted(JobRequest.keywords()))
            raise BadInput(f"unknown option {min(others)!r} of a job; known: {names}")
        return self.submit_request(request)

    def submit_request(self, request: JobRequest) -> Job:
        """Start the job that `request` describes, in this process's working directory."""
        weights = request.weights
        there = {
            "cwd": str(Path.cwd()),
            "weights": str(Path(weights).expanduser().absolute()) if weights else "",
        }
        document = request.model_copy(update=there).document()
        return Job(self, str(self.ask("POST", "/v1/jobs", document)["id"]))

    def job(self, job_id: str) -> Job:
        """Return the job with this id. Raises `BadInput` if there is none."""
        self.ask("GET", f"/v1/jobs/{job_id}")
        return Job(self, job_id)

    def jobs(self, count: int = 100, before: str = "") -> list[dict[str, Any]]:
        """Return the newest jobs, or the newest before one, oldest first: id, state, progress.

        `count` is at most 1000.
        """
        query = urlencode({"limit": count, "before": before})
        documents: list[dict[str, Any]] = self.ask("GET", f"/v1/jobs?{query}")
        return documents

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return all stored versions of the TLM."""
        documents: list[dict[str, Any]] = self.ask("GET", "/v1/checkpoints")
        return documents

    def promote(self, version: int) -> int:
        """Pin a version and never delete it: it is used until `unpin`. Returns its number."""
        return int(self.ask("POST", f"/v1/checkpoints/{version}/promote")["version"])

    def rollback(self, version: int) -> int:
        """Pin an older version: it is used until `unpin`. Returns its number."""
        return int(self.ask("POST", f"/v1/checkpoints/{version}/rollback")["version"])

    def unpin(self) -> int:
        """Let newer versions come into force again. Returns the version in force."""
        return int(self.ask("POST", "/v1/checkpoints/unpin")["version"])

    def pause(self) -> None:
        """Make the daemon give out no more work. Work in flight is finished."""
        self.ask("POST", "/v1/pause")

    def resume(self) -> None:
        """Continue after `pause`."""
        self.ask("POST", "/v1/resume")

    def stop(self, now: bool = False) -> None:
        """Stop the daemon and wait until its process has ended. Everything measured is kept.

        With `now`, the daemon does not wait for work in flight, which is at most one batch.
        """
        try:
            self.ask("POST", f"/v1/stop?now={'true' if now else 'false'}")
        except NoDaemon:
            pass
        deadline = time.monotonic() + _STOP_S
        while self._alive():
            if time.monotonic() > deadline:
                raise Failed(f"the daemon (pid {self.pid}) does not end; see its log")
            time.sleep(_POLL_S)
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None

    def _alive(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return is_alive(self.pid)

    def follow(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the summary of a job every two seconds, and when it changes, until the job ends."""
        connection = self._connect()
        last: dict[str, Any] = {}
        try:
            answer = self._request(connection, "GET", f"/v1/jobs/{job_id}/events", None)
            while line := answer.readline():
                last = json.loads(line) if line.strip() else last
                yield last
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemon(
                f"the daemon at {self.url} has ended; `tlmd start` continues its jobs"
            ) from error
        finally:
            connection.close()

    def page_link(self) -> str:
        """The address of the live page. It can be opened once, within ten minutes."""
        return self.url + str(self.ask("POST", "/v1/links")["path"])

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """Make one call of the HTTP interface and return the JSON of the answer."""
        connection = self._connect()
        try:
            return json.loads(self._request(connection, method, path, document).read())
        except (OSError, http.client.HTTPException) as error:
            raise NoDaemon(f"no daemon answers at {self.url}; `tlmd start` starts one") from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self.url)
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=_TIMEOUT_S)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, document: Any
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        body = json.dumps(document) if document is not None else None
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        if answer.status >= 400:
            raise _error_of(answer)
        return answer


def _error_of(answer: http.client.HTTPResponse) -> BadInput | Failed:
    try:
        document = json.loads(answer.read())
        text, is_bad_input = str(document["error"]), bool(document.get("bad_input"))
    except (ValueError, KeyError, TypeError):
        text, is_bad_input = f"the daemon answered HTTP status {answer.status}; see its log", False
    return BadInput(text) if is_bad_input else Failed(text)


def find(state_dir: Path) -> Daemon | None:
    """Return the daemon that runs on a state directory; None if there is none or it has died."""
    try:
        note = json.loads((state_dir / "daemon.json").read_text())
        daemon = Daemon(state_dir, note)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not is_alive(daemon.pid):
        return None
    try:
        daemon.status()
    except (NoDaemon, Failed, OSError):
        return None
    return daemon


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"
