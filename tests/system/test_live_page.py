"""The live page as a person sees it in Chromium: a job, its curve, versions, a daemon that dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tlmd
from tests.support import endtoend
from tests.support.processes import wait_for
from tests.system.browser import browser

pytestmark = [pytest.mark.slow, pytest.mark.browser]

_SHOT = "TLMD_SCREENSHOT"  # where a screenshot of the page at work is also kept
_SECONDS = 120.0  # the longest wait; other tests use the cores, too
# Each step is short and learns; the gate accepts everything.
_SETTINGS = {
    "TLMD_PIPELINE__STRICT": "true",
    "TLMD_PIPELINE__BATCH": "4",
    "TLMD_PIPELINE__PER_TASK": "2",
    "TLMD_PIPELINE__CHUNK": "2",
    "TLMD_TRAIN__STEPS": "2",
    "TLMD_TRAIN__SECONDS": "0",
    "TLMD_GENERATE__OVERSAMPLE": "2",
    "TLMD_REGISTRY__TOLERATED_NATS": "100",
    "TLMD_REGISTRY__TOLERATED_ORDER": "1",
    "TLMD_MEASURE__BACKGROUND_SHARE": "1",
}


class LivePage:
    """The page in the browser, and the texts on it. `requests` and `errors` are its own."""

    def __init__(self, context: Any, link: str, state: Path) -> None:
        self.context = context
        self.state = state
        self.page = context.pages[0]
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.link = link
        self.status = self.page.goto(link).status

    def text(self, selector: str) -> str:
        """What is written there; empty where it is hidden."""
        found = self.page.locator(selector)
        return str(found.inner_text()).strip() if found.is_visible() else ""

    def wait(self, selector: str, pattern: str, seconds: float = _SECONDS) -> str:
        """Wait until the text there has the pattern."""
        wait_for(lambda: re.search(pattern, self.text(selector)), seconds, f"{selector}: {pattern}")
        return self.text(selector)

    def points(self) -> int:
        """Points of all curves on the page: each one begins with a move and has steps."""
        script = "paths => paths.map(path => path.getAttribute('d') || '')"
        curves = self.page.locator("#cards .curve").evaluate_all(script)
        return sum(curve.count("M") + curve.count("V") for curve in curves)

    def number(self, selector: str) -> int:
        """The number with which the text there begins."""
        found = re.match(r"[\d,]+", self.text(selector))
        return int(found[0].replace(",", "")) if found else 0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, untrained: Path) -> Iterator[LivePage]:
    """The page of a daemon with a supervisor, opened by the link that `tlmd start` prints."""
    folder = tmp_path_factory.mktemp("page")
    state = folder / "state"
    with browser(folder / "profile") as context, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLMD_GENERATE__CHECKPOINT", str(untrained))
        for name, value in _SETTINGS.items():
            patch.setenv(name, value)
        started = endtoend.run("start", "--state-dir", state)
        try:
            assert started.returncode == 0, started.stderr
            link = re.search(r"^page +(\S+)$", started.stdout, re.MULTILINE)
            assert link is not None, started.stdout
            yield LivePage(context, link[1], state)
        finally:
            endtoend.run("stop", "--now", "--state-dir", state)


@pytest.fixture(scope="module")
def daemon(live: LivePage) -> tlmd.Daemon:
    """The daemon of the page."""
    return tlmd.connect(live.state)


@pytest.fixture(scope="module")
def job(daemon: tlmd.Daemon) -> tlmd.Job:
    """A job that runs longer than the tests."""
    return daemon.submit(endtoend.LONG, trials=200)


def keep(live: LivePage, path: Path) -> None:
    """Make a screenshot of the whole page."""
    live.page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000
    if (kept := os.environ.get(_SHOT)) and path.stem == "working":
        shutil.copy(path, kept)


def test_the_link_works_once(live: LivePage, daemon: tlmd.Daemon) -> None:
    assert live.status == 200 and live.page.url == f"{daemon.url}/"
    assert live.wait("#state", "idle") == "idle"
    again = live.context.new_page()
    try:
        assert again.goto(live.link).status == 401
        assert "this link was used or is too old" in again.locator("body").inner_text()
        assert again.goto(daemon.url).status == 200, "the browser has its session"
        live.context.clear_cookies()
        assert again.goto(daemon.url).status == 401
        assert live.wait("#silent", "needs its token")
        assert again.goto(daemon.page_link()).status == 200, "a new link, a new session"
        wait_for(lambda: not live.text("#silent"), _SECONDS, "answer")
    finally:
        again.close()


def test_a_job_starts_and_its_curve_grows(live: LivePage, job: tlmd.Job) -> None:
    assert live.wait("#model", "make_wide") == endtoend.LONG
    live.wait("#job-state", "^running$")
    assert live.page.title().startswith(f"{endtoend.LONG}, running")
    wait_for(lambda: live.points() >= 3, _SECONDS, "curve")
    before, measured = live.points(), live.number("#candidates")
    wait_for(lambda: live.points() > before, _SECONDS, "longer curve")
    wait_for(lambda: live.number("#candidates") > measured, _SECONDS, "more candidates")
    tasks = live.page.locator("#tasks tr")
    assert tasks.count() == len(job.status()["tasks"]) >= 3
    assert "µs" in tasks.first.inner_text()
    live.wait("#slots", "in flight")


def test_a_version_is_swapped(live: LivePage, job: tlmd.Job, tmp_path: Path) -> None:
    daemon = tlmd.connect(live.state)
    learnt = live.wait("#version", r"TLM-\d+").split()[0]  # from the first batches
    live.wait("#events", r"generator\S* now uses TLM-\d+")
    live.wait("#checkpoints", r"TLM-\d+\s+current")
    keep(live, tmp_path / "working.png")
    assert daemon.rollback(0) == 0
    live.wait("#version", "TLM-base")
    live.wait("#events", r"generator\S* now uses TLM-base")
    live.wait("#checkpoints", r"TLM-base\s+current\s*pinned")
    daemon.unpin()
    newer = live.wait("#version", r"TLM-\d+").split()[0]
    assert int(newer.removeprefix("TLM-")) > int(learnt.removeprefix("TLM-"))


def test_a_daemon_that_dies_and_comes_back(live: LivePage, job: tlmd.Job, tmp_path: Path) -> None:
    daemon = tlmd.connect(live.state)
    wait_for(lambda: live.points() >= 3, _SECONDS, "curve")
    measured, requests = live.number("#measured"), len(live.requests)
    os.kill(daemon.supervisor, signal.SIGSTOP)  # the daemon stays dead until the page was looked at
    try:
        os.kill(daemon.pid, signal.SIGKILL)
        said = live.wait("#silent", "does not answer")
        assert re.search(r"last answer at \d\d:\d\d:\d\d$", said)
        assert live.page.locator("body.stale").count() == 1
        assert live.text("#model") == endtoend.LONG, "what it knew stays"
        keep(live, tmp_path / "dead.png")
    finally:
        os.kill(daemon.supervisor, signal.SIGCONT)
    wait_for(lambda: not live.text("#silent"), _SECONDS, "daemon on the page")
    assert live.page.locator("body.stale").count() == 0
    assert live.number("#measured") >= measured, "no record is lost"
    live.wait("#job-state", "^running$")
    wait_for(lambda: live.number("#measured") > measured, _SECONDS, "more records")
    assert tlmd.connect(live.state).pid != daemon.pid
    assert len(live.requests) > requests
    assert live.errors == []
    addresses = {urlsplit(url).netloc for url in live.requests}
    assert addresses == {urlsplit(daemon.url).netloc}, "nothing comes from elsewhere"
