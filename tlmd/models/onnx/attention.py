"""Rewriting of ONNX Runtime's attentions into products and a softmax.

TVM lacks most of them; its `Attention` has other masks and no past keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlmd.models.onnx.rewriting import Operation, Rewriters

MICROSOFT = "com.microsoft"
_LOWEST = {np.dtype(np.float16): -65504.0}


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {
        (MICROSOFT, "Attention"): _attention,
        (MICROSOFT, "MultiHeadAttention"): _multi_head,
    }


@dataclass
class Heads:
    """Queries, keys and values ``[batch, heads, length, size]``, and how they meet."""

    operation: Operation
    query: str
    key: str
    value: str
    lengths: tuple[int, int]
    """How many queries there are, and how many keys."""

    scale: float
    masks: list[str]
    """What is added to the scores."""

    dtype: Any

    def hide_later(self, rows: str = "", window: int = -1) -> None:
        """Hide keys after a query, and those as far before it as `window`.

        `rows` are the places of the queries ``[length, 1]``; without it, they are the last ones.
        """
        writer, (queries, keys) = self.operation.writer, self.lengths
        rows = rows or writer.constant(np.arange(keys - queries, keys)[:, None])
        apart = writer.call("Sub", writer.constant(np.arange(keys)), rows)
        hidden = writer.cast(writer.call("Less", writer.constant(np.asarray(0)), apart), self.dtype)
        lowest = _LOWEST.get(np.dtype(self.dtype), -3e38)
        self.masks.append(writer.scaled(hidden, lowest, self.dtype))
        if window > 0:
            edge = writer.constant(np.asarray(1 - window))
            early = writer.cast(writer.call("Less", apart, edge), self.dtype)
            self.masks.append(writer.scaled(early, lowest, self.dtype))

    def hide_unmasked(self, mask: str, shape: list[int]) -> None:
        """Hide keys whose flag, an integer, is zero."""
        writer = self.operation.writer
        seen = writer.cast(writer.reshape(mask, shape), self.dtype)
        one = writer.constant(np.asarray(1, self.dtype))
        # Not the lowest number: where all keys are hidden, they count as if none were.
        value = self.operation.attributes.get("mask_filter_value", -10000.0)
        self.masks.append(writer.scaled(writer.call("Sub", one, seen), value, self.dtype))

    def hide_after(self, counts: str, batch: int) -> None:
        """Hide keys after the first ones, whose numbers are those of each text."""
        writer = self.operation.writer
        places = writer.constant(np.arange(self.lengths[1], dtype=np.float32).reshape(1, 1, 1, -1))
        limit = writer.reshape(writer.cast(counts, np.float32), [batch, 1, 1, 1])
        inside = writer.cast(writer.call("Less", places, limit), np.int32)
        self.hide_unmasked(inside, [batch, 1, 1, self.lengths[1]])

    def result(self) -> str:
        """The values, weighed, ``[batch, length, heads * size]``."""
        writer = self.operation.writer
        query = writer.scaled(self.query, self.scale, self.dtype)
        scores = writer.call("MatMul", query, writer.call("Transpose", self.key, perm=[0, 1, 3, 2]))
        cap = self.operation.attributes.get("softcap", 0.0)
        if cap:
            curve = writer.call("Tanh", writer.scaled(scores, 1 / cap, self.dtype))
            scores = writer.scaled(curve, cap, self.dtype)
        for mask in self.masks:
            scores = writer.call("Add", scores, mask)
        weights = writer.call("Softmax", scores, axis=-1)
        mixed = writer.call("MatMul", weights, self.value)
        return writer.reshape(writer.call("Transpose", mixed, perm=[0, 2, 1, 3]), [0, 0, -1])


def split_heads(operation: Operation, x: str, heads: int, size: int) -> str:
    """``[batch, length, heads * size]`` as ``[batch, heads, length, size]``."""
    split = operation.writer.reshape(x, [0, 0, heads, size])
    return operation.writer.call("Transpose", split, perm=[0, 2, 1, 3])


def with_past(operation: Operation, past: str, now: str) -> str:
    """Keys or values after those of earlier calls."""
    return operation.writer.call("Concat", past, now, axis=2) if past else now


def _attention(operation: Operation) -> Sequence[str] | None:
    """One product makes queries, keys and values."""
    attributes, writer = operation.attributes, operation.writer
    x, weights, bias, mask, past, added = (operation.input(place) for place in range(6))
    if operation.input(6) or attributes.get("do_rotary"):
        return None
    batch, length, _ = operation.shape(x)
    dtype, heads = operation.dtype(x), attributes["num_heads"]
    width = operation.shape(weights)[1]
    sizes = list(attributes.get("qkv_hidden_sizes") or [width // 3] * 3)
    product = writer.call("MatMul", x, weights)
    product = writer.call("Add", product, bias) if bias else product
    parts = writer.split(product, sizes)
    query, key, value = (
        split_heads(operation, part, heads, size // heads)
        for part, size in zip(parts, sizes, strict=True)
    )
    before = 0
    if past:
        before = operation.shape(past)[3]
        old = writer.split(past, [1, 1], 0)
        shape = operation.shape(past)[1:]
        key, value = (
            with_past(operation, writer.reshape(p, shape), now)
            for p, now in zip(old, (key, value), strict=True)
        )
    keys = before + length
    scale = attributes.get("scale", 0.0) or (sizes[0] // heads) ** -0.5
    found = Heads(operation, query, key, value, (length, keys), scale, [], dtype)
    if not _hides(found, mask, added, batch):
        return None
    shape = [1, batch, heads, keys, -1]
    present = ""
    if operation.output(1):
        both = [writer.reshape(part, shape) for part in (key, value)]
        present = writer.call("Concat", *both, axis=0)
    return [found.result(), present]


def _hides(found: Heads, mask: str, added: str, batch: int) -> bool:
    """Hide what a node hides: by a mask, by what is added, and what comes later.

    Returns whether the mask is of a known form; an empty name is no mask.
    """
    if mask and not _masked(found, mask, batch):
        return False
    if found.operation.attributes.get("unidirectional"):
        found.hide_later()
    if added:
        found.masks.append(added)
    return True


def _masked(found: Heads, mask: str, batch: int) -> bool:
    """Hide what a mask hides. Returns whether it is of a known form."""
    shape = found.operation.shape(mask)
    keys = found.lengths[1]
    if shape == [batch, keys]:
        found.hide_unmasked(mask, [batch, 1, 1, keys])
    elif len(shape) == 3:
        found.hide_unmasked(mask, [batch, 1, shape[1], keys])
    elif shape == [batch]:
        found.hide_after(mask, batch)
    else:
        return False
    return True


def _multi_head(operation: Operation) -> Sequence[str] | None:
    attributes, writer = operation.attributes, operation.writer
    query, key, value, bias, mask, added, past_key, past_value = (
        operation.input(place) for place in range(8)
    )
    if not key or not value or operation.input(8) or len(operation.shape(query)) != 3:
        return None
    batch, length, width = operation.shape(query)
    dtype, heads = operation.dtype(query), attributes["num_heads"]
    split = len(operation.shape(key)) == 3
    value_width = operation.shape(value)[-1] * (1 if split else heads)
    if bias:
        parts = writer.split(bias, [width, width, value_width])
        query = writer.call("Add", query, parts[0])
        if split:
            key, value = (
                writer.call("Add", x, b) for x, b in zip((key, value), parts[1:], strict=True)
            )
        else:
            return None
    keys = operation.shape(operation.input(1))[1 if split else 2]
    query = split_heads(operation, query, heads, width // heads)
    if split:
        key = split_heads(operation, key, heads, width // heads)
        value = split_heads(operation, value, heads, value_width // heads)
    if past_key:
        keys += operation.shape(past_key)[2]
        key, value = with_past(operation, past_key, key), with_past(operation, past_value, value)
    scale = attributes.get("scale", 0.0) or (width // heads) ** -0.5
    found = Heads(operation, query, key, value, (length, keys), scale, [], dtype)
    if not _hides(found, mask, added, batch):
        return None
    return [found.result(), key, value]
