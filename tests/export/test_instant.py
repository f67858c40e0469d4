"""Programs without measuring that turn out wrong: TVM's default schedules take their place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import endtoend
from tlmd.data.model_spec import ModelSpec
from tlmd.export import instant
from tlmd.export.instant import InstantPrograms
from tlmd.export.program_source import ProgramSource
from tlmd.lowering import acceptance, comparison
from tlmd.lowering.preparation import LoweredModel
from tlmd.space.hardware.target import resolve

TARGET = resolve("native", 1)


class Wrong(InstantPrograms):
    """Its library gives other outputs than the model, until it is refused."""

    def run(self, model: LoweredModel) -> comparison.Run:
        run = super().run(model)
        return lambda inputs: [np.zeros_like(output) for output in run(inputs)]


@pytest.mark.slow
@pytest.mark.parametrize("model", [endtoend.MODEL, "tests.support.models_in_parts:fourier"])
def test_wrong_programs_are_refused(model: str, tmp_path: Path) -> None:
    programs = Wrong(ProgramSource(tmp_path / "state"), TARGET, tmp_path)
    accepted = acceptance.accept(ModelSpec(model), TARGET, programs=programs)
    assert accepted.error is not None and accepted.error < 1e-4
    parts = [part for prepared in accepted.models for part in prepared.lowered]
    result = instant.deliver(accepted, programs, programs.tasks(parts), None, 0.0)
    count = len(result.summary["tasks"])
    assert count > 2 and result.summary["programs"] == {"default": count}
    whole = result.summary["e2e"]
    assert whole["functions_with_record"] == whole["functions"] >= count
