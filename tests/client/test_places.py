"""Where people run it: terminals in ASCII, long names of folders, signals of a terminal."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import endtoend
from tlmd.data.errors import BadInput
from tlmd.data.state_dir import make_state_dir
from tlmd.processes import children, scratch

ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def python(*arguments: str, **variables: str) -> str:
    """What a Python in an environment of ASCII prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        cwd=endtoend.ROOT,
        env=children.environment(**ASCII, **variables),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("ascii")


@pytest.mark.parametrize("encoding", [{}, {"PYTHONIOENCODING": "ascii"}])
def test_letters_that_a_terminal_lacks_are_replaced(encoding: dict[str, str]) -> None:
    code = (
        "from tlmd.client.display.encoding import write_anything; write_anything()\n"
        "print('3.1 \\xb5s \\u2013 gr\\xf6\\xdfe \\u2026 \\udcff')\n"
        "from rich.console import Console; from rich.table import Table\n"
        "table = Table('tuned \\xb5s'); table.add_row('\\u2503'); Console().print(table)\n"
    )
    printed = python("-c", code, **encoding)
    assert printed.startswith("3.1 us - gr??e ... ?\n") and "tuned us" in printed


def test_commands_in_ascii() -> None:
    assert "resnet18" in python("-m", "tlmd.cli", "zoo")
    assert "Exit codes" in python("-m", "tlmd.cli", "help", "models")


def test_children_write_files_in_utf_8() -> None:
    code = "from tlmd.processes import children as c; print(c.environment({})['PYTHONUTF8'])"
    assert python("-c", code.format("")) == "1\n"
    assert python("-c", code.format("PYTHONUTF8='0'")) == "0\n"


@pytest.mark.parametrize(
    ("given", "short"),
    [("/tmp", True), ("/scratch/someone/job", True), ("/" + 110 * "x", False), ("/größe", False)],
)
def test_folders_for_sockets(given: str, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", given)
    folder = scratch.folder_for_sockets()
    assert (folder == given) == short == (scratch.note() == "")
    name = f"{folder}/tlmd-01234567/session_2026-11-29_12-00-00_000000_4194304/sockets/plasma_store"
    assert len(name) <= 107 and name.isascii() and (short or Path(folder).is_dir())


def test_no_folder_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/größe")
    monkeypatch.setattr(scratch, "_SHORT", ())
    with pytest.raises(BadInput, match="set it to one of 29 letters"):
        scratch.folder_for_sockets()


def test_a_hang_up_ends_in_order_unless_it_is_ignored(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    before = signal.getsignal(signal.SIGHUP)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    for handler, there in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        signal.signal(signal.SIGHUP, handler)
        assert (signal.SIGHUP in children.ending_signals()) == there
        assert {signal.SIGINT, signal.SIGTERM} <= set(children.ending_signals())


def test_a_state_directory_that_cannot_be_made(tmp_path: Path, run: Callable[..., str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="give another one by --state-dir or TLMD_STATE_DIR"):
        make_state_dir(tmp_path / "file" / "state")
    (tmp_path / "link").symlink_to(tmp_path / "there", target_is_directory=True)
    (tmp_path / "there").mkdir()
    assert "no daemon runs" in run("status", "--state-dir", tmp_path / "link", code=3)
