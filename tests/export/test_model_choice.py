"""Alternatives that are nearly as fast: the model gets the one that is faster inside of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tlmd
from tests.support.alternative_programs import native_by_vectors
from tests.support.measured_tasks import measured
from tlmd.data.model_spec import ModelSpec
from tlmd.export import in_model, libraries, model_choice, whole_model
from tlmd.export.libraries import TunedLibrary
from tlmd.export.library import library_entry
from tlmd.export.result import Result, TaskResult
from tlmd.lowering import alternatives
from tlmd.lowering.alternatives import with_alternatives
from tlmd.lowering.preparation import LoweredModel, lower_source
from tlmd.models.pytorch.torch_frontend import from_module

pytestmark = pytest.mark.slow

INFO = native_by_vectors()
X = torch.randn(32, 64)


class Network(nn.Module):
    """Two equal layers and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.third = nn.Linear(64, 128)

    def forward(self, x: torch.Tensor) -> Any:
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(scope="module")
def lowered(network: nn.Module) -> LoweredModel:
    return lower_source(ModelSpec("network"), from_module("network", network, (X,)), INFO)


def result(lowered: LoweredModel, packed_s: float) -> Result:
    """A result where direct programs take 10 us, and packed ones `packed_s`."""
    states = [
        measured(task, packed_s if task.alternative else 1e-5)
        for task in with_alternatives(lowered.tasks)
    ]
    return Result("network", INFO, 0, states)


def _names(found: Result) -> list[str]:
    return [row.chosen.alternative for row in found.rows() if row.direct.constants]


@pytest.mark.parametrize(
    ("packed_s", "best", "has_rivals"),
    [(0.5e-5, "packed", False), (0.9e-5, "packed", True), (1.1e-5, "", True), (2e-5, "", False)],
)
def test_rivals_are_nearly_as_fast(
    lowered: LoweredModel, packed_s: float, best: str, has_rivals: bool
) -> None:
    found = result(lowered, packed_s)
    assert _names(found) == [best, best]
    rivals = found.rivals()
    assert len(rivals) == (2 if has_rivals else 0)
    found.preferred = rivals
    if has_rivals:
        assert _names(found) == ["" if best else "packed"] * 2


def test_functions_are_timed_inside_of_the_model(lowered: LoweredModel, tmp_path: Path) -> None:
    found = result(lowered, 0.9e-5)
    (library,) = libraries.tuned([lowered], found, tmp_path)
    turns = in_model.measure([library.path] * 2, [X.numpy()], (0,), tmp_path)
    chosen = {row.chosen.name for row in found.rows() if row.chosen.alternative}
    assert len(chosen) == 2
    assert len(turns[0]) == len(turns[1]) >= 5
    for one in [*turns[0], *turns[1]]:
        assert chosen <= one.keys()
        assert all(0 < one[name] < 1 for name in chosen)


def test_a_rival_that_is_faster_inside_is_exported(
    lowered: LoweredModel, network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = result(lowered, 0.9e-5)
    twice, once = sorted((r for r in found.rows() if r.direct.constants), key=_calls, reverse=True)
    names = {key: name for name, key in alternatives.direct_tasks(lowered.lowered, {}).items()}
    packed = {twice.chosen.name: 2e-6, once.chosen.name: 1e-6}
    direct = {names[twice.direct.id]: 1e-6, names[once.direct.id]: 2e-6}
    monkeypatch.setattr(in_model, "measure", lambda *_: [[packed] * 5, [direct] * 5])
    models, cores = [lowered], (0,)
    best = libraries.tuned(models, found, tmp_path / "out")
    rivals = model_choice.compile_rivals(models, found, tmp_path / "rivals")
    assert model_choice.choose(models, found, best, rivals, cores, tmp_path)
    assert {r.direct.id: r.chosen.alternative for r in found.rows() if r.direct.constants} == {
        twice.direct.id: "",
        once.direct.id: "packed",
    }
    (library,) = libraries.tuned(models, found, tmp_path / "out")
    entry = library_entry(library.path.name, lowered.source.inputs)
    whole_model.write_runners(tmp_path / "out", lowered.source, [entry], INFO)
    want = network(X).detach().numpy()
    np.testing.assert_allclose(tlmd.load(tmp_path / "out")(X.numpy()), want, atol=1e-5)


@pytest.mark.parametrize(
    ("disturbed", "is_chosen"), [(0, True), (2, True), (3, False), (12, False)]
)
def test_a_rival_that_is_slower_in_some_turns_is_left_alone(
    lowered: LoweredModel,
    disturbed: int,
    is_chosen: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = result(lowered, 0.9e-5)
    names = {key: name for name, key in alternatives.direct_tasks(lowered.lowered, {}).items()}
    rows = [row for row in found.rows() if row.direct.constants]
    packed = {row.chosen.name: 2e-6 for row in rows}
    fast, slow = ({names[row.direct.id]: seconds for row in rows} for seconds in (1e-6, 3e-6))
    turns = [slow] * disturbed + [fast] * (12 - disturbed)
    monkeypatch.setattr(in_model, "measure", lambda *_: [[packed] * 12, turns])
    some = [TunedLibrary(tmp_path / "some.so", 2, 2)]
    assert model_choice.choose([lowered], found, some, some, (0,), tmp_path) is is_chosen
    assert _names(found) == ["" if is_chosen else "packed"] * 2


def test_without_rivals_nothing_is_compiled_or_timed(lowered: LoweredModel, tmp_path: Path) -> None:
    found = result(lowered, 2e-5)
    assert model_choice.compile_rivals([lowered], found, tmp_path) == []
    assert not model_choice.choose([lowered], found, [], [], (0,), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_timed_costs_only_the_choice(
    lowered: LoweredModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = result(lowered, 0.9e-5)
    missing = [TunedLibrary(tmp_path / "missing.so", 2, 2)]
    assert not model_choice.choose([lowered], found, missing, missing, (0,), tmp_path)
    assert _names(found) == ["packed", "packed"]
    assert "no choice inside of the model: timing inside of the model failed" in caplog.text


def _calls(row: TaskResult) -> int:
    return row.direct.weight
