"""Rewriting of ONNX's Loop and Scan, which TVM lacks, into their steps one after the other.

A loop stays if the file does not say how many steps it has, or if it has many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tlmd.models.onnx.node_writer import NodeWriter
from tlmd.models.onnx.rewriting import Operation, Rewriters

_MOST_STEPS = 64


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {("", "Loop"): _loop, ("", "Scan"): _scan}


def _loop(operation: Operation) -> Sequence[str] | None:
    """One that counts to a constant, and is not left before."""
    writer, body = operation.writer, operation.attributes["body"]
    count, begun = operation.constant(0), operation.constant(1)
    if count is None or not 0 < int(count.item()) <= _MOST_STEPS or not _goes_on(body):
        return None
    if begun is not None and not bool(begun.item()):
        return None
    states = list(operation.node.input)[2:]
    going = writer.constant(np.asarray(True))
    collected: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
    for step in range(int(count.item())):
        given = [writer.constant(np.asarray(step)), going, *states]
        found = _step(writer, body, given, step)[1:]
        states = found[: len(states)]
        for parts, value in zip(collected, found[len(states) :], strict=True):
            parts.append(value)
    return [*states, *(_stacked(writer, parts) for parts in collected)]


def _goes_on(body: Any) -> bool:
    """Whether a loop hands its condition on as it is, or as true. No node has a body of its own."""
    from onnx import numpy_helper

    made = {name: node for node in body.node for name in node.output}
    if any(a.HasField("g") or a.graphs for node in body.node for a in node.attribute):
        return False
    name = body.output[0].name
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    if name == body.input[1].name:
        return True
    tensors = [tensor for tensor in body.initializer if tensor.name == name]
    if name in made and made[name].op_type == "Constant":
        tensors = [a.t for a in made[name].attribute if a.name == "value"]
    return any(bool(numpy_helper.to_array(tensor).all()) for tensor in tensors)


def _scan(operation: Operation) -> Sequence[str] | None:
    """One over the first dimension of its inputs, from the start."""
    attributes, writer = dict(operation.attributes), operation.writer
    body, count = attributes.pop("body"), attributes.pop("num_scan_inputs")
    if any(any(value) for value in attributes.values() if not isinstance(value, (int, str))):
        return None
    if any(a.HasField("g") or a.graphs for node in body.node for a in node.attribute):
        return None
    inputs = list(operation.node.input)
    states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    steps = operation.shape(scanned[0])[0]
    if not 0 < steps <= _MOST_STEPS:
        return None
    collected: list[list[str]] = [[] for _ in body.output[len(states) :]]
    for step in range(steps):
        places = writer.constant(np.asarray(step))
        parts = [writer.call("Gather", x, places, axis=0) for x in scanned]
        found = _step(writer, body, [*states, *parts], step)
        states = found[: len(states)]
        for values, value in zip(collected, found[len(states) :], strict=True):
            values.append(value)
    return [*states, *(_stacked(writer, values) for values in collected)]


def _step(writer: NodeWriter, body: Any, given: Sequence[str], step: int) -> list[str]:
    """One run of a body. The names of its outputs; those of the graph around it stay."""
    from onnx import NodeProto, numpy_helper

    names = dict(zip((value.name for value in body.input), given, strict=True))
    for tensor in body.initializer:
        names[tensor.name] = writer.constant(numpy_helper.to_array(tensor))
    for node in body.node:
        copied = NodeProto()
        copied.CopyFrom(node)
        copied.input[:] = [names.get(name, name) for name in node.input]
        for name in node.output:
            names[name] = f"{writer.prefix}step{step}_{name}" if name else ""
        copied.output[:] = [names[name] for name in node.output]
        copied.name = ""
        writer.nodes.append(copied)
    return [names.get(value.name, value.name) for value in body.output]


def _stacked(writer: NodeWriter, parts: Sequence[str]) -> str:
    """The values of all steps along a first dimension of their own."""
    if writer.opset >= 13:
        axis = writer.constant(np.asarray([0]))
        rows = [writer.call("Unsqueeze", part, axis) for part in parts]
    else:
        rows = [writer.call("Unsqueeze", part, axes=[0]) for part in parts]
    return writer.call("Concat", *rows, axis=0)
