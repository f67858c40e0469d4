"""The daemon's HTTP interface on loopback. `access` says who may call it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.responses import StreamingResponse as Stream
from starlette.concurrency import run_in_threadpool as threaded

from tlmd.daemon import metrics
from tlmd.daemon.access import AccessControl, cookie_name
from tlmd.daemon.service import Service
from tlmd.daemon.sessions import Sessions
from tlmd.data.errors import BadInput, TlmdError
from tlmd.data.types import JobState

_PAGE = Path(__file__).parent / "page.html"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)
_PAGE_JOBS, _MOST_JOBS = 100, 1000  # in one answer, if nothing else is asked for, and at most
_EVENTS_S = 0.5
_HEARTBEAT = 4


def make_app(service: Service, token: str, sessions: Path | None = None) -> FastAPI:
    """Build the app with all routes. A call that `AccessControl` does not allow gets status 401.

    `sessions` is the file that keeps the browsers' sessions.
    """
    access = AccessControl(token, sessions=Sessions(token, sessions))
    app = FastAPI(title="tlmd", docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def check(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if not access.allows(request):
            return JSONResponse({"error": "the token of the state directory is needed"}, 401)
        return await call_next(request)

    @app.exception_handler(TlmdError)
    async def explain(_request: Request, error: TlmdError) -> Response:
        code = 400 if isinstance(error, BadInput) else 409
        return JSONResponse({"error": str(error), "bad_input": isinstance(error, BadInput)}, code)

    @app.exception_handler(TimeoutError)
    async def busy(_request: Request, _error: TimeoutError) -> Response:
        return JSONResponse({"error": "the daemon is busy; try again"}, 503)

    _add_jobs(app, service)
    _add_control(app, service)
    _add_views(app, service)
    _add_page(app, access)
    return app


def _add_jobs(app: FastAPI, service: Service) -> None:
    @app.get("/v1/jobs")
    async def jobs(limit: int = _PAGE_JOBS, before: str = "") -> Any:
        """The newest jobs, oldest first; ``before`` is the id of a job, ``limit`` at most 1000."""
        count = min(max(limit, 1), _MOST_JOBS)
        stored = await threaded(service.archive.summaries, count, before)
        live = {job["id"]: job for job in service.snapshot["jobs"]}
        return [live.get(job["id"], job) for job in stored]

    @app.post("/v1/jobs")
    async def submit(request: Request) -> Any:
        """Start a job; the answer has its id. The body is a `JobRequest`."""
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise BadInput("a job must be sent as application/json")
        try:
            document = await request.json()
        except ValueError:
            raise BadInput("the body of a job must be JSON") from None
        if not isinstance(document, dict):
            raise BadInput("the body of a job must be a JSON object")
        return {"id": await threaded(service.submit, document)}

    @app.get("/v1/jobs/{job_id}")
    async def job(job_id: str) -> Any:
        """One job: its state, progress, and tasks with their best µs."""
        return await threaded(service.detail, job_id)

    @app.post("/v1/jobs/{job_id}/cancel")
    async def cancel(job_id: str) -> Any:
        """End a job; everything measured is kept."""
        await threaded(service.cancel, job_id)
        return {"id": job_id, "state": "cancelled"}

    @app.get("/v1/jobs/{job_id}/events")
    async def events(job_id: str) -> Any:
        """The summary of a job as lines of JSON, whenever it changes, until the job ends."""
        await threaded(service.detail, job_id)
        return Stream(_events(service, job_id), media_type="application/x-ndjson")


async def _events(service: Service, job_id: str) -> AsyncIterator[str]:
    """Yield the job's summary as one line of JSON whenever it has changed, until the job ends.

    An empty line every two seconds shows the client that the daemon is still alive.
    """
    last = ""
    for beat in itertools.count(1):
        summaries = [j for j in service.snapshot.get("jobs", []) if j["id"] == job_id]
        if not summaries:  # it ended long ago, or it has just been added
            spec, state = await threaded(service.archive.find, job_id)
            summaries = [service.archive.summary(spec, state)]
        line = json.dumps(summaries[0]) if summaries else last
        if line != last:
            last = line
            yield line + "\n"
        elif beat % _HEARTBEAT == 0:
            yield "\n"
        if summaries and JobState(summaries[0]["state"]).is_finished:
            return
        if service.done.is_set():
            return
        await asyncio.sleep(_EVENTS_S)


def _add_control(app: FastAPI, service: Service) -> None:
    @app.post("/v1/pause")
    async def pause() -> Any:
        """Give out no more work; work in flight is finished."""
        await threaded(service.pause, True)
        return {"state": "paused"}

    @app.post("/v1/resume")
    async def resume() -> Any:
        """Continue after a pause."""
        await threaded(service.pause, False)
        return {"state": "running"}

    @app.post("/v1/stop")
    async def stop(now: bool = False) -> Any:
        """End the daemon. With ``now`` it does not wait for work in flight."""
        service.stop(now)
        return {"state": "stopping"}

    @app.get("/v1/checkpoints")
    async def checkpoints() -> Any:
        """All stored versions of the TLM."""
        return await threaded(service.checkpoints)

    @app.post("/v1/checkpoints/unpin")
    async def unpin() -> Any:
        """Let newer versions come into force again."""
        return {"version": await threaded(service.use_checkpoint, "unpin")}

    @app.post("/v1/checkpoints/{version}/{action}")
    async def use(version: int, action: str) -> Any:
        """Pin a version; ``action`` is ``promote`` or ``rollback``."""
        if action not in ("promote", "rollback"):
            raise HTTPException(404)
        return {"version": await threaded(service.use_checkpoint, action, version)}


def _add_views(app: FastAPI, service: Service) -> None:
    @app.get("/v1/status")
    async def status() -> Any:
        """The document of ``tlmd status --json``."""
        return service.snapshot

    @app.get("/v1/trace")
    async def event_log() -> Any:
        """The newest events of the daemon, each with its time."""
        return list(service.event_log.events)

    @app.get("/metrics")
    async def prometheus() -> Any:
        """The figures of the daemon for Prometheus."""
        text = metrics.render(service.snapshot, service.event_log.counts)
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI, access: AccessControl) -> None:
    @app.post("/v1/links")
    async def link() -> Any:
        """A link to the live page that can be opened once, within ten minutes."""
        return {"path": f"/?link={access.make_link()}"}

    @app.get("/")
    async def page(request: Request) -> Any:
        """The live page, for a browser that has opened a link."""
        if "link" in request.query_params:  # works once, so it may stay in the history
            session = access.open_session(request.query_params["link"])
            if session is None:
                text = "this link was used or is too old; `tlmd start` prints a new one"
                return Response(text, 401, media_type="text/plain")
            answer: Response = RedirectResponse("/", 303)
            name = cookie_name(request)
            answer.set_cookie(name, session, httponly=True, samesite="strict")
            return answer
        headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
        return HTMLResponse(_PAGE.read_text("utf-8"), headers=headers)


class HttpServer:
    """Serves an app on loopback, in its own thread. `url` is the address.

    Raises `BadInput` if the port is in use.
    """

    def __init__(self, app: FastAPI, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(128)  # from now on, calls wait until the server accepts them
        except OSError as error:
            self._socket.close()
            raise BadInput(
                f"cannot listen on port {port} ({error.strerror}); choose another daemon.port"
            ) from error
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", log_config=None
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="http", daemon=True
        )
        logging.getLogger("uvicorn").setLevel(logging.WARNING)

    def start(self) -> None:
        """Start the thread that serves."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving. Streams that are still open are closed after one second."""
        self._server.should_exit = True
        self._thread.join(1.0)
        self._server.force_exit = True
        self._thread.join(5.0)
        self._socket.close()
