"""Fused programs with one contraction ``output[...] += data[...] * weights[...]``.

An alternative replaces the loops of the contraction; the padding before it and the elementwise
blocks after it stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx

from tlmd.alternatives.expressions import REDUCTION, long, same, substituted

DTYPE = "float32"
_MULTIPLIED_BY = {DTYPE: (DTYPE, DTYPE), "uint8": ("int8", "int32")}
"""Dtype of the data -> those of the weights and of the sums."""


@dataclass(frozen=True)
class Contraction:
    """Where the contraction is in a program, and what it reads and writes."""

    position: int
    """Place of its loops in the body of the root block."""

    iterators: tuple[Any, ...]
    """`IterVar` of the block: the spatial ones in the order of the output's dimensions."""

    data: Any
    """The load of the data."""

    weights: Any
    """The load of the weights, which are a parameter of the program."""

    output: Any
    """The buffer that it writes."""

    is_padded: bool = False
    """Whether the block before it pads the data, and does not only copy them."""

    def placeholder(self) -> Any:
        """A tensor like the data, for another program."""
        source = self.data.source
        return te.placeholder(long(shape_of(source)), dtype_of(source), name="data")

    def data_at(self, output: Sequence[Any], terms: Sequence[Any]) -> list[Any]:
        """Indices of the data, with values for the first spatial variables and those of the sum."""
        places = zip(self.spatial, output, strict=False), zip(self.reduction, terms, strict=False)
        values = list(itertools.chain(*places))
        return [substituted(index, values) for index in self.data.indices]

    def has_weights_in(self, parameters: Iterable[Any]) -> bool:
        """Whether the weights are one of the parameters."""
        return any(self.weights.source.same_as(one) for one in parameters)

    @property
    def spatial(self) -> list[Any]:
        """The variables of the spatial iterators."""
        return [i.var for i in self.iterators if int(i.iter_type) != REDUCTION]

    @property
    def reduction(self) -> list[Any]:
        """The variables of the iterators of the sum."""
        return [i.var for i in self.iterators if int(i.iter_type) == REDUCTION]

    def replaced(self, module: Any, stages: Any) -> Any:
        """`module` with the stages of the function ``(data, weights, output)`` as its contraction.

        The parameter for the weights gets the shape that `stages` has for it.
        """
        function = module["main"]
        data, weights, output = stages.params
        buffers = {data: self.data.source, output: self.output}
        inner = tvm_ffi.structural_map(stages.body.block, (tirx.Var, lambda v: buffers.get(v, v)))
        root = function.body.block
        nests = list(getattr(root.body, "seq", [root.body]))
        nests[self.position : self.position + 1] = list(getattr(inner.body, "seq", [inner.body]))
        allocated = [*root.alloc_buffers, *inner.alloc_buffers]
        nest = tirx.SeqStmt(nests) if len(nests) > 1 else nests[0]
        block = tvm.s_tir.SBlock([], [], [], "root", nest, alloc_buffers=allocated)
        parameters = [weights if p.same_as(self.weights.source) else p for p in function.params]
        body = tvm.s_tir.SBlockRealize([], True, block)
        made = tirx.PrimFunc(parameters, body, function.ret_type, attrs=function.attrs)
        return tvm.IRModule({"main": tvm.s_tir.renew_defs(made)})


def find_contraction(function: Any, dtype: str = DTYPE) -> Contraction | None:
    """The contraction of a program whose other blocks are a padding and elementwise ones.

    `dtype`: of the data. That of `uint8` with weights in `int8` is summed in `int32`.
    """
    body = getattr(function.body, "block", None)
    inner = getattr(body, "body", None)
    nests = list(getattr(inner, "seq", [inner]))
    blocks: list[Any] = [_block(nest) for nest in nests]
    if None in blocks:
        return None
    sums = [i for i, b in enumerate(blocks) if REDUCTION in _kinds(b)]
    if len(sums) != 1 or sums[0] > 1:  # nothing but a padding comes before it
        return None
    contraction = _loads(sums[0], blocks[sums[0]], dtype)
    if contraction is None or not contraction.has_weights_in(function.params):
        return None
    shape = shape_of(contraction.output)
    is_same_shape = all(_extents(b) == shape for b in blocks[contraction.position + 1 :])
    if contraction.position == 0 or not is_same_shape:
        return contraction if is_same_shape else None
    is_padding = blocks[0].writes[0].source.same_as(contraction.data.source)
    return replace(contraction, is_padded=not is_copy(blocks[0])) if is_padding else None


def with_constants(
    function: Any, constants: Sequence[int], dtype: str = DTYPE
) -> Contraction | None:
    """`find_contraction`, if the weights are constant and each column makes one of the output.

    `constants`: positions of the parameters that are constants.
    """
    contraction = find_contraction(function, dtype)
    if contraction is None:
        return None
    is_constant = contraction.has_weights_in([function.params[i] for i in constants])
    *inner, last = contraction.weights.indices
    is_matrix = last.same_as(contraction.spatial[-1]) and same(inner, contraction.reduction)
    return contraction if is_constant and is_matrix else None


def _loads(position: int, block: Any, dtype: str) -> Contraction | None:
    """What a block loads and stores; None if it is not the sum of a product of two loads."""
    if not isinstance(block.body, tirx.BufferStore):
        return None
    value, output = block.body.value, block.body.buffer
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    loads = (value.a, _widened(value.b.a), _widened(value.b.b))
    if not all(isinstance(load, tvm.ir.TensorLoad) for load in loads):
        return None
    spatial = [i.var for i in block.iter_vars if int(i.iter_type) != REDUCTION]
    is_sum = loads[0].source.same_as(output) and same(loads[0].indices, spatial)
    dtypes = dtype_of(loads[1].source), dtype_of(loads[2].source), dtype_of(output)
    if not is_sum or dtypes != (dtype, *_MULTIPLIED_BY[dtype]):
        return None
    return Contraction(position, tuple(block.iter_vars), loads[1], loads[2], output)


def _widened(value: Any) -> Any:
    """What a cast converts; anything else as it is."""
    return value.value if isinstance(value, tirx.Cast) else value


def is_copy(block: Any) -> bool:
    """Whether a block stores each element of another buffer of its shape in the same place."""
    stored = block.body
    if not isinstance(stored, tirx.BufferStore) or not isinstance(stored.value, tvm.ir.TensorLoad):
        return False
    same_place = same(stored.value.indices, stored.indices)
    return same_place and shape_of(stored.value.source) == shape_of(stored.buffer)


def written_lanes(columns: int, lanes: int) -> int:
    """Elements of the vectors in which rows of the output are written: no vector is cut off."""
    return math.gcd(columns, lanes)


def shape_of(buffer: Any) -> list[int]:
    return [int(extent) for extent in buffer.ty.shape]


def dtype_of(buffer: Any) -> str:
    return str(buffer.ty.dtype)


def _block(nest: Any) -> Any | None:
    """The block of perfectly nested loops; None for anything else."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    return getattr(nest, "block", None)


def _kinds(block: Any) -> list[int]:
    return [int(iterator.iter_type) for iterator in block.iter_vars]


def _extents(block: Any) -> list[int]:
    return [int(iterator.dom.extent) for iterator in block.iter_vars]
