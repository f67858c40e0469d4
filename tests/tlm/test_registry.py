"""The registry with real checkpoints: published, refused, rolled back, replaced where damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_checkpoints import accept, folders, refuse
from tlmd.data.errors import BadInput, Failed
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm import network
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.checkpoint_registry import GateResult, Registry
from tlmd.tlm.cost_model import CostModel


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Iterator[None]:
    """A network small enough to write hundreds of checkpoints of."""
    network.PRESETS["tiny"] = {"layers": 2, "width": 4, "heads": 1}
    yield
    del network.PRESETS["tiny"]


@pytest.fixture(scope="module")
def base(_tiny: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "shipped"
    checkpoints.save(made(7), directory)  # a base may say any version; here it is 0
    return directory


def made(version: int) -> Checkpoint:
    return Checkpoint(
        version, "tiny", network.create("tiny", version), CostModel(), {"made": version}
    )


def blob(version: int) -> bytes:
    return checkpoints.to_bytes(made(version))


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
    seen: list[tuple[int, list[int]]] = []

    def look(new: Checkpoint, rivals: Sequence[Checkpoint]) -> GateResult:
        seen.append((new.version, [rival.version for rival in rivals]))
        return GateResult("", (new.version,))

    registry = Registry(tmp_path / "r", base)
    assert registry.current == 0
    assert checkpoints.from_bytes(registry.blob()).version == 0
    assert registry.publish(blob(1), 1, look).accepted
    assert registry.publish(blob(2), 2, look).accepted
    assert seen == [(1, [0]), (2, [1])]
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
            registry.unpin()
    (tmp_path / "current.json").write_text("{")
    again = Registry(tmp_path, base, keep=2)
    assert again.current == 3
    for version in (4, 5, 6):
        assert again.publish(blob(version), version, accept).accepted
    assert folders(tmp_path) == [1, 2, 3, 5, 6]  # which ones were promoted was lost, so all are
