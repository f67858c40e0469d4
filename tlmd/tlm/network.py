"""The networks of the TLM: GPT-2 in three sizes, trained from scratch.

Their parameters have the names and shapes that they have in `GPT2LMHeadModel` of transformers, and
`tlmd.tlm.decoder` computes the same. Importing that class takes three seconds and 130 MB, which
each generator and trainer would pay when it starts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tlmd.data.errors import BadInput
from tlmd.language import vocabulary

POSITIONS = 1024
# nano: about 1M parameters, for machines with only a CPU; small: about 11M; gpt2: the paper's size.
PRESETS: dict[str, dict[str, int]] = {
    "nano": {"layers": 4, "width": 128, "heads": 4},
    "small": {"layers": 6, "width": 384, "heads": 6},
    "gpt2": {"layers": 12, "width": 768, "heads": 12},
}
_DEVIATION = 0.02  # of random weights


class Gpt2(nn.Module):
    """The parameters of a GPT-2 without dropout, whose output layer shares those of the embedding.

    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3.
    """

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.transformer: Any = nn.ModuleDict(
            {
                "wte": _embedding(vocabulary.SIZE, width),
                "wpe": _embedding(POSITIONS, width),
                "h": nn.ModuleList(_layer(width, 2 * layers) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )


class _TransposedLinear(nn.Module):
    """Its weights are ``[inputs, outputs]``; `summed` such layers add to the same sum."""

    def __init__(self, inputs: int, outputs: int, summed: int = 1) -> None:
        super().__init__()
        deviation = _DEVIATION / math.sqrt(summed)
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=deviation))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, given: Tensor) -> Tensor:
        return functional.linear(given, self.weight.t(), self.bias)


def _embedding(count: int, width: int) -> nn.Embedding:
    return nn.Embedding(count, width, _weight=torch.empty(count, width).normal_(std=_DEVIATION))


def _layer(width: int, summed: int) -> nn.ModuleDict:
    """Attention and perceptron; `summed`: results of all layers that are added to the same sum."""
    attention = {
        "c_attn": _TransposedLinear(width, 3 * width),
        "c_proj": _TransposedLinear(width, width, summed),
    }
    perceptron = {
        "c_fc": _TransposedLinear(width, 4 * width),
        "act": nn.GELU(approximate="tanh"),
        "c_proj": _TransposedLinear(4 * width, width, summed),
    }
    return nn.ModuleDict(
        {
            "ln_1": nn.LayerNorm(width),
            "attn": nn.ModuleDict(attention),
            "ln_2": nn.LayerNorm(width),
            "mlp": nn.Sequential(OrderedDict(perceptron)),
        }
    )


def create(preset: str, seed: int = 0) -> Gpt2:
    """Create a network with random weights and the tensor language's vocabulary.

    Raises `BadInput` for an unknown preset. Does not change torch's global random state.
    """
    if preset not in PRESETS:
        raise BadInput(f"unknown network preset {preset!r}; use one of {', '.join(PRESETS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gpt2(**PRESETS[preset]).eval()


def parameters(model: nn.Module) -> int:
    """The number of parameters."""
    return sum(p.numel() for p in model.parameters())
