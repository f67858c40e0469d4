"""Writing of ONNX nodes that replace others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SPLIT_BY_INPUT = 13  # the first opset in which the sizes are an input of Split
_REDUCE_BY_INPUT = {"ReduceSum": 13}  # the same of the dimensions
_OTHERS_BY_INPUT = 18
_EAGER: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Reshape": np.reshape,
    "Transpose": lambda x, perm: np.transpose(x, perm),
}


@dataclass
class NodeWriter:
    """Nodes and constants that replace one node. Operators of constants are computed at once."""

    prefix: str
    opset: int

    tensors: dict[str, Any]
    """The constants of the model, by name."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def call(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """The name of the result of an operator."""
        from onnx import helper

        if operator in _EAGER and not name and all(x in self.tensors for x in inputs):
            return self.constant(_EAGER[operator](*map(self.value, inputs), **attributes))
        name = name or f"{self.prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any) -> str:
        """The name of a constant."""
        from onnx import numpy_helper

        name = f"{self.prefix}constant_{len(self.constants)}"
        tensor = numpy_helper.from_array(np.asarray(value, order="C"), name)
        self.constants.append(tensor)
        self.tensors[name] = tensor
        return name

    def value(self, name: str) -> Any:
        """The value of a known constant."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.tensors[name])

    def reshape(self, x: str, shape: list[int]) -> str:
        """`x` in another shape."""
        return self.call("Reshape", x, self.constant(np.asarray(shape, np.int64)))

    def cast(self, x: str, dtype: Any) -> str:
        """`x` with another element type, one of numpy."""
        from onnx import helper

        return self.call("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def take(self, x: str, places: Any, axis: int) -> str:
        """The elements of `x` at known places of a dimension."""
        return self.call("Gather", x, self.constant(np.asarray(places, np.int64)), axis=axis)

    def reduce(self, operator: str, x: str, axes: list[int], keep: bool = True) -> str:
        """The reduction of `x` over dimensions."""
        if self.opset < _REDUCE_BY_INPUT.get(operator, _OTHERS_BY_INPUT):
            return self.call(operator, x, axes=axes, keepdims=int(keep))
        dims = self.constant(np.asarray(axes, np.int64))
        return self.call(operator, x, dims, keepdims=int(keep))

    def scaled(self, x: str, factor: float, dtype: Any) -> str:
        """`x`, of this element type, times a number."""
        return x if factor == 1 else self.call("Mul", x, self.constant(np.asarray(factor, dtype)))

    def split(self, x: str, sizes: list[int], axis: int = -1) -> list[str]:
        """`x` cut along a dimension."""
        from onnx import helper

        if len(sizes) == 1:
            return [x]
        if x in self.tensors:
            parts = np.split(self.value(x), np.cumsum(sizes)[:-1], axis)
            return [self.constant(part) for part in parts]
        names = [f"{self.prefix}{len(self.nodes)}_{place}" for place in range(len(sizes))]
        inputs, attributes = [x], {"split": sizes}
        if self.opset >= _SPLIT_BY_INPUT:
            inputs, attributes = [x, self.constant(np.asarray(sizes, np.int64))], {}
        self.nodes.append(helper.make_node("Split", inputs, names, axis=axis, **attributes))
        return names
