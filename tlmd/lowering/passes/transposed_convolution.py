"""Transposed convolutions as matrix products, or as convolutions of stride 1.

A pixel of the input adds a patch of the kernel's size to the output. One matrix product computes
all patches without a needless multiplication, and the sum of those that overlap is the output
(Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016, section 4). Where
the patches are too many for the caches, or the stride is 1, a convolution writes the s x s pixels
that stand for a pixel of the input as so many channels, and moving channels to pixels puts them in
their places (Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016).
TVM's own loops multiply with the zeros between the pixels of the input, and have no alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.reshapes import static_shape
from tlmd.lowering.passes.rewrites import has_constant_weights, op_name

_PATCHES_BYTES = 4 << 20  # more than a core's caches hold


@dataclass(frozen=True)
class Side:
    """One direction of an image: a transposed convolution as one of stride 1."""

    stride: int
    kernel: int
    padding: int
    inputs: int
    outputs: int

    @property
    def steps(self) -> int:
        """Pixels of the convolution; each stands for `stride` pixels of the output."""
        return -(-self.outputs // self.stride)

    @property
    def taps(self) -> tuple[int, int]:
        """The first and the last neighbour of a pixel that the convolution reads."""
        offsets = [offset for phase in range(self.stride) for offset, _ in self.parts(phase)]
        return min(offsets), max(offsets)

    def parts(self, phase: int) -> list[tuple[int, int]]:
        """For the output pixels ``stride * i + phase``: pairs of neighbour and weight."""
        above, first = divmod(phase + self.padding, self.stride)
        weights = range(first, self.kernel, self.stride)
        return [(above - j, weight) for j, weight in enumerate(weights)]

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros before and after; negative where pixels are not read."""
        low, high = self.taps
        return -low, self.steps + high - self.inputs


def as_convolution(weights: relax.Expr, sides: tuple[Side, Side]) -> NDArray[Any]:
    """The weights ``[H, W, I, s, s, O]`` of the convolution, for weights ``[I, O, h, w]``."""
    (top, bottom), (left, right) = (side.taps for side in sides)
    inputs, outputs, *_ = weights.shape
    strides = [side.stride for side in sides]
    shape = (bottom - top + 1, right - left + 1, inputs, *strides, outputs)
    made = np.zeros(shape, weights.dtype)
    for i in range(strides[0]):
        for j in range(strides[1]):
            for y, row in sides[0].parts(i):
                for x, column in sides[1].parts(j):
                    made[y - top, x - left, :, i, j] = weights[:, :, row, column]
    return made


def add_patches(patches: te.Tensor, sides: tuple[Side, Side]) -> Any:
    """The image ``[n, y, x, O]``, for patches ``[n, H, W, h, w, O]`` of the input's pixels."""
    batch, *_, channels = patches.shape
    rows, columns = sides

    def value(n: tirx.Var, y: tirx.Var, x: tirx.Var, channel: tirx.Var) -> Any:
        terms = [
            tirx.if_then_else(
                tirx.all(*inside_y, *inside_x), patches[n, i, j, h, w, channel], tirx.const(0.0)
            )
            for i, h, inside_y in _patches_of(y, rows)
            for j, w, inside_x in _patches_of(x, columns)
        ]
        return sum(terms[1:], start=terms[0])

    return te.compute((batch, rows.outputs, columns.outputs, channels), value, name="add_patches")


def _patches_of(position: Any, side: Side) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Input pixels whose patches may reach an output pixel: pixel, place in its patch, if so."""
    pixel = tirx.floordiv(position + side.padding, side.stride)
    phase = tirx.floormod(position + side.padding, side.stride)
    for tap in range(-(-side.kernel // side.stride)):
        place = phase + tap * side.stride
        yield pixel - tap, place, [pixel >= tap, pixel - tap < side.inputs, place < side.kernel]


@mutator
class TransposedConvolutions(PyExprMutator):  # type: ignore[misc]
    """Replaces those with constant weights, without groups and dilation."""

    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        if op_name(call) != "relax.nn.conv2d_transpose" or not _is_plain(call):
            return call
        shape, out = static_shape(call.args[0]), static_shape(call)
        if shape is None or out is None:
            return call
        weights = call.args[1].value.numpy()
        top, left, bottom, right = (int(p) for p in call.attrs.padding)
        if (top, left) != (bottom, right):
            return call
        strides = [int(s) for s in call.attrs.strides]
        sides = tuple(
            Side(strides[i], weights.shape[2 + i], (top, left)[i], shape[2 + i], out[2 + i])
            for i in range(2)
        )
        data = self._emit(relax.op.permute_dims(call.args[0], [0, 2, 3, 1]))
        patches = 4 * shape[0] * shape[2] * shape[3] * weights[0].size
        if shape[2:] == (1, 1):
            image = self._from_one_pixel(data, weights, sides, out)
        elif max(strides) > 1 and patches <= _PATCHES_BYTES:
            image = self._from_patches(data, weights, sides, shape)
        else:
            image = self._convolved(data, weights, sides, out)
        return relax.op.permute_dims(image, [0, 3, 1, 2])

    def _emit(self, expr: relax.Expr) -> Any:
        return self.builder_.emit(expr)

    def _from_one_pixel(
        self, data: relax.Expr, weights: relax.Expr, sides: Any, out: tuple[int, ...]
    ) -> Any:
        """A matrix product: each output pixel needs one of the weights, or none."""
        inputs, outputs, *_ = weights.shape
        rows, columns = (
            slice(side.padding, side.padding + min(side.outputs, side.kernel - side.padding))
            for side in sides
        )
        made = np.zeros((inputs, out[2], out[3], outputs), weights.dtype)
        used = weights[:, :, rows, columns].transpose(0, 2, 3, 1)
        made[:, : used.shape[1], : used.shape[2]] = used
        flat = self._emit(relax.op.reshape(data, (out[0], inputs)))
        matrix = relax.const(made.reshape(inputs, -1), str(made.dtype))
        product = self._emit(relax.op.matmul(flat, matrix))
        return self._emit(relax.op.reshape(product, (out[0], out[2], out[3], outputs)))

    def _from_patches(
        self, data: relax.Expr, weights: relax.Expr, sides: Any, shape: tuple[int, ...]
    ) -> Any:
        (inputs, outputs, *window), (batch, _, *pixels) = weights.shape, shape
        flat = self._emit(relax.op.reshape(data, (batch * math.prod(pixels), inputs)))
        matrix = weights.transpose(0, 2, 3, 1).reshape(inputs, -1)
        product = self._emit(relax.op.matmul(flat, relax.const(matrix, str(matrix.dtype))))
        patches = self._emit(relax.op.reshape(product, (batch, *pixels, *window, outputs)))
        adding = partial(add_patches, sides=sides)
        return self.builder_.emit_te(adding, patches, primfunc_name_hint="add_patches")

    def _convolved(
        self, data: relax.Expr, weights: relax.Expr, sides: Any, out: tuple[int, ...]
    ) -> Any:
        made = as_convolution(weights, sides)
        rows, columns, strides = sides[0].steps, sides[1].steps, [s.stride for s in sides]
        (top, bottom), (left, right) = (side.pads for side in sides)
        kernel = relax.const(made.reshape(*made.shape[:3], -1), str(made.dtype))
        moved = self._emit(
            relax.op.nn.conv2d(
                data,
                kernel,
                padding=(top, left, bottom, right),
                data_layout="NHWC",
                kernel_layout="HWIO",
            )
        )
        outputs = out[1]
        split = self._emit(relax.op.reshape(moved, (out[0], rows, columns, *strides, outputs)))
        placed = self._emit(relax.op.permute_dims(split, [0, 1, 3, 2, 4, 5]))
        whole = (out[0], rows * strides[0], columns * strides[1], outputs)
        image = self._emit(relax.op.reshape(placed, whole))
        if whole[1:3] == out[2:]:
            return image
        return self._emit(relax.op.strided_slice(image, [1, 2], [0, 0], list(out[2:])))


def _is_plain(call: relax.Call) -> bool:
    is_single = int(call.attrs.groups) == 1 and all(int(d) == 1 for d in call.attrs.dilation)
    return is_single and has_constant_weights(call, "NCHW", "IOHW")
