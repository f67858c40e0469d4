"""About how much arithmetic an operator of ONNX does."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shapes = Sequence[tuple[int, ...]]

# Where the weights of a convolution, or the left factor of a product, are among the inputs.
_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "FusedConv": 1}
_PRODUCTS = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul"), 0),
    **dict.fromkeys(("MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"), 0),
}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_OTHERS = (
    *("ConvTranspose", "Gemm", "QGemm", "Attention", "MultiHeadAttention", "GroupQueryAttention"),
    *("Einsum", "LayerNormalization", "BatchNormalization", "GroupNormalization"),
    *("InstanceNormalization", "SkipLayerNormalization", "DeformConv"),
)


def is_heavy(operator: str) -> bool:
    """Whether a part with this operator may be worth a library of its own."""
    known = _CONVOLUTIONS.keys() | _PRODUCTS.keys() | _RECURRENT
    return operator in known or operator in _OTHERS


def work(operator: str, inputs: Shapes, outputs: Shapes) -> float:
    """Additions and multiplications, from the shapes of its inputs and outputs."""
    results = float(sum(map(prod, outputs)))
    if operator in _CONVOLUTIONS:
        return 2 * prod(outputs[0]) * prod(inputs[_CONVOLUTIONS[operator]][1:])
    if operator == "ConvTranspose":
        return 2 * prod(inputs[0]) * prod(inputs[1][1:])
    if operator in _PRODUCTS and inputs[_PRODUCTS[operator]]:
        return 2 * prod(outputs[0]) * inputs[_PRODUCTS[operator]][-1]
    if operator == "Gemm" and outputs[0] and outputs[0][0]:
        return 2 * prod(inputs[0]) * prod(outputs[0]) / outputs[0][0]
    if operator in _RECURRENT:
        return 2 * prod(inputs[0][:2]) * (prod(inputs[1]) + prod(inputs[2]))
    return results
