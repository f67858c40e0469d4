"""The registry: whole versions only, whatever is killed when; none lost, none counted twice."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fake_checkpoints
from tests.support.fake_checkpoints import accept, blob, folders, refuse
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.checkpoint_registry import Registry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _no_networks() -> Iterator[None]:
    with fake_checkpoints.in_place_of_networks():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "shipped"
    checkpoints.unpack(blob(7), directory)  # a base may say any version; here it is 0
    return directory


def version_of(data: bytes) -> int:
    return int(json.loads(msgpack.unpackb(data)["manifest"])["version"])


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("publish", "publish", "refuse", "promote", "rollback", "unpin", "open")),
        st.integers(0, 12),
    ),
    max_size=14,
)


@given(ACTIONS, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_any_sequence_keeps_what_it_must(
    base: Path, actions: list[tuple[str, int]], keep: int
) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        registry = Registry(directory, base, keep)
        given_away, published, promoted, current, pinned = 0, [0], set(), 0, False
        for action, choice in actions:
            there = [0, *folders(directory)]
            picked = there[choice % len(there)]
            version = registry.next_version()
            assert version > given_away
            if action in ("publish", "refuse"):
                check = accept if action == "publish" else refuse
                given_away = version
                result = registry.publish(blob(version), version, check)
                assert result.accepted == (action == "publish" and not pinned)
                if action == "publish":
                    published.append(version)
                    current = current if pinned else version
            elif action == "open":
                registry = Registry(directory, base, keep)
            elif action == "unpin":
                registry.unpin()
                pinned = False
            else:
                (registry.promote if action == "promote" else registry.rollback)(picked)
                promoted |= {picked} if action == "promote" else set()
                current, pinned = picked, True
            there = folders(directory)
            assert registry.current == current and current in [0, *there]
            assert version_of(registry.blob()) == current
            last = [v for v in published if v][-keep:]
            assert set(there) == {*last, *(promoted - {0}), *({current} - {0})}
            assert [e.version for e in registry.versions()] == [0, *there]
            assert {e.version for e in registry.versions() if e.promoted} == promoted
            assert {e.version for e in registry.versions() if e.pinned} == {current} & {
                current if pinned else None
            }


class Killed:
    """Counts every call that changes the disk; kills the process before (or amid) the n-th one."""

    CALLS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "chmod")

    def __init__(self, at: int) -> None:
        self.count = 0
        self._at = at
        for name in self.CALLS:
            setattr(os, name, self._wrapped(getattr(os, name)))
        for name in ("write_bytes", "write_text"):
            setattr(Path, name, lambda path, data: self._torn(path, data))

    def step(self) -> None:
        self.count += 1
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return call(*args, **kwargs)

        return counted

    def _torn(self, path: Path, data: bytes | str) -> None:
        """A write that may end in the middle."""
        whole = data.encode() if isinstance(data, str) else data
        with open(path, "wb", buffering=0) as file:
            self.step()
            file.write(whole[: len(whole) // 2])
            self.step()
            file.write(whole[len(whole) // 2 :])


def run_killed(action: Callable[[], None], at: int) -> int | None:
    """Run `action` in a child that is killed at its step `at`; its steps if it got through."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            killed = Killed(at)
            action()
            os.write(writing, str(killed.count).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        steps = pipe.read()
    _, status = os.waitpid(child, 0)
    if steps:
        return int(steps)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return None


def opened(action: Callable[[Registry], object], directory: Path, base: Path) -> None:
    action(Registry(directory, base, 2))


def crash_everywhere(
    start: Path, base: Path, work: Path, action: Callable[[Registry], object], whole: set[int]
) -> int:
    """Kill `action` at each of its steps, on a copy of `start`; what is left must serve `whole`."""
    total = 0
    for at in range(1, 500):
        directory = work / str(at)
        shutil.copytree(start, directory)
        steps = run_killed(functools.partial(opened, action, directory, base), at)
        survivor = Registry(directory, base, 2)
        assert survivor.current in whole
        promoted = {e.version for e in survivor.versions() if e.promoted}
        assert {1} <= promoted <= {1, 2}  # version 3 only where `current.json` had been torn
        for version in folders(directory):
            assert survivor.blob(version) == blob(version)
        assert not [p.name for p in directory.iterdir() if p.name.startswith(".")]
        survivor.unpin()
        version = survivor.next_version()
        assert version > survivor.current
        assert survivor.publish(blob(version), version, accept).accepted
        assert Registry(directory, base, 2).blob() == blob(version)
        shutil.rmtree(directory)
        total = at
        if steps is not None:
            break
    return total


@pytest.fixture
def start(tmp_path: Path, base: Path) -> Path:
    """Versions 1 (promoted), 2 and 3 with two to be kept; 3 is in force."""
    registry = Registry(tmp_path / "start", base, 2)
    for version in (1, 2, 3):
        registry.publish(blob(version), version, accept)
        if version == 1:
            registry.promote(1)
            registry.unpin()
    return tmp_path / "start"


def test_a_kill_at_any_step_of_publishing_leaves_a_whole_version(
    start: Path, base: Path, tmp_path: Path
) -> None:
    steps = crash_everywhere(start, base, tmp_path, lambda r: r.publish(blob(4), 4, accept), {3, 4})
    assert steps > 30  # every write, sync, rename and removal was one


def test_a_kill_amid_a_refusal_or_a_change_leaves_a_whole_version(
    start: Path, base: Path, tmp_path: Path
) -> None:
    def action(registry: Registry) -> None:
        registry.publish(blob(4), 4, refuse)
        registry.promote(2)
        registry.rollback(1)
        registry.unpin()

    crash_everywhere(start, base, tmp_path, action, {1, 2, 3})


def test_a_kill_while_opening_after_a_kill_is_harmless(
    start: Path, base: Path, tmp_path: Path
) -> None:
    (start / "v000003" / "manifest.json").unlink()  # falls back
    shutil.rmtree(start / "v000003")
    shutil.copytree(start / "v000002", start / ".v000004.draft")
    shutil.copytree(start / "v000002", start / ".v000001.gone")
    (start / ".current.draft").write_text("{")
    steps = crash_everywhere(start, base, tmp_path, lambda _registry: None, {2})
    assert steps > 10
