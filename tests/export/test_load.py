"""`tlmd.load`: a tuned model is called as the original is, and returns what it returns."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm

import tlmd
from tests.support import difficult_models
from tlmd.data.errors import BadInput
from tlmd.export import whole_model
from tlmd.export.library import library_entry
from tlmd.lowering import lowering
from tlmd.models.pytorch import torch_frontend
from tlmd.space.hardware import target as targets


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model with keyword inputs and a dataclass as its output."""
    directory = tmp_path_factory.mktemp("out")
    info = targets.resolve("native", 1)
    target = targets.tvm_target(info)
    source = torch_frontend.from_module("structured", *difficult_models.structured())
    compiled = lowering.compile_model(lowering.lower(source.module, target), target)
    library = whole_model.link(compiled.executable, directory / "model.so")
    entry = library_entry(library.name, source.inputs)
    whole_model.write_runners(directory, source, [entry], info)
    return directory


def inputs() -> tuple[torch.nn.Module, dict[str, Any]]:
    return difficult_models.structured()


def test_torch_tensors_in_and_the_original_structure_out(out: Path) -> None:
    module, example = inputs()
    loaded, expected = tlmd.load(out), module(**example)
    for found in (
        loaded(**example),
        loaded(example["ids"], example["mask"]),
        loaded(example["ids"].int(), mask=example["mask"]),  # a safe conversion
    ):
        assert type(found) is difficult_models.Answer and found.loss is None
        torch.testing.assert_close(found.scores, expected.scores)
        torch.testing.assert_close(found.extra["hidden"][0], expected.extra["hidden"][0])
        assert found.extra["hidden"][1] is None
        assert torch.equal(found.extra["ids"][1], expected.extra["ids"][1])


def test_numpy_arrays_in_and_out(out: Path) -> None:
    module, example = inputs()
    found = tlmd.load(out)(example["ids"].numpy(), example["mask"].numpy())
    assert isinstance(found.scores, np.ndarray)
    np.testing.assert_allclose(found.scores, module(**example).scores.detach(), rtol=1e-5)


def test_a_result_stays_when_the_model_is_called_again(out: Path) -> None:
    _, example = inputs()
    loaded = tlmd.load(out)
    first = loaded(**example).scores
    kept = first.clone()
    loaded(ids=example["ids"] * 0, mask=example["mask"])
    assert torch.equal(first, kept)


def test_inputs_that_do_not_fit(out: Path) -> None:
    _, example = inputs()
    loaded = tlmd.load(out)
    with pytest.raises(ValueError, match=r"compiled for ids \(2, 5\), mask \(2, 5\), not for"):
        loaded(example["ids"][:1], example["mask"][:1])
    with pytest.raises(TypeError, match="ids must have dtype int64, not float32"):
        loaded(example["ids"].float(), example["mask"])
    with pytest.raises(TypeError, match=r"was compiled with scale=2\.0"):
        loaded(**(example | {"scale": 3.0}))
    with pytest.raises(TypeError, match="needs the argument mask"):
        loaded(example["ids"])


def test_a_folder_without_a_model(out: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"model\.json is missing"):
        tlmd.load(tmp_path)
    (tmp_path / "model.json").write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        tlmd.load(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(BadInput, match="another version"):
        tlmd.load(tmp_path)


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a card")
def test_a_model_for_a_card_needs_one(out: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(out, tmp_path / "out")
    document = json.loads((copied / "model.json").read_text())
    assert document["device"] == "cpu"
    (copied / "model.json").write_text(json.dumps({**document, "device": "cuda"}))
    with pytest.raises(BadInput, match=r"cannot load .*model\.so; is there a cuda card\?"):
        tlmd.load(copied)


def test_a_model_of_an_older_tlmd_runs_on_the_cpu(out: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(out, tmp_path / "out")
    document = json.loads((copied / "model.json").read_text())
    del document["device"]
    (copied / "model.json").write_text(json.dumps(document))
    module, example = inputs()
    torch.testing.assert_close(tlmd.load(copied)(**example).scores, module(**example).scores)
