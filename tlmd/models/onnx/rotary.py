"""Rewriting of ONNX Runtime's rotary embedding, and of the attention of decoders that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tlmd.models.onnx.attention import MICROSOFT, Heads, split_heads, with_past
from tlmd.models.onnx.rewriting import Operation, Rewriters


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {
        (MICROSOFT, "GroupQueryAttention"): _grouped,
        (MICROSOFT, "RotaryEmbedding"): _rotary,
    }


@dataclass(frozen=True)
class _Pairs:
    """Pairs of elements that are turned by angles of their place."""

    operation: Operation
    cosine: str
    sine: str
    half: int
    """How many pairs there are."""
    size: int
    """How many elements; those that are in no pair stay."""

    def turned(self, x: str, interleaved: bool) -> str:
        """``[batch, heads, length, size]``; the pairs are neighbours, or in two halves."""
        writer, half, rest = self.operation.writer, self.half, ""
        if 2 * half < self.size:
            x, rest = writer.split(x, [2 * half, self.size - 2 * half])
        if interleaved:
            left, right = (writer.take(x, np.arange(start, 2 * half, 2), 3) for start in (0, 1))
        else:
            left, right = writer.split(x, [half, half])
        left_cosine, right_cosine = (writer.call("Mul", x, self.cosine) for x in (left, right))
        left_sine, right_sine = (writer.call("Mul", x, self.sine) for x in (left, right))
        first = writer.call("Sub", left_cosine, right_sine)
        second = writer.call("Add", left_sine, right_cosine)
        turned = writer.call("Concat", first, second, axis=3)
        if interleaved:
            turned = writer.take(turned, np.arange(2 * half).reshape(2, half).T.reshape(-1), 3)
        return writer.call("Concat", turned, rest, axis=3) if rest else turned


def _grouped(operation: Operation) -> Sequence[str] | None:
    """Several queries share a key, and see all before them.

    Past keys are those of one text; how many of them count is known when the model runs only.
    """
    attributes, writer = operation.attributes, operation.writer
    query, key, value, past_key, past_value, last = (operation.input(place) for place in range(6))
    heads, shared = attributes["num_heads"], attributes["kv_num_heads"]
    batch, length, width = operation.shape(query)
    before = operation.shape(past_key)[2] if past_key else 0
    unknown = any(operation.input(place) for place in range(9, 14))
    if unknown or attributes.get("smooth_softmax") or (before and batch != 1):
        return None
    size = width // heads
    if not key:
        size = width // (heads + 2 * shared)
        query, key, value = writer.split(query, [heads * size, shared * size, shared * size])
    query = split_heads(operation, query, heads, size)
    key, value = (split_heads(operation, x, shared, size) for x in (key, value))
    # The places of the queries: [length].
    rows = writer.constant(np.arange(1 - length, 1) if before else np.arange(length))
    if before:
        rows = writer.call("Add", rows, writer.reshape(writer.cast(last, np.int64), [1]))
    if attributes.get("do_rotary"):
        half = operation.shape(operation.input(7))[-1]
        tables = [writer.call("Gather", operation.input(n), rows, axis=0) for n in (7, 8)]
        pairs = _Pairs(operation, tables[0], tables[1], half, size)
        interleaved = bool(attributes.get("rotary_interleaved"))
        query, key = (pairs.turned(x, interleaved) for x in (query, key))
    keys = before + length
    if before:
        order = _joint_order(operation, rows, before, length)
        key, value = (
            writer.call("Gather", with_past(operation, past, now), order, axis=2)
            for past, now in ((past_key, key), (past_value, value))
        )
    wide = [
        _repeated(operation, x, [batch, shared, keys, size], heads // shared) for x in (key, value)
    ]
    scale = attributes.get("scale", 0.0) or size**-0.5
    dtype = operation.dtype(operation.input(0))
    found = Heads(operation, query, wide[0], wide[1], (length, keys), scale, [], dtype)
    found.hide_later(writer.reshape(rows, [length, 1]), attributes.get("local_window_size", -1))
    return [found.result(), key, value]


def _joint_order(operation: Operation, rows: str, before: int, length: int) -> str:
    """The places of keys in past and new ones: those that count, the new ones, and others."""
    writer = operation.writer
    start = writer.call("Gather", rows, writer.constant(np.asarray([0])), axis=0)
    places = writer.constant(np.arange(before + length))
    new = writer.call(
        "Add", places, writer.call("Sub", writer.constant(np.asarray([before])), start)
    )
    new = writer.call("Min", new, writer.constant(np.asarray([before + length - 1])))
    return writer.call("Where", writer.call("Less", places, start), places, new)


def _repeated(operation: Operation, x: str, shape: list[int], times: int) -> str:
    """Each head `times` times."""
    if times == 1:
        return x
    batch, heads, keys, size = shape
    writer = operation.writer
    apart = writer.reshape(x, [batch, heads, 1, keys, size])
    whole = writer.constant(np.asarray([batch, heads, times, keys, size]))
    return writer.reshape(writer.call("Expand", apart, whole), [batch, heads * times, keys, size])


def _rotary(operation: Operation) -> Sequence[str] | None:
    attributes, writer = operation.attributes, operation.writer
    x, places, cosine, sine = (operation.input(place) for place in range(4))
    shape, half = operation.shape(x), operation.shape(cosine)[-1]
    flat = len(shape) == 3
    if attributes.get("is_packed_batching"):
        return None
    heads = attributes.get("num_heads", 0) or (shape[-1] // (2 * half) if flat else shape[1])
    size = shape[-1] // heads if flat else shape[-1]
    batch, length = shape[0], shape[1 if flat else 2]
    if operation.shape(places) == [batch, length]:
        numbers = places
    else:  # the place of the first one
        row = writer.constant(np.arange(length))
        numbers = writer.reshape(writer.call("Add", row, writer.reshape(places, [1])), [1, length])
    factors = [
        writer.reshape(writer.call("Gather", table, numbers, axis=0), [-1, 1, length, half])
        for table in (cosine, sine)
    ]
    apart = split_heads(operation, x, heads, size) if flat else x
    interleaved = bool(attributes.get("interleaved"))
    pairs = _Pairs(operation, factors[0], factors[1], half, size)
    result = pairs.turned(apart, interleaved)
    scale = attributes.get("scale", 1.0)
    result = writer.scaled(result, scale, operation.dtype(x))
    if not flat:
        return [result]
    return [writer.reshape(writer.call("Transpose", result, perm=[0, 2, 1, 3]), shape)]
