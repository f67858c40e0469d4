"""Others are suspended while a program is timed, and always go on again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import wait_for
from tlmd.measure.cores import suspension


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has joined the folder of a slot."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom tlmd.measure.cores import suspension\n"
        "suspension.join(Path(sys.argv[1]))\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as process:
        wait_for(lambda: suspension.joined(tmp_path) == [process.pid], 20, "process")
        yield process
        process.kill()


def test_what_joined_stands_still_while_something_is_timed(
    joined: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    taking = suspension.Suspension(tmp_path)
    taking.suspend([], [])
    wait_for(lambda: state(joined.pid) == "T", 5, "stop")
    taking.suspend([], [])
    assert taking.is_suspending and taking.resume([]) > 0.0
    wait_for(lambda: state(joined.pid) != "T", 5, "resumption")
    assert taking.resume([]) == 0.0 and not taking.is_suspending


def test_what_got_the_slot_just_before_it_was_stopped_goes_on(
    joined: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    taking = suspension.Suspension(tmp_path / "other")
    taking.suspend([joined.pid], [])  # the server has not yet heard that it has the slot
    wait_for(lambda: state(joined.pid) == "T", 5, "stop")
    taking.suspend([], [joined.pid])
    wait_for(lambda: state(joined.pid) != "T", 5, "resumption")
    assert taking.is_suspending


def test_a_new_server_resumes_what_a_killed_one_had_stopped(
    joined: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    suspension.suspend([joined.pid])
    wait_for(lambda: state(joined.pid) == "T", 5, "stop")
    suspension.Suspension(tmp_path)
    wait_for(lambda: state(joined.pid) != "T", 5, "resumption")


def test_what_has_ended_is_forgotten_even_if_its_pid_is_used_again(tmp_path: Path) -> None:
    suspension.join(tmp_path)
    assert suspension.joined(tmp_path) == [os.getpid()]
    (own,) = tmp_path.rglob(str(os.getpid()))
    own.write_text("1")  # another process had this pid
    (own.parent / "999999999").write_text("1")
    assert suspension.joined(tmp_path) == [] and not list(own.parent.iterdir())
