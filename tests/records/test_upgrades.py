"""Files of a newer tlmd are refused in one line that says so; older ones are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest

from tests.records.test_store import record, task
from tests.support.fake_checkpoints import blob
from tlmd.alternatives.catalogue import make_weights
from tlmd.data import config, wire
from tlmd.data.errors import BadInput
from tlmd.records.dataset import read_dataset, write_dataset
from tlmd.records.store import RecordStore
from tlmd.records.task_file import load_tasks, read_tasks, save_tasks
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm import registry_state
from tlmd.tlm.checkpoint_registry import Registry
from tlmd.tlm.registry_state import RegistryState


def newer(data: bytes, version: int) -> bytes:
    """A file as a newer tlmd writes it: a higher version, one field more, and one in each item."""
    magic, _, *parts = msgpack.unpackb(data)
    parts = [[[*item, "new"] for item in part] for part in parts]
    packed: bytes = msgpack.packb([magic, version, *parts, "new"])
    return packed


def newer_dataset(path: Path) -> None:
    write_dataset(path, [task()], [record()])
    path.write_bytes(newer(path.read_bytes(), 2))
    read_dataset(path)


def newer_tasks(path: Path) -> None:
    save_tasks(path, [task()])
    path.write_bytes(newer(path.read_bytes(), 2))
    read_tasks(path)


def newer_checkpoint(path: Path) -> None:
    checkpoints.unpack(blob(1), path)
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 2}))
    checkpoints.read(path)


def newer_registry(path: Path) -> None:
    checkpoints.unpack(blob(0), path / "base")
    Registry(path, path / "base")
    (path / "current.json").write_text('{"schema": 99, "current": 7}')
    Registry(path, path / "base")


def newer_store(path: Path) -> None:
    with RecordStore(path) as store:
        store._db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    RecordStore(path, read_only=True)


@pytest.mark.parametrize(
    "make", [newer_dataset, newer_tasks, newer_checkpoint, newer_registry, newer_store]
)
def test_what_a_newer_tlmd_wrote_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"newer tlmd.*upgrade tlmd") as caught:
        make(tmp_path / "file")
    assert "\n" not in str(caught.value)


def test_a_key_of_a_newer_tlmd_is_named_with_this_version(tmp_path: Path) -> None:
    path = tmp_path / "tlmd.toml"
    path.write_text("[quantum]\nqubits = 3\n")
    with pytest.raises(BadInput, match=r"'quantum'.*tlmd \d.*has no such key"):
        config.load(path, environment={})


def test_tasks_of_the_first_tlmd_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.tasks"
    path.write_bytes(wire.pack([task("a"), task("b")]))
    assert load_tasks(path) == [task("a"), task("b")]


def test_a_registry_of_the_first_tlmd_is_read_and_upgraded(tmp_path: Path) -> None:
    checkpoints.unpack(blob(1), tmp_path / "r" / "v000001")
    current = tmp_path / "r" / "current.json"
    current.write_text('{"schema": 1, "current": 1, "last": 3, "promoted": [1]}')
    state = registry_state.read(tmp_path / "r", [1])
    assert state == RegistryState(1, 3, (1,), pinned=None, best=(1,))
    registry_state.write(tmp_path / "r", state)
    assert json.loads(current.read_text())["schema"] == 2
    assert registry_state.read(tmp_path / "r", [1]) == state


def test_winograd_weights_of_tasks_of_earlier_versions_have_no_panels() -> None:
    weights = np.random.default_rng(0).uniform(-1, 1, (3, 3, 5, 96)).astype(np.float32)
    panels = make_weights("winograd2", weights, (4, 4, 3, 5, 32))
    whole = make_weights("winograd2", weights, (4, 4, 5, 96))
    assert np.array_equal(panels.transpose(0, 1, 3, 2, 4).reshape(whole.shape), whole)
