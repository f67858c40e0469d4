"""The types of the values of an ONNX model, and which of them TVM can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from tlmd.models.onnx.rewriting import STANDARD

_FOREIGN = {TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128}


class OnnxTypes:
    """The types that inference finds; for other values those of one run.

    The shape of a value that inference does not know may be another one in the next run. Only what
    an operator of another domain gives, of which inference knows nothing, is taken to keep it.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[Any, Any]) -> None:
        self._values = values
        typed = onnx.ModelProto()
        typed.CopyFrom(model)
        for node in model.graph.node:
            if node.domain not in STANDARD:
                typed.graph.value_info.extend(
                    _described(name, values[name], fixed=True)
                    for name in node.output
                    if isinstance(values.get(name), np.ndarray)
                )
        graph = shape_inference.infer_shapes(typed, data_prop=True).graph
        known = [*graph.input, *graph.value_info, *graph.output]
        self._known = {value.name: value for value in known}

    def is_plain(self, name: str) -> bool:
        """Whether a value is a tensor of numbers with a fixed shape and elements."""
        kind = self._kind(name)
        if kind is None or not kind.HasField("shape") or kind.elem_type in (0, *_FOREIGN):
            return False
        value = self._values.get(name)
        return isinstance(value, np.ndarray) and all(dim.dim_value > 0 for dim in kind.shape.dim)

    def _kind(self, name: str) -> Any:
        value = self._known.get(name)
        if value is None or not value.type.HasField("tensor_type"):
            return None
        return value.type.tensor_type

    def form(self, name: str) -> Any:
        """The element type and the rank of a value; None if it is a weight or not known."""
        kind = self._kind(name)
        return None if kind is None else (kind.elem_type, len(kind.shape.dim))

    def described(self, name: str) -> onnx.ValueInfoProto:
        """A value as an input or output of a model."""
        value = self._known.get(name)
        if value is None or not value.type.WhichOneof("value"):
            return _described(name, self._values[name], fixed=False)
        kind = self._kind(name)
        return _described(name, self._values[name], False) if kind and not kind.elem_type else value


def _described(name: str, value: Any, fixed: bool) -> onnx.ValueInfoProto:
    """A value like the one of a run; `fixed`: also with its shape."""
    if isinstance(value, list):
        element = _element(value[0]) if value else TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, element, None)
    shape = list(value.shape) if fixed else [None] * value.ndim
    return helper.make_tensor_value_info(name, _element(value), shape)


def _element(value: Any) -> int:
    if value.dtype.kind in "OUS":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))
