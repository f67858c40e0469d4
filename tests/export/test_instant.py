"""Programs without measuring that turn out wrong: others take their place."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support import endtoend
from tlmd.corpus import known_programs
from tlmd.corpus.known_programs import KnownProgram, KnownPrograms
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.export import instant
from tlmd.export.instant import InstantPrograms
from tlmd.export.program_source import ProgramSource
from tlmd.lowering import acceptance, comparison
from tlmd.lowering.preparation import LoweredModel
from tlmd.space.hardware.target import resolve
from tlmd.space.space import TaskSpace, module_hash

TARGET = resolve("native", 1)


class Wrong(InstantPrograms):
    """Its library gives other outputs than the model, until it is refused."""

    def run(self, model: LoweredModel) -> comparison.Run:
        run = super().run(model)
        return lambda inputs: [np.zeros_like(output) for output in run(inputs)]


class WrongAtFirst(Wrong):
    """Only its first programs give other outputs."""

    refused = False

    def run(self, model: LoweredModel) -> comparison.Run:
        return InstantPrograms.run(self, model) if self.refused else super().run(model)

    def refuse(self) -> bool:
        self.refused = True
        return super().refuse()


MODELS = [endtoend.MODEL, "tests.support.models_in_parts:fourier"]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_wrong_programs_are_refused(model: str, tmp_path: Path) -> None:
    summary = compiled(model, Wrong(ProgramSource(tmp_path / "state"), TARGET, tmp_path))
    assert summary["error"] < 1e-4
    count = len(summary["tasks"])
    assert count > 2 and summary["programs"] == {"default": count}
    whole = summary["e2e"]
    assert whole["functions_with_record"] == whole["functions"] >= count


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_choices_replace_wrong_known_programs(model: str, tmp_path: Path) -> None:
    tasks = acceptance.accept(ModelSpec(model), TARGET).tasks
    files = [[one] for one in map(drawn, tasks) if one is not None]
    known_programs.write(tmp_path / known_programs.FILE, KnownPrograms(files))
    known = InstantPrograms(ProgramSource(tmp_path), TARGET, tmp_path)
    summary = compiled(model, known)
    assert summary["programs"]["known"] == len(summary["tasks"]) > 2
    wrong = WrongAtFirst(ProgramSource(tmp_path), TARGET, tmp_path)
    summary = compiled(model, wrong)
    assert summary["programs"] == {"predicted": len(summary["tasks"])}
    assert summary["error"] < 1e-4


def drawn(task: Task) -> KnownProgram | None:
    """A program of a direct task that pretends to be known."""
    if task.alternative:
        return None
    space = TaskSpace(task)
    candidate = next(filter(space.accepts, (space.random(Random(seed)) for seed in range(100))))
    digest = module_hash(space.finish(candidate).mod)
    return KnownProgram(TARGET.spec, task.name, candidate, digest, 1e-9)


def compiled(model: str, programs: InstantPrograms) -> dict[str, Any]:
    accepted = acceptance.accept(ModelSpec(model), TARGET, programs=programs)
    parts = [part for prepared in accepted.models for part in prepared.lowered]
    return instant.deliver(accepted, programs, programs.tasks(parts), None, 0.0).summary
