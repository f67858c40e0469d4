"""Text is generated with the same tokens as by the original, and nothing is compiled per token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tlmd
from tests.support.torch_graphs import Graphs

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries_are_faster")]
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [0, 0, 11, 12, 13, 14]])  # the second is padded
MASK = (IDS != 0).long()


@pytest.fixture
def model(small_tlm: Path) -> Any:
    torch.manual_seed(0)
    torch._dynamo.reset()
    tokens = {"bos_token_id": 1, "eos_token_id": 99, "pad_token_id": 0}
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=100, **tokens)
    return transformers.GPT2LMHeadModel(config).eval()


def generate(model: Any, **options: Any) -> torch.Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        found = model.generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=8, **options)
    return torch.as_tensor(found)


def test_an_optimised_model_generates(model: Any, tmp_path: Path) -> None:
    expected, drawn = generate(model), generate(model, do_sample=True)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    fast: Any = tlmd.optimize(model, inputs, state_dir=tmp_path, background=False)
    assert fast.reason == "" and model.config.use_cache
    with torch.no_grad():
        found, wanted = fast(**inputs), model(**inputs)
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
    for one, two in zip(found.past_key_values.layers, wanted.past_key_values.layers, strict=True):
        assert type(one) is type(two) and one.keys.stride() == two.keys.stride()
        torch.testing.assert_close(one.values, two.values, atol=1e-4, rtol=1e-4)
    assert torch.equal(generate(fast), expected)
    assert torch.equal(generate(fast, do_sample=True), drawn)
    assert len(fast.functions) == 1


def test_the_backend_compiles_no_program_per_token(model: Any, tmp_path: Path) -> None:
    expected, graphs = generate(model), Graphs(tmp_path)
    model.forward = torch.compile(model.forward, backend=graphs)
    assert torch.equal(generate(model), expected)
    assert sum(map(len, graphs.functions)) == 1
