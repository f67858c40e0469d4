"""A version that a person has chosen stays in use; versions do not get worse step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import fake_checkpoints
from tests.support.fake_checkpoints import accept, blob, folders
from tlmd.data.config import RegistryConfig
from tlmd.learn.gate import EvalResult, ranked
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.checkpoint_registry import GateResult, Registry


@pytest.fixture(scope="module", autouse=True)
def _no_networks() -> Iterator[None]:
    with fake_checkpoints.in_place_of_networks():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "shipped"
    checkpoints.unpack(blob(0), directory)
    return directory


class Gate:
    """The real gate, with known results of each version in place of networks."""

    def __init__(self, results: dict[int, EvalResult]) -> None:
        self._results = results

    def __call__(self, new: Checkpoint, rivals: Sequence[Checkpoint]) -> GateResult:
        known = {rival.version: self._results[rival.version] for rival in rivals}
        return ranked(new.version, self._results[new.version], known)


@pytest.mark.parametrize("choose", ["promote", "rollback"])
def test_a_chosen_version_stays_in_force_until_it_is_unpinned(
    tmp_path: Path, base: Path, choose: str
) -> None:
    registry = Registry(tmp_path, base, keep=2)
    for version in (1, 2):
        registry.publish(blob(version), version, accept)
    getattr(registry, choose)(1)
    for version in (3, 4, 5):
        told = registry.publish(blob(version), version, accept)
        assert not told.accepted and "version 1 is pinned" in told.reason
        registry = Registry(tmp_path, base, keep=2)
        assert registry.current == 1
    assert folders(tmp_path) == [1, 4, 5], "they passed, so they are kept"
    assert [e.version for e in registry.versions() if e.pinned] == [1]
    registry.unpin()
    assert registry.current == 1
    assert registry.publish(blob(6), 6, accept).accepted and registry.current == 6


@given(st.lists(st.tuples(st.floats(-0.6, 0.4), st.floats(-0.1, 0.08)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_no_version_in_force_is_worse_than_the_best_by_more_than_is_tolerated(
    base: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, float]]
) -> None:
    tolerated = RegistryConfig()
    registry = Registry(tmp_path_factory.mktemp("r"), base, keep=1)
    results = {0: EvalResult(True, 5.0, 0.6)}
    in_force = [0]
    for version, (nats, order) in enumerate(steps, 1):
        now = results[registry.current]
        results[version] = EvalResult(True, now.nats + nats, now.order + order)
        if registry.publish(blob(version), version, Gate(results)).accepted:
            in_force.append(version)
        now = results[registry.current]
        best_nats = min(results[v].nats for v in in_force)
        best_order = max(results[v].order for v in in_force)
        assert now.nats <= best_nats + tolerated.tolerated_nats
        assert now.order >= best_order - tolerated.tolerated_order


def test_each_step_down_is_compared_with_the_best(tmp_path: Path, base: Path) -> None:
    """Three times by less than what is tolerated is more than what is tolerated."""
    results = {v: EvalResult(True, 1.0, 0.8 - 0.03 * v) for v in range(4)}
    registry = Registry(tmp_path, base, keep=1)
    accepted = [registry.publish(blob(v), v, Gate(results)).accepted for v in (1, 2, 3)]
    assert accepted == [True, False, False] and registry.current == 1


def test_a_lost_best_version_is_no_reason_to_stop(tmp_path: Path, base: Path) -> None:
    results = {v: EvalResult(True, 1.0, 0.8 - 0.03 * (v == 2)) for v in range(4)}
    registry = Registry(tmp_path, base)
    for version in (1, 2):
        assert registry.publish(blob(version), version, Gate(results)).accepted
    (tmp_path / "v000001" / "manifest.json").unlink()
    assert registry.publish(blob(3), 3, Gate(results)).accepted


def test_a_registry_starts_without_building_a_network(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds in which no generator can start, most of all on a busy machine."""
    Registry(tmp_path, base).publish(blob(1), 1, accept)
    Registry(tmp_path, base).publish(blob(2), 2, accept)

    def refuse_to_build(directory: Path) -> Checkpoint:
        raise AssertionError(directory)

    monkeypatch.setattr(checkpoints, "load", refuse_to_build)
    assert Registry(tmp_path, base).current == 2
    (tmp_path / "v000002" / "model.safetensors").write_bytes(b"damaged")
    assert Registry(tmp_path, base).current == 1, "files are checked all the same"
