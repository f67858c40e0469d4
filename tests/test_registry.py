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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlmd.errors import BadInput, Failed
from tlmd.model import checkpoint as checkpoints
from tlmd.model import network
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.ranker import Ranker
from tlmd.model.registry import Registry


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Iterator[None]:
    """A network small enough to write hundreds of checkpoints of."""
    network.PRESETS["tiny"] = {"n_layer": 2, "n_embd": 4, "n_head": 1}
    yield
    del network.PRESETS["tiny"]


@pytest.fixture(scope="module")
def base(_tiny: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "shipped"
    checkpoints.save(made(7), directory)  # a base may say any version; here it is 0
    return directory


def made(version: int) -> Checkpoint:
    return Checkpoint(version, "tiny", network.create("tiny", version), Ranker(), {"made": version})


def blob(version: int) -> bytes:
    return checkpoints.to_bytes(made(version))


def accept(_new: Checkpoint, _old: Checkpoint) -> str:
    return ""


def refuse(_new: Checkpoint, _old: Checkpoint) -> str:
    return "held-out loss 2.31 against 1.90 nats"


def folders(directory: Path) -> list[int]:
    return sorted(int(path.name[1:]) for path in directory.glob("v*"))


def test_bytes_are_a_checkpoint_and_every_damage_is_noticed(tmp_path: Path) -> None:
    data = blob(3)
    again = checkpoints.from_bytes(data)
    assert (again.version, again.notes) == (3, {"made": 3})
    assert checkpoints.to_bytes(again) == data
    checkpoints.unpack(data, tmp_path / "v3")
    assert checkpoints.read(tmp_path / "v3") == data
    assert checkpoints.to_bytes(checkpoints.load(tmp_path / "v3")) == data
    assert checkpoints.from_bytes(checkpoints.read(tmp_path / "v3", 9)).version == 9


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_flipped_bit_and_no_missing_byte_passes(data: st.DataObject) -> None:
    whole = blob(3)
    at = data.draw(st.integers(0, 400) | st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        cut = bytes(damaged)
    else:
        cut = whole[:at]
    with TemporaryDirectory() as directory:
        for use in (checkpoints.from_bytes, lambda d: checkpoints.unpack(d, Path(directory) / "v")):
            with pytest.raises(BadInput):
                use(cut)
        assert not list(Path(directory).iterdir())


def test_a_version_is_published_refused_and_rolled_back(tmp_path: Path, base: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look(new: Checkpoint, old: Checkpoint) -> str:
        seen.append((new.version, old.version))
        return ""

    registry = Registry(tmp_path / "r", base)
    assert registry.current == 0
    assert checkpoints.from_bytes(registry.blob()).version == 0
    assert registry.publish(blob(1), 1, look).accepted
    assert registry.publish(blob(2), 2, look).accepted
    assert seen == [(1, 0), (2, 1)]
    refused = registry.publish(blob(3), 3, refuse)
    assert not refused.accepted and "2.31" in refused.reason
    assert folders(tmp_path / "r") == [1, 2]
    assert (registry.current, registry.next_version()) == (2, 4)
    registry.rollback(1)
    assert registry.blob() == blob(1) and registry.blob(2) == blob(2)
    again = Registry(tmp_path / "r", base)
    assert (again.current, again.next_version()) == (1, 4)
    assert [(e.version, e.current) for e in again.versions()] == [(0, False), (1, True), (2, False)]
    assert again.versions()[2].notes == {"made": 2}
    again.rollback(0)
    assert again.current == 0


def test_what_makes_no_sense_is_refused_and_leaves_nothing(tmp_path: Path, base: Path) -> None:
    registry = Registry(tmp_path, base)
    registry.publish(blob(1), 1, accept)
    for use in (registry.promote, registry.rollback, registry.blob):
        with pytest.raises(BadInput, match="version 9; there are 0, 1"):
            use(9)
    with pytest.raises(BadInput, match="the next is 2"):
        registry.publish(blob(1), 1, accept)
    with pytest.raises(BadInput, match="says version 5"):
        registry.publish(blob(5), 6, accept)
    with pytest.raises(BadInput, match="damaged"):
        registry.publish(blob(7)[:-1], 7, accept)
    assert (registry.current, registry.next_version()) == (1, 8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["current.json", "v000001"]


def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path, base)
    registry.publish(blob(1), 1, accept)

    def full(_self: Path, _content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(Failed, match="No space left"):
            registry.publish(blob(2), 2, accept)
    assert folders(tmp_path) == [1] and registry.blob() == blob(1)
    assert registry.publish(blob(3), 3, accept).accepted


def test_a_bad_version_in_force_gives_way_to_an_older_one(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(tmp_path, base)
    for version in (1, 2, 3, 4):
        registry.publish(blob(version), version, accept)
    shutil.rmtree(tmp_path / "v000004")  # missing
    weights = tmp_path / "v000003" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")  # damaged
    manifest = tmp_path / "v000002" / "manifest.json"
    plain = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**plain, "vocabulary": "another"}))  # foreign
    again = Registry(tmp_path, base)
    assert again.current == 1 and again.blob() == blob(1)
    assert "another vocabulary" in caplog.text and "version 1 is in force" in caplog.text
    assert [e.version for e in again.versions()] == [0, 1, 3]
    assert again.next_version() == 5
    (tmp_path / "v000001" / "manifest.json").unlink()
    assert Registry(tmp_path, base).current == 0


def test_a_lost_current_file_costs_no_version(tmp_path: Path, base: Path) -> None:
    registry = Registry(tmp_path, base, keep=2)
    for version in (1, 2, 3):
        registry.publish(blob(version), version, accept)
        if version == 1:
            registry.promote(1)
    (tmp_path / "current.json").write_text("{")
    again = Registry(tmp_path, base, keep=2)
    assert again.current == 3
    for version in (4, 5, 6):
        assert again.publish(blob(version), version, accept).accepted
    assert folders(tmp_path) == [1, 2, 3, 5, 6]  # which ones were promoted was lost, so all are


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("publish", "publish", "refuse", "promote", "rollback", "open")),
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
        given_away, published, promoted, current = 0, [0], set(), 0
        for action, choice in actions:
            there = [0, *folders(directory)]
            picked = there[choice % len(there)]
            version = registry.next_version()
            assert version > given_away
            if action in ("publish", "refuse"):
                check = accept if action == "publish" else refuse
                given_away = version
                assert registry.publish(blob(version), version, check).accepted == (
                    action == "publish"
                )
                if action == "publish":
                    published.append(version)
                    current = version
            elif action == "open":
                registry = Registry(directory, base, keep)
            else:
                (registry.promote if action == "promote" else registry.rollback)(picked)
                promoted |= {picked} if action == "promote" else set()
                current = picked
            there = folders(directory)
            assert registry.current == current and current in [0, *there]
            assert checkpoints.from_bytes(registry.blob()).version == current
            last = [v for v in published if v][-keep:]
            assert set(there) == {*last, *(promoted - {0}), *({current} - {0})}
            assert [e.version for e in registry.versions()] == [0, *there]
            assert {e.version for e in registry.versions() if e.promoted} == promoted


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
