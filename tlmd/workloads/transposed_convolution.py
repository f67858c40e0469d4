"""Transposed convolutions as convolutions of stride 1 that write several pixels at a time.

A transposed convolution of stride s writes s x s pixels for each pixel of its input, each with its
own part of the weights. So a convolution with s * s times as many channels computes all of them,
and moving channels to pixels puts them in their places (Shi et al., "Is the deconvolution layer
the same as a convolutional layer?", 2016). TVM's own loops multiply with the zeros between the
pixels of the input, and have no alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.workloads.reshapes import static_shape
from tlmd.workloads.rewrites import dtype_of, op_name


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


def as_convolution(weights: NDArray[Any], sides: tuple[Side, Side]) -> NDArray[Any]:
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


@mutator
class TransposedConvolutions(PyExprMutator):  # type: ignore[misc]
    """Replaces those with constant weights, without groups and dilation."""

    def visit_call_(self, call: Any) -> Any:
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
        if shape[2:] == (1, 1):
            found = self._from_one_pixel(data, weights, sides, out)
        else:
            found = self._convolved(data, weights, sides, out)
        return relax.op.permute_dims(found, [0, 3, 1, 2])

    def _emit(self, expr: Any) -> Any:
        return self.builder_.emit(expr)

    def _from_one_pixel(self, data: Any, weights: Any, sides: Any, out: tuple[int, ...]) -> Any:
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

    def _convolved(self, data: Any, weights: Any, sides: Any, out: tuple[int, ...]) -> Any:
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


def _is_plain(call: Any) -> bool:
    attrs, weights = call.attrs, call.args[1]
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    is_constant = isinstance(weights, GenericConst) and dtype_of(weights) == "float32"
    is_single = int(attrs.groups) == 1 and all(int(d) == 1 for d in attrs.dilation)
    if not (is_constant and is_single and layouts[:2] == ("NCHW", "IOHW")):
        return False
    return layouts[2] in ("NCHW", "")
