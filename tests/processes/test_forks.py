"""Forks share work: every piece is done once, whatever happens to a fork, and none is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.endtoend import ROOT

_HEAD = """
import os, signal, sys, time
from pathlib import Path
from tlmd.processes import forks
os.sched_getaffinity = lambda _: {0, 1, 2}
forks.allow()
main, folder = os.getpid(), Path(sys.argv[1])
"""


def run(code: str, tmp_path: Path) -> str:
    """What a process of its own prints, in which forks are allowed."""
    text = _HEAD + textwrap.dedent(code)
    command = [sys.executable, "-c", text, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_several_processes_do_each_piece_once(tmp_path: Path) -> None:
    code = """
    def work(index):
        (folder / f"{index}-{os.getpid()}").touch()
        time.sleep(0.02)
        return str(index * index).encode() * index
    found = forks.each(work, 50)
    print(found == [str(i * i).encode() * i for i in range(50)], forks.processes())
    """
    assert run(code, tmp_path) == "True 3"
    done = [path.name.split("-") for path in tmp_path.iterdir()]
    assert sorted(int(index) for index, _ in done) == list(range(50))
    assert len({pid for _, pid in done}) == 3


@pytest.mark.parametrize(
    "harm", ["os.kill(os.getpid(), signal.SIGKILL)", "raise OSError", "os._exit(3)"]
)
def test_what_a_fork_does_not_manage_is_done_again(harm: str, tmp_path: Path) -> None:
    code = f"""
    def work(index):
        if os.getpid() != main and index % 5 == 4:
            {harm}
        time.sleep(0.01)
        return bytes([index])
    print(forks.each(work, 20) == [bytes([i]) for i in range(20)])
    """
    assert run(code, tmp_path) == "True"


def test_an_error_is_raised_here_and_ends_the_forks(tmp_path: Path) -> None:
    code = """
    def work(index):
        if os.getpid() == main:
            time.sleep(0.2)
            raise LookupError("this piece")
        (folder / str(os.getpid())).touch()
        time.sleep(60)
    try:
        forks.each(work, 9)
    except LookupError as error:
        print(error)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no child is left")
    """
    assert run(code, tmp_path) == "this piece\nno child is left"


def test_forks_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = """
    def work(index):
        if os.getpid() == main:
            while len(list(folder.iterdir())) < 2:
                time.sleep(0.01)
            os.kill(main, signal.SIGKILL)
        (folder / str(os.getpid())).touch()
        time.sleep(60)
    forks.each(work, 9)
    """
    text = _HEAD + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", text, str(tmp_path)], cwd=ROOT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    for path in tmp_path.iterdir():
        assert _has_ended(int(path.name))


def _has_ended(pid: int) -> bool:
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        os.sched_yield()
    return False


def test_more_pieces_than_the_queue_holds(tmp_path: Path) -> None:
    code = """
    found = forks.each(lambda index: index.to_bytes(4, "big"), 40_000)
    print([int.from_bytes(one, "big") for one in found] == list(range(40_000)))
    """
    assert run(code, tmp_path) == "True"


def test_a_process_that_allows_none_does_all_itself() -> None:
    code = "from tlmd.processes import forks; import os; main = os.getpid()\n"
    code += "print(forks.processes(), forks.each(lambda _: str(os.getpid() == main).encode(), 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "1 [b'True', b'True']"
