"""On a real CUDA card: programs are measured, and a compiled model runs there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm

import tlmd
from benchmarks.common.setting import tasks
from tests.support import endtoend
from tlmd.data.config import SHIPPED
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import MeasureInput, Status
from tlmd.export import whole_model
from tlmd.export.library import library_entry
from tlmd.export.whole_model_times import WholeModelTimer
from tlmd.generate.generator import Generator
from tlmd.lowering import lowering
from tlmd.measure.cores.core_plan import card_cores
from tlmd.measure.measurer import Measurer
from tlmd.models import frontends
from tlmd.space.hardware import target as targets
from tlmd.tlm import checkpoint

pytestmark = [
    pytest.mark.card,
    pytest.mark.skipif(not tvm.cuda(0).exist, reason="there is no card"),
]


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    with Measurer(card_cores(None, 0), tmp_path_factory.mktemp("references")) as one:
        yield one


def test_written_programs_are_timed_and_verified(measurer: Measurer) -> None:
    generator = Generator(checkpoint.load(SHIPPED), seed=0)
    for task in tasks(targets.resolve("cuda")):
        baseline = measurer.baseline(task)
        assert 0 < baseline.seconds < 1, (task.name, baseline)
        proposals, _ = generator.write(task, 4, [])
        inputs = [MeasureInput(p.candidate.id, p.trace) for p in proposals]
        outcomes = measurer.measure(task, inputs)
        for outcome in outcomes:
            assert outcome.status is Status.OK and outcome.verified, (task.name, outcome)
            assert 1e-6 < outcome.seconds < 0.1


def test_a_model_for_a_card_is_timed_loaded_and_run(tmp_path: Path) -> None:
    info = targets.resolve("cuda")
    spec = ModelSpec(endtoend.MODEL)
    source = frontends.load(spec)
    target = targets.tvm_target(info)
    compiled = lowering.compile_model(lowering.lower(source.module, target), target)
    library = whole_model.link(compiled.executable, tmp_path / "model.so")
    inputs, entry = source.random_inputs(0), library_entry(str(library), source.inputs)
    with WholeModelTimer(spec, inputs, (0,), tmp_path, info.device) as timer:
        times = timer.measure(lambda: entry, entry)
    assert times.max_abs_err is not None and times.max_abs_err < 1e-3 and times.tuned_ms > 0
    assert bool(times.pytorch_ms) == torch.cuda.is_available()

    whole_model.write_runners(tmp_path, source, [entry], info)
    loaded = tlmd.load(tmp_path)
    found = loaded(*inputs)
    assert isinstance(found, np.ndarray)
    tensor = loaded(*map(torch.from_numpy, inputs))
    assert tensor.device.type == "cpu"
    np.testing.assert_allclose(tensor, found, rtol=1e-4, atol=1e-5)
    if torch.cuda.is_available():
        there = loaded(*(torch.from_numpy(array).cuda() for array in inputs))
        assert there.device.type == "cuda"
        np.testing.assert_allclose(there.cpu(), found, rtol=1e-4, atol=1e-5)
    command = [sys.executable, str(tmp_path / "run.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "one run:" in done.stdout, done.stderr
