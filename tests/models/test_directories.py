"""What a directory of transformers holds decides its weights: read, merged, refused, or random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from tests.models.test_huggingface import SMALL, refused
from tlmd.client import check
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.models import factories, frontends, huggingface

WEIGHTS, INDEX, QUERY = (
    "model.safetensors",
    "model.safetensors.index.json",
    "bert.encoder.layer.0.attention.self.query",
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory as `save_pretrained` writes it."""
    torch.manual_seed(1)
    config = transformers.BertConfig(**SMALL, intermediate_size=24, num_labels=3)
    path = tmp_path / "bert"
    transformers.BertForSequenceClassification(config).save_pretrained(path)
    return path


def with_weights(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors, add them, or take them out; `__` in a name is a dot."""
    weights = safetensors.torch.load_file(str(directory / WEIGHTS))
    for key, value in changes.items():
        name = key.replace("__", ".")
        weights |= {} if value is None else {name: value}
        if value is None:
            del weights[name]
    safetensors.torch.save_file(weights, str(directory / WEIGHTS), metadata={"format": "pt"})


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return dict(huggingface.load_directory(directory)[0].state_dict())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.pt", "a format that can run code"),
        ("checkpoint.ckpt", "a format that can run code"),
        ("pytorch_model.pth", "a format that can run code"),
        ("pytorch_model.bin.index.json", "which tlmd does not read"),
        ("model.gguf", "which tlmd does not read"),
        ("weights.unknown", "may have weights in"),
        ("original/consolidated.00.pth", "a format that can run code"),
        ("other.safetensors", "tlmd looks for model.safetensors"),
        ("model-00001-of-00002.safetensors", "without model.safetensors.index.json"),
    ],
)
def test_weights_that_cannot_be_read_are_never_random(
    directory: Path, name: str, words: str
) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / WEIGHTS).rename(directory / name)
    assert words in refused(directory)
    assert not huggingface.weights_note(ModelSpec(str(directory)))
    module, _ = huggingface.load_directory(directory, random_weights=True)
    assert type(module).__name__ == "BertForSequenceClassification"


def test_a_configuration_and_a_tokenizer_hold_no_weights(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    for name in ("tokenizer.json", "vocab.txt", "README.md", "LICENSE", ".gitattributes"):
        (directory / name).write_text("{}")
    assert huggingface.weights_note(ModelSpec(str(directory))) == "the directory holds none"
    assert weights_of(directory)["classifier.weight"].shape == (3, 16)


def test_who_is_told_that_weights_are_random(directory: Path) -> None:
    def note(name: str, **options: Any) -> str:
        return frontends.weights_note(ModelSpec(name, **options))

    assert note(str(directory)) == note("resnet18") == note("package:factory") == ""
    assert "--random-weights" in note(str(directory), random_weights=True)
    assert "hf:" in note("hf:bert") and not note("hf:bert", weights="w.safetensors")
    report = {"model": "m", "error": 0.0, "seconds": {}, "inputs": [], "outputs": [], "notes": []}
    report |= {"tasks": 1, "programs": 1, "flops": 1.0}
    first = check._text(report | {"random_weights": "the directory holds none"}).splitlines()[0]
    assert first.startswith("m works, but its weights are random (the directory holds none): ")
    assert check._text(report | {"random_weights": ""}).startswith("m works: ")


def test_random_weights_are_for_directories(directory: Path) -> None:
    for name in (f"{__name__}:directory", str(directory / "model.pt2"), str(directory)):
        if name.endswith(".pt2"):
            Path(name).touch()
        option = {"weights": "w.safetensors"} if name == str(directory) else {}
        with pytest.raises(BadInput, match="own weights; leave --"):
            frontends.load(ModelSpec(name, **option, random_weights=not option))
    with pytest.raises(BadInput, match="either those of a file or random"):
        ModelSpec("hf:bert", weights="w.safetensors", random_weights=True)


def test_a_tensor_that_is_missing_is_named(directory: Path) -> None:
    with_weights(directory, **{f"{QUERY.replace('.', '__')}__weight": None})
    assert f"lack {QUERY}.weight of BertForSequenceClassification; add" in refused(directory)
    with_weights(directory, classifier__bias=None)
    assert "lack bert.encoder.layer.0" in refused(directory) and "and classifier.bias of" in (
        refused(directory)
    )


def test_a_tensor_of_another_shape_is_named(directory: Path) -> None:
    with_weights(directory, classifier__bias=torch.ones(7))
    assert "classifier.bias has shape (7,) in the weights" in refused(directory)


def test_a_tensor_too_many_is_named_in_a_note(directory: Path) -> None:
    with_weights(directory, cls__seq_relationship__weight=torch.ones(2, 16))
    notes: list[str] = []
    factories.make(ModelSpec(str(directory)), notes.append)
    (note,) = notes
    assert "does not use cls.seq_relationship.weight in the weights of" in note
    assert frontends.load(ModelSpec(str(directory))).notes == (note,)


def test_shards_are_loaded_and_one_that_is_missing_is_named(directory: Path) -> None:
    whole = weights_of(directory)
    stored = safetensors.torch.load_file(str(directory / WEIGHTS))
    files = {n: f"model-0000{1 + (i > 3)}-of-00002.safetensors" for i, n in enumerate(stored)}
    for file in set(files.values()):
        part = {name: stored[name] for name in files if files[name] == file}
        safetensors.torch.save_file(part, str(directory / file), metadata={"format": "pt"})
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (directory / WEIGHTS).unlink()
    loaded = weights_of(directory)
    assert all(torch.equal(loaded[name], value) for name, value in whole.items())
    (directory / file).unlink()
    assert f"lacks {file}, which {INDEX} names; add what is missing" in refused(directory)
    (directory / INDEX).write_text("{}")
    assert "names no files of weights" in refused(directory)


def test_a_variant_is_read(directory: Path) -> None:
    (directory / WEIGHTS).rename(directory / "model.fp16.safetensors")
    assert "classifier.weight" in weights_of(directory)


def test_a_byte_order_mark_is_read(directory: Path) -> None:
    whole = weights_of(directory)
    text = (directory / "config.json").read_text()
    (directory / "config.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert torch.equal(weights_of(directory)["classifier.weight"], whole["classifier.weight"])
    change_to = json.loads(text) | {"model_type": "no-such-type"}
    (directory / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(change_to).encode())
    assert "config.json cannot be used" in refused(directory)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_stay_what_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    config = transformers.LlamaConfig(**SMALL, intermediate_size=24)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(tmp_path)
    source = frontends.load(ModelSpec(str(tmp_path)))
    assert source.torch_module.model.dtype is dtype
    assert source.reference is not None
    assert source.reference(*source.example)[0].dtype.name == str(dtype).removeprefix("torch.")


def test_floats_of_an_example_have_the_dtype_of_the_weights(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", image_size=32
    )
    transformers.ResNetForImageClassification(config).bfloat16().save_pretrained(tmp_path)
    module, example = huggingface.load_directory(tmp_path)
    assert example["pixel_values"].dtype is torch.bfloat16
    with torch.no_grad():
        assert module(**example).logits.dtype is torch.bfloat16
