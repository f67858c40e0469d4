"""A child that holds a user's model: files that hide packages from it, and a parent that waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tlmd.data.config import CheckConfig
from tlmd.data.errors import BadInput
from tlmd.processes import children, shadows
from tlmd.processes.guarded_child import Channel, GuardedChild, serve


def answer(channel: Channel) -> None:
    """The child: a message after one second, and another one five seconds later."""
    for name, pause in (("one", 1), ("two", 5)):
        time.sleep(pause)
        channel.send(name)


def listen(folder: str) -> None:
    """The parent, which is suspended meanwhile."""
    limits = CheckConfig(stage_seconds=3.5)
    with GuardedChild(__name__, Path(folder) / "child.log", limits, "m") as child:
        child.send("begin")
        print("waits", flush=True)
        kinds = [kind for kind, _ in child.messages("one")]
        kinds += [kind for kind, _ in child.messages("two")]
    print(kinds)


@pytest.mark.slow
def test_a_parent_that_was_suspended_does_not_blame_the_child(tmp_path: Path) -> None:
    code = f"from tests.processes import test_guarded_child as t; t.listen({str(tmp_path)!r})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=children.environment()
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "waits\n"
        os.kill(parent.pid, signal.SIGSTOP)
        time.sleep(4.2)  # longer than the child may take
        os.kill(parent.pid, signal.SIGCONT)
        assert parent.stdout.read() == "['one', 'two']\n" and parent.wait() == 0


@pytest.mark.parametrize("package", ["numpy", "msgpack"])
def test_a_file_that_hides_a_package_is_named(package: str, tmp_path: Path) -> None:
    file = tmp_path / f"{package}.py"
    file.write_text("x = 1\n")
    command = [sys.executable, "-m", "tlmd.cli", "check", "some:model", "--state-dir"]
    done = subprocess.run(
        [*command, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=children.environment(),
        check=False,
    )
    line = f"tlmd: {file} shadows the package {package}, which tlmd needs; rename that file\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_child_names_it_although_it_has_ended(tmp_path: Path) -> None:
    (tmp_path / "msgpack.py").write_text("x = 1\n")
    log = tmp_path / "logs" / "child.log"
    with GuardedChild(
        "tlmd.client.model_child", log, CheckConfig(), "m", str(tmp_path), str(tmp_path)
    ) as child:
        child.send("accept", b"")
        with pytest.raises(BadInput, match=r"msgpack\.py shadows the package msgpack"):
            list(child.messages("accepted"))


def test_only_what_failed_is_blamed(tmp_path: Path) -> None:
    for name in ("test.py", "numpy.py", "tlmd.py", "only_mine.py"):
        (tmp_path / name).touch()
    folders = [str(tmp_path)]
    assert shadows.blamed("AttributeError: module 'torch' has no attribute 'x'", folders) == ""
    assert "numpy.py" in shadows.blamed("module 'numpy' has no attribute 'ndarray'", folders)
    for own in ("tlmd", "only_mine"):
        assert shadows.blamed(f"{tmp_path / own}.py line 3, cannot import '{own}'", folders) == ""
    (tmp_path / "numpy.py").rename(tmp_path / "other.py")
    (tmp_path / "numpy").mkdir()
    assert shadows.blamed("module 'numpy' has no attribute 'ndarray'", folders) == ""
    (tmp_path / "numpy" / "__init__.py").touch()
    assert "numpy/__init__.py shadows" in shadows.blamed("module 'numpy' has no", folders)


if __name__ == "__main__":
    sys.exit(serve(answer))
