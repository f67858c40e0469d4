"""GPT-2's forward pass for many sentences after one prompt.

The results are those of `transformers`, with one difference: all sentences of a group attend to one
copy of the prompt's keys and values, and only the few positions after the prompt are stored per
sentence. The loop of `transformers` is slow because it copies the prompt's cache for each sample.
The pass is differentiable; training uses it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tlmd.tlm.network import Gpt2


@dataclass
class PromptCache:
    """Keys and values of one prompt; per layer one tensor ``[heads, prompt, head_dim]``."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    length: int = 0


@dataclass
class GroupCache:
    """Keys and values of the decoded positions of a group of sentences.

    Per layer one tensor ``[batch, heads, capacity, head_dim]``, of which ``length`` positions are
    used.
    """

    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0


class Decoder:
    """Runs a network on prompts and on groups of sentences after them.

    Tokens may be on any device; results are on the network's device.
    """

    def __init__(self, model: Gpt2) -> None:
        self.model = model
        self._heads = model.heads
        self._layers = list(model.transformer.h)

    @property
    def device(self) -> torch.device:
        """The network's device."""
        device: torch.device = self.model.transformer.wte.weight.device
        return device

    def prompt(self, tokens: Tensor) -> PromptCache:
        """Compute the cache of a prompt; ``tokens`` is int64 ``[prompt]``."""
        cache = PromptCache(length=len(tokens))
        hidden = self._embed(tokens[None, :], 0)
        for layer in self._layers:
            query, key, value = self._project(layer, hidden)
            cache.keys.append(key[0])
            cache.values.append(value[0])
            scores = query @ key.transpose(-1, -2) + _causal(len(tokens), hidden)
            hidden = self._finish(layer, hidden, scores.softmax(-1) @ value)
        return cache

    def sentences(self, prompt: PromptCache, tokens: Tensor) -> Tensor:
        """Hidden states ``[batch, length, width]`` of sentences, ``tokens [batch, length]``."""
        return self.extend(prompt, tokens, None)

    def new_group(self, batch: int, capacity: int) -> GroupCache:
        """An empty cache for `batch` sentences of at most `capacity` tokens."""
        shape = (batch, self._heads, capacity, self.model.width // self._heads)
        empty = [torch.empty(shape, device=self.device) for _ in 2 * self._layers]
        return GroupCache(empty[::2], empty[1::2])

    def extend(self, prompt: PromptCache, tokens: Tensor, group: GroupCache | None) -> Tensor:
        """Hidden states ``[batch, new, width]`` of the next tokens ``[batch, new]``.

        The tokens are added to `group`, if one is given.
        """
        past = group.length if group else 0
        new = tokens.shape[1]
        hidden = self._embed(tokens, prompt.length + past)
        mask = _causal(new, hidden)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, hidden)
            if group:
                group.keys[index][:, :, past : past + new] = key
                group.values[index][:, :, past : past + new] = value
                key = group.keys[index][:, :, : past + new]
                value = group.values[index][:, :, : past + new]
            own = query @ key.transpose(-1, -2)
            if new > 1:
                own = torch.cat((own[..., :past], own[..., past:] + mask), -1)
            mixed = self._attend(query, own, value, prompt.keys[index], prompt.values[index])
            hidden = self._finish(layer, hidden, mixed)
        if group:
            group.length = past + new
        return hidden

    def masked(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Hidden states ``[batch, length, width]`` of sequences without a cache.

        `tokens` and `positions` are ``[batch, length]``; ``visible[b, i, j]`` says whether token i
        sees token j.
        """
        transformer = self.model.transformer
        hidden: Tensor = transformer.wte(tokens) + transformer.wpe(positions)
        mask = visible[:, None]
        for layer in self._layers:
            query, key, value = self._project(layer, hidden)
            mixed = functional.scaled_dot_product_attention(query, key, value, mask, scale=1.0)
            hidden = self._finish(layer, hidden, mixed)
        return hidden

    def logits(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Scores of all words, or of the words `columns`, for hidden states ``[..., width]``."""
        weight = self.model.transformer.wte.weight
        states = self.model.transformer.ln_f(hidden)
        if columns is not None:
            weight = weight[columns.to(self.device)]
        return functional.linear(states, weight)

    def _embed(self, tokens: Tensor, start: int) -> Tensor:
        positions = torch.arange(start, start + tokens.shape[1], device=self.device)
        transformer = self.model.transformer
        embedded: Tensor = transformer.wte(tokens.to(self.device)) + transformer.wpe(positions)
        return embedded

    def _project(self, layer: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query (scaled), key and value, each ``[batch, heads, length, head_dim]``."""
        batch, length, width = hidden.shape
        mixed = layer.attn.c_attn(layer.ln_1(hidden))
        mixed = mixed.view(batch, length, 3, self._heads, width // self._heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        return query / math.sqrt(width // self._heads), key, value

    def _attend(
        self, query: Tensor, own: Tensor, value: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attention of each sentence to the shared prompt and to the sentence's own positions."""
        batch, heads, new, size = query.shape
        flat = query.transpose(0, 1).reshape(heads, batch * new, size)
        shared = (flat @ keys.transpose(-1, -2)).view(heads, batch, new, -1).transpose(0, 1)
        weights = torch.cat((shared, own), -1).softmax(-1)
        length = keys.shape[1]
        shared = weights[..., :length].transpose(0, 1).reshape(heads, batch * new, length)
        from_prompt = (shared @ values).view(heads, batch, new, size).transpose(0, 1)
        return from_prompt + weights[..., length:] @ value

    def _finish(self, layer: Any, hidden: Tensor, mixed: Tensor) -> Tensor:
        batch, _, length, _ = mixed.shape
        hidden = hidden + layer.attn.c_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        output: Tensor = hidden + layer.mlp(layer.ln_2(hidden))
        return output


def _causal(length: int, like: Tensor) -> Tensor:
    """The causal mask ``[length, length]``: 0 for itself and earlier positions, else -infinity."""
    return torch.full((length, length), float("-inf"), dtype=like.dtype, device=like.device).triu(1)
