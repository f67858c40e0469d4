"""An adapter (LoRA) beside a model or of one elsewhere: merged, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from tests.models.test_huggingface import SMALL, refused
from tlmd.models import huggingface

QUERY = "bert.encoder.layer.0.attention.self.query"
WORDS = "bert.embeddings.word_embeddings"
PREFIX = "base_model.model."


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    config = transformers.BertConfig(**SMALL, intermediate_size=24, num_labels=3)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def write(path: Path, tensors: dict[str, torch.Tensor], **entries: Any) -> None:
    """An adapter as peft writes it."""
    path.mkdir(exist_ok=True)
    description = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": "base"}
    (path / "adapter_config.json").write_text(json.dumps(description | entries))
    named = {PREFIX + name: value for name, value in tensors.items()}
    safetensors.torch.save_file(named, str(path / "adapter_model.safetensors"))


def factors(inputs: int, outputs: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    return {"A": torch.randn(2, inputs), "B": torch.randn(outputs, 2)}


def low_rank(name: str, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name}.lora_{key}.weight": value for key, value in pair.items()}


def weight(path: Path, name: str) -> torch.Tensor:
    module, _ = huggingface.load_directory(path)
    value: torch.Tensor = module.get_parameter(name)
    return value.detach()


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
def test_an_adapter_is_merged_into_its_base(base: Path, where: str) -> None:
    before, pair = weight(base, f"{QUERY}.weight"), factors(16, 16)
    path = base if where == "beside" else base.parent / "adapter"
    write(path, low_rank(QUERY, pair), base_model_name_or_path=str(base))
    after = weight(path, f"{QUERY}.weight")
    x = torch.randn(5, 16)
    expected = x @ before.T + 3.0 * (x @ pair["A"].T) @ pair["B"].T
    torch.testing.assert_close(x @ after.T, expected)
    key = "bert.encoder.layer.0.attention.self.key.weight"
    assert torch.equal(weight(path, key), weight(base, key))


def test_scales_of_single_layers_and_of_stabilised_adapters(base: Path) -> None:
    before, pair = weight(base, f"{QUERY}.weight"), factors(16, 16)
    write(base, low_rank(QUERY, pair), use_rslora=True, alpha_pattern={"self.query": 10})
    change = weight(base, f"{QUERY}.weight") - before
    torch.testing.assert_close(change, 10 / 2**0.5 * pair["B"] @ pair["A"])


def test_embeddings_and_whole_layers(base: Path) -> None:
    before, pair, head = weight(base, f"{WORDS}.weight"), factors(90, 16), torch.randn(3, 16)
    tensors = {f"{WORDS}.lora_embedding_{key}": value for key, value in pair.items()}
    write(base, tensors | {"classifier.weight": head})
    change = weight(base, f"{WORDS}.weight") - before
    torch.testing.assert_close(change, 3.0 * (pair["B"] @ pair["A"]).T)
    assert torch.equal(weight(base, "classifier.weight"), head)


def test_layers_that_keep_their_weights_transposed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=90, n_positions=40, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    name = "transformer.h.0.attn.c_attn"
    before, pair = weight(tmp_path, f"{name}.weight"), factors(16, 48)
    write(tmp_path, low_rank(name, pair), task_type="CAUSAL_LM")
    change = weight(tmp_path, f"{name}.weight") - before
    torch.testing.assert_close(change, 3.0 * (pair["B"] @ pair["A"]).T)


def test_convolutions(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic"
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    name = "resnet.encoder.stages.0.layers.0.layer.0.convolution"
    before = weight(tmp_path, f"{name}.weight")
    a, b = torch.randn(2, 8, 3, 3), torch.randn(8, 2, 1, 1)
    write(tmp_path, low_rank(name, {"A": a, "B": b}))
    change = weight(tmp_path, f"{name}.weight") - before
    x = torch.randn(1, 8, 6, 6)
    expected = 3.0 * torch.conv2d(torch.conv2d(x, a), b)
    torch.testing.assert_close(torch.conv2d(x, change), expected, atol=1e-4, rtol=1e-4)


def test_an_adapter_brings_the_head_that_its_base_lacks(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SMALL, intermediate_size=24)
    transformers.BertModel(config).save_pretrained(tmp_path)
    query, head = low_rank(QUERY, factors(16, 16)), torch.randn(2, 16)
    write(tmp_path, {**query, "classifier.weight": head}, task_type="SEQ_CLS")
    assert "lack classifier.bias of BertForSequenceClassification" in refused(tmp_path)
    write(
        tmp_path,
        {**query, "classifier.weight": head, "classifier.bias": torch.ones(2)},
        task_type="SEQ_CLS",
    )
    assert torch.equal(weight(tmp_path, "classifier.weight"), head)


def test_adapters_that_cannot_be_merged(base: Path) -> None:
    pair = factors(16, 16)
    write(base, low_rank(QUERY, pair), peft_type="IA3")
    assert "an adapter of type IA3; merge it with peft" in refused(base)
    write(base, low_rank(QUERY, pair), use_dora=True)
    assert "an adapter of type DORA; merge it with peft" in refused(base)
    write(base, low_rank("bert.no_such_layer", pair))
    assert "changes bert.no_such_layer.weight, which the model lacks" in refused(base)
    write(base, low_rank(QUERY, {"A": pair["A"]}))
    assert f"one factor only of {QUERY}" in refused(base)
    write(base, low_rank(QUERY, factors(16, 8)))
    assert "has shape (8, 16)" in refused(base) and "(16, 16)" in refused(base)
    (base / "adapter_model.safetensors").write_bytes(b"nothing")
    assert "cannot be read" in refused(base)
    (base / "adapter_model.safetensors").unlink()
    assert "an adapter without adapter_model.safetensors" in refused(base)


def test_a_base_that_is_no_directory_here(base: Path) -> None:
    path = base.parent / "adapter"
    write(path, low_rank(QUERY, factors(16, 16)), base_model_name_or_path="org/model")
    assert "is an adapter of org/model, which is no directory here; write" in refused(path)
    module, _ = huggingface.load_directory(base, random_weights=True)
    assert not hasattr(module, "peft_config")
