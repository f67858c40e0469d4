"""Transformers from Hugging Face configurations with random weights; nothing is downloaded.

Text models take int64 token ids (N, S) and return the last hidden state (N, S, hidden). The vision
transformer takes float32 images (N, 3, H, W) and returns (N, patches + 1, hidden).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _LastHidden(nn.Module):
    """A Hugging Face model with one input tensor and one output tensor."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model = model
        self.argument = argument

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.model(**{self.argument: x}, return_dict=False)[0]
        return hidden


class _Causal(nn.Module):
    """Like `_LastHidden`, with an explicit causal mask.

    From a plain (N, S) mask the library would build the causal mask with data-dependent code, which
    cannot be exported. It uses an additive mask (1, 1, S, S) unchanged.
    """

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model = model
        mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
        self.register_buffer("mask", mask[None, None])
        self.register_buffer("positions", torch.arange(length)[None])

    def forward(self, ids: Tensor) -> Tensor:
        mask, positions = self.get_buffer("mask"), self.get_buffer("positions")
        hidden: Tensor = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, return_dict=False
        )[0]
        return hidden


_EAGER: dict[str, Any] = {"attn_implementation": "eager"}


def bert(hidden: int, layers: int, heads: int) -> nn.Module:
    """BERT without the pooler; feed-forward size 4 x hidden, vocabulary of 30522 words."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        use_cache=False,
        **_EAGER,
    )
    return _LastHidden(BertModel(config, add_pooling_layer=False), "input_ids")


def gpt2(length: int) -> nn.Module:
    """GPT-2 (12 layers, hidden 768) without the language-model head."""
    from transformers import GPT2Config, GPT2Model

    return _Causal(GPT2Model(GPT2Config(use_cache=False, **_EAGER)), length)


def llama(length: int) -> nn.Module:
    """The paper's Llama: 12 layers, hidden 768, feed-forward 3072, 12 heads."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        use_cache=False,
        **_EAGER,
    )
    return _Causal(LlamaModel(config), length)


def vit(hidden: int, layers: int, heads: int, height: int, width: int) -> nn.Module:
    """Vision transformer with patches of 16x16, without the pooler."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        image_size=(height, width),
        **_EAGER,
    )
    return _LastHidden(ViTModel(config, add_pooling_layer=False), "pixel_values")
