"""Models of transformers from a directory or by their type; weights from .safetensors only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.models import factories, frontends, huggingface

SMALL = {"vocab_size": 90, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory as `save_pretrained` writes it."""
    torch.manual_seed(1)
    config = transformers.BertConfig(**SMALL, intermediate_size=24, num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    return tmp_path


def change(directory: Path, **entries: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def refused(directory: Path, task: str = "") -> str:
    with pytest.raises(BadInput) as caught:
        huggingface.load_directory(directory, task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_is_loaded_with_its_weights(directory: Path) -> None:
    source = frontends.load(ModelSpec(str(directory)))
    assert [i.name for i in source.inputs] == ["input_ids"]
    assert [path for path, _ in source.outputs.tensors()] == ["logits"]
    original = transformers.BertForSequenceClassification.from_pretrained(directory).eval()
    ids = source.example[0]
    assert source.reference is not None
    with torch.no_grad():
        expected = original(torch.from_numpy(ids)).logits.numpy()
    assert abs(source.reference(ids)[0] - expected).max() == 0


def test_a_directory_without_weights_gets_random_ones(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    module, example = huggingface.load_directory(directory)
    assert type(module).__name__ == "BertForSequenceClassification"
    assert example["input_ids"].shape == (1, 128) and int(example["input_ids"].max()) < 90


def test_the_task_chooses_the_class_where_the_configuration_does_not(directory: Path) -> None:
    change(directory, architectures=None)
    assert "give --task, one of audio-classification" in refused(directory)
    assert "unknown --task 'text'" in refused(directory, "text")
    (directory / "model.safetensors").unlink()
    module, _ = huggingface.load_directory(directory, "fill-mask")
    assert type(module).__name__ == "BertForMaskedLM"


def test_weights_that_can_run_code_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert "a format that can run code" in refused(directory)


def test_damaged_directories(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"nothing")
    assert "transformers cannot load" in refused(directory)
    (directory / "config.json").write_text("{")
    assert "config.json cannot be used" in refused(directory)
    (directory / "config.json").unlink()
    with pytest.raises(BadInput, match=r"the directory has no config\.json"):
        frontends.check(str(directory))


def test_types_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="has no model type 'no-such-type'"):
        huggingface.random_model("no-such-type")
    monkeypatch.setattr(huggingface, "_LARGEST", 1e6)
    with pytest.raises(BadInput, match="GB of weights; write a smaller config"):
        huggingface.random_model("bert")


class OtherInAnExport(torch.nn.Module):
    """It fails when it is exported, as some models of transformers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = None if torch.compiler.is_compiling() else torch.ones(8)
        return x * mask  # type: ignore[operator]


def other_in_an_export() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return OtherInAnExport(), (torch.randn(2, 8),)


def test_a_model_that_fails_in_an_export_is_exported_as_it_runs() -> None:
    model = frontends.load(ModelSpec(f"{__name__}:other_in_an_export"))
    x = torch.ones(2, 8).numpy()
    assert model.reference is not None and (model.reference(x)[0] == x).all()
    assert not torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def small() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return torch.nn.Linear(4, 2), (torch.randn(1, 4),)


def test_weights_beside_a_factory(tmp_path: Path) -> None:
    import safetensors.torch

    weights = {"weight": torch.ones(2, 4), "bias": torch.zeros(2)}
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(weights, str(path))
    name = f"{__name__}:small"
    module, _ = factories.make(ModelSpec(name, weights=str(path)))
    assert torch.equal(module.weight, weights["weight"])
    safetensors.torch.save_file({"weight": torch.ones(3, 3)}, str(path))
    for given, words in (
        (str(path), "do not fit the model"),
        (str(tmp_path / "w.bin"), "is not a .safetensors file"),
        (str(tmp_path / "none.safetensors"), "no such file"),
    ):
        with pytest.raises(BadInput, match=words):
            factories.make(ModelSpec(name, weights=given))
