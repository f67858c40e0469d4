"""Models in parts that are written, loaded and called as their originals are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import tlmd
from tests.support import models_in_parts
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.export import model_in_parts, whole_model
from tlmd.lowering import acceptance, lowering
from tlmd.space.hardware import target as targets

HERE = "tests.support.models_in_parts"
INFO = targets.resolve("native", 1)


def written(name: str, folder: Path) -> Any:
    """The model in its parts, with TVM's default schedules, loaded again."""
    (model,) = acceptance.accept(ModelSpec(name), INFO).models
    target = targets.tvm_target(INFO)
    files = [
        whole_model.link(
            lowering.compile_model(part.lowered, target).executable, folder / f"model-{number}.so"
        )
        for number, part in enumerate(model.lowered, 1)
    ]
    entry = model_in_parts.save(model, files, folder, 1)
    whole_model.write_runners(folder, model.source, [entry], INFO, model.flow.framework)
    return tlmd.load(folder)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factory", ["fourier", "selecting", "branching"])
def test_torch_tensors_and_arrays_in_and_the_structure_out(factory: str, tmp_path: Path) -> None:
    loaded = written(f"{HERE}:{factory}", tmp_path)
    module, (x,) = getattr(models_in_parts, factory)()
    for value in (x, torch.randn_like(x)):
        with torch.no_grad():
            expected = module(value)
        close(loaded(value), expected)
        found = loaded(value.numpy())
        if isinstance(found, dict):
            assert list(found) == list(expected) and isinstance(found["all"], list)
            found, expected = found["rows"], expected["rows"]
        assert isinstance(found, np.ndarray)
        close(torch.from_numpy(found), expected)
    with pytest.raises(ValueError, match="was compiled for"):
        loaded(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="must have dtype float32"):
        loaded(x.to(torch.complex64))


def test_state_is_kept_between_calls(tmp_path: Path) -> None:
    loaded = written(f"{HERE}:counting", tmp_path)
    module, (x,) = models_in_parts.counting()
    for _ in range(3):
        with torch.no_grad():
            expected = module(x)
        found = loaded(x)
        close(found, expected)
        found.zero_()  # what a caller does with an output is not in the next answer
    with torch.no_grad():
        close(tlmd.load(tmp_path)(x), models_in_parts.counting()[0](x))  # from its beginning


def test_what_the_model_writes_to_its_input_is_there(tmp_path: Path) -> None:
    loaded = written(f"{HERE}:writing", tmp_path)
    module, (x,) = models_in_parts.writing()
    for given in (x.clone(), x.numpy().copy()):
        mine = x.clone()
        with torch.no_grad():
            expected = module(mine)
        close(torch.as_tensor(loaded(given)), expected)
        close(torch.as_tensor(given), mine)


def test_random_numbers_are_those_of_the_same_seed(tmp_path: Path) -> None:
    loaded = written(f"{HERE}:drawing", tmp_path)
    module, (x,) = models_in_parts.drawing()
    torch.manual_seed(7)
    with torch.no_grad():
        expected = module(x)
    torch.manual_seed(7)
    first = loaded(x)
    close(first, expected)
    assert not torch.allclose(loaded(x), first)


@pytest.mark.parametrize("kind", ["DFT", "Loop", "strings", "sequence", "custom"])
def test_parts_in_onnx_runtime(kind: str, tmp_path: Path) -> None:
    path = models_in_parts.onnx_file(kind, tmp_path)
    loaded = written(str(path), tmp_path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    more = [np.array(2)] if len(session.get_inputs()) > 1 else []
    names = [value.name for value in session.get_inputs()]
    (expected,) = session.run(None, dict(zip(names, [x, *more], strict=True)))
    (found,) = loaded(x, *more)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    (tensor,) = loaded(torch.from_numpy(x), *map(torch.as_tensor, more))
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_damaged_part_is_one_line(tmp_path: Path) -> None:
    written(f"{HERE}:fourier", tmp_path)
    (part,) = tmp_path.glob("part-*.py")
    part.write_text("(")
    with pytest.raises(BadInput, match="tune the model again") as caught:
        tlmd.load(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
