"""Winograd's minimal filtering as a program: a 3 x 3 convolution of stride 1 -> the same, faster.

The convolution's block in a fused program is replaced; what is fused to it stays. The blocks are
named, so that the sketches find them: rows of the transformed tiles (`ROWS`), tiles (`TILES`),
products summed over the channels (`PRODUCTS`), rows of the output tiles (`SUMS`), outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx

from tlmd.alternatives.implementation import (
    DIRECT,
    PER_ELEMENT,
    PER_WEIGHT,
    REDUCTION,
    Implementation,
)
from tlmd.alternatives.transforms import FILTERINGS, Filtering, Matrix

PAD, ROWS, TILES, PRODUCTS, SUMS, OUTPUTS, PLACED = (
    f"winograd_{stage}"
    for stage in ("pad", "rows", "tiles", "products", "sums", "outputs", "placed")
)
_DTYPE = "float32"


@dataclass(frozen=True)
class _Convolution:
    """Where the convolution is in a program, and its buffers."""

    position: int
    """Of its loops in the body of the root block."""

    data: Any
    """``[N, H + 2, W + 2, CI]``"""

    weights: Any
    """``[3, 3, CI, CO]``"""

    output: Any
    """``[N, H, W, CO]``"""


def winograd(module: Any, lanes: int) -> list[Implementation]:
    """The direct program of `module` and Winograd's; none where it is no such convolution.

    The weights of the others are an argument ``[m + 2, m + 2, CI, CO]`` at the same position.
    `lanes`: elements of a vector of the target; the channels must be a multiple of it.
    """
    found = _convolution(module["main"])
    if found is None or any(extent % lanes for extent in _shape(found.weights)[2:]):
        return []
    images, height, width, outputs = _shape(found.output)
    inputs = _shape(found.weights)[2]
    products = 9 * inputs * outputs
    flops = 2.0 * images * height * width * products
    listed = [Implementation(DIRECT, module, flops, flops + PER_WEIGHT * products)]
    for name, filtering in FILTERINGS.items():
        tiles = images * -(-height // filtering.outputs) * -(-width // filtering.outputs)
        positions = filtering.inputs**2
        products = positions * inputs * outputs
        flops = 2.0 * tiles * products
        elements = tiles * positions * (inputs + outputs)
        work = flops + PER_WEIGHT * products + PER_ELEMENT * elements
        listed.append(Implementation(name, _replaced(module, found, filtering), flops, work))
    return listed


def _replaced(module: Any, found: _Convolution, filtering: Filtering) -> Any:
    """The module with the stages in the place of the convolution."""
    function = module["main"]
    stages = _stages(_shape(found.data), _shape(found.output), filtering)
    weights = stages.params[1]
    replaced = {stages.params[0]: found.data, stages.params[2]: found.output}
    inner = tvm_ffi.structural_map(
        stages.body.block, (tirx.Var, lambda var: replaced.get(var, var))
    )
    root = function.body.block
    nests = list(root.body.seq)
    nests[found.position : found.position + 1] = list(inner.body.seq)
    block = tvm.s_tir.SBlock(
        [],
        [],
        [],
        "root",
        tirx.SeqStmt(nests),
        alloc_buffers=[*root.alloc_buffers, *inner.alloc_buffers],
    )
    parameters = [weights if p.same_as(found.weights) else p for p in function.params]
    body = tvm.s_tir.SBlockRealize([], True, block)
    made = tirx.PrimFunc(parameters, body, function.ret_type, attrs=function.attrs)
    return tvm.IRModule({"main": tvm.s_tir.renew_defs(made)})


def _convolution(function: Any) -> _Convolution | None:
    """The convolution of a program whose other blocks are a padding and elementwise ones."""
    body = getattr(function.body, "block", None)
    nests = list(getattr(getattr(body, "body", None), "seq", ()))
    blocks: list[Any] = [_block(nest) for nest in nests]
    if not blocks or None in blocks:
        return None
    sums = [i for i, b in enumerate(blocks) if REDUCTION in _kinds(b)]
    if len(sums) != 1 or sums[0] > 1:  # nothing but a padding comes before it
        return None
    position = sums[0]
    found = _operands(blocks[position], function.params)
    if found is None:
        return None
    data, weights, output = found
    shape = _shape(output)
    is_same_shape = all(_extents(b) == shape for b in blocks[position + 1 :])
    is_padding = position == 0 or blocks[0].writes[0].source.same_as(data)
    fits = _shape(data) == [shape[0], shape[1] + 2, shape[2] + 2, _shape(weights)[2]]
    if not (is_same_shape and is_padding and fits):
        return None
    return _Convolution(position, data, weights, output)


def _operands(block: Any, parameters: Any) -> tuple[Any, Any, Any] | None:
    """Data, weights, output of ``out[n, y, x, o] += data[n, y + i, x + j, c] * w[i, j, c, o]``."""
    if _kinds(block) != [0, 0, 0, 0, 2, 2, 2] or not isinstance(block.body, tirx.BufferStore):
        return None
    n, y, x, o, i, j, c = (iterator.var for iterator in block.iter_vars)
    value, output = block.body.value, block.body.buffer
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    loads = (value.a, value.b.a, value.b.b)
    if not all(isinstance(load, tvm.ir.TensorLoad) for load in loads):
        return None
    total, data, weights = loads
    indices = ((total, (n, y, x, o)), (data, (n, y + i, x + j, c)), (weights, (i, j, c, o)))
    matches = all(
        len(load.indices) == len(want)
        and all(tvm_ffi.structural_equal(a, b) for a, b in zip(load.indices, want, strict=True))
        for load, want in indices
    )
    constant = any(weights.source.same_as(p) for p in parameters)
    is_three = _shape(weights.source)[:2] == [3, 3]
    if not (matches and constant and is_three) or str(output.ty.dtype) != _DTYPE:
        return None
    return data.source, weights.source, output


def _block(nest: Any) -> Any | None:
    """The block of perfectly nested loops; None for anything else."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    return getattr(nest, "block", None)


def _kinds(block: Any) -> list[int]:
    return [int(iterator.iter_type) for iterator in block.iter_vars]


def _extents(block: Any) -> list[int]:
    return [int(iterator.dom.extent) for iterator in block.iter_vars]


def _shape(buffer: Any) -> list[int]:
    return [int(extent) for extent in buffer.ty.shape]


def _stages(data: Sequence[int], output: Sequence[int], filtering: Filtering) -> Any:
    """The function ``(data, weights, output)`` of the convolution in stages."""
    m, a = filtering.outputs, filtering.inputs
    images, height, width, channels = output
    rows, columns = -(-height // m), -(-width // m)
    tiles = (images, rows, columns)
    source = te.placeholder(_long(data), _DTYPE, name="data")
    weights = te.placeholder(_long((a, a, data[3], channels)), _DTYPE, name="weights")
    padded = _padded(source, (images, rows * m + 2, columns * m + 2, data[3]))
    half = te.compute(
        _long((a, a, *tiles, data[3])),
        lambda i, j, n, h, w, c: _row(
            filtering.data, i, lambda k: padded[n, h * m + k, w * m + j, c]
        ),
        name=ROWS,
    )
    whole = te.compute(
        _long((a, a, *tiles, data[3])),
        lambda i, j, n, h, w, c: _row(filtering.data, j, lambda k: half[i, k, n, h, w, c]),
        name=TILES,
    )
    channel = te.reduce_axis((tirx.const(0, "int64"), tirx.const(data[3], "int64")), name="c")
    products = te.compute(
        _long((a, a, *tiles, channels)),
        lambda i, j, n, h, w, o: te.sum(
            whole[i, j, n, h, w, channel] * weights[i, j, channel, o], axis=channel
        ),
        name=PRODUCTS,
    )
    sums = te.compute(
        _long((m, a, *tiles, channels)),
        lambda y, j, n, h, w, o: _row(filtering.output, y, lambda k: products[k, j, n, h, w, o]),
        name=SUMS,
    )
    results = te.compute(
        _long((m, m, *tiles, channels)),
        lambda y, x, n, h, w, o: _row(filtering.output, x, lambda k: sums[y, k, n, h, w, o]),
        name=OUTPUTS,
    )
    placed = te.compute(
        _long(output),
        lambda n, h, w, o: results[h % m, w % m, n, h // m, w // m, o],
        name=PLACED,
    )
    return te.create_prim_func([source, weights, placed])


def _padded(source: Any, shape: tuple[int, ...]) -> Any:
    """`source` with zeros after its last row and column, where the tiles reach beyond them."""
    _, height, width, _ = map(int, source.shape)
    if (height, width) == shape[1:3]:
        return source
    zero = tirx.const(0.0, _DTYPE)
    return te.compute(
        _long(shape),
        lambda n, h, w, c: tirx.if_then_else(
            tirx.all(h < height, w < width), source[n, h, w, c], zero
        ),
        name=PAD,
    )


def _row(matrix: Matrix, row: Any, term: Callable[[Any], Any]) -> Any:
    """Row `row` of `matrix` times the terms. `row` becomes a constant when its loop is unrolled."""
    sums = [_sum(coefficients, term) for coefficients in matrix.tolist()]
    found = sums[-1]
    for index in reversed(range(len(sums) - 1)):
        found = tirx.Select(row == index, sums[index], found)
    return found


def _sum(coefficients: Sequence[float], term: Callable[[Any], Any]) -> Any:
    """The sum of the terms times their coefficients, without products by 1 and 0."""
    found = None
    for index, coefficient in enumerate(coefficients):
        if coefficient == 0:
            continue
        size = abs(coefficient)
        value = term(tirx.const(index, "int64"))
        value = value if size == 1 else value * tirx.const(size, _DTYPE)
        if found is None:
            found = value if coefficient > 0 else tirx.const(0.0, _DTYPE) - value
        else:
            found = found + value if coefficient > 0 else found - value
    return found


def _long(shape: Sequence[int]) -> list[Any]:
    """Extents as the programs of models have them, int64."""
    return [tirx.const(int(extent), "int64") for extent in shape]
