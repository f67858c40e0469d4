"""Rewriting of ONNX's Resize and Upsample into sums of elements at known places.

TVM computes with the quotient of the extents, where ONNX computes with the scale that is given;
it takes the wrong neighbour where a factor is not whole, resizes only the last dimensions, and
lacks antialiasing, policies of the aspect ratio and some transformations of coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.models.onnx.rewriting import Operation, Rewriters

Array = NDArray[Any]
_MOST_TERMS = 4  # of a sum; with more, a matrix product is cheaper
_IN_TVM = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


def rewriters() -> Rewriters:
    """The rewriters of this module."""
    return {("", "Resize"): _resize, ("", "Upsample"): _resize}


@dataclass(frozen=True)
class _Axis:
    """How one dimension is resized."""

    extent: int
    count: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    """The part of the dimension that is resized, of `tf_crop_and_resize`."""

    def coordinates(self, kind: str) -> Array:
        """The places in the source, ``[count]``."""
        x, last = np.arange(self.count, dtype=np.float64), self.extent - 1
        if kind == "asymmetric":
            return x / self.scale
        if kind == "align_corners":
            return x * last / (self.count - 1) if self.count > 1 else 0 * x
        if kind == "tf_crop_and_resize":
            if self.count == 1:
                return (self.start + self.end) / 2 * last + x
            step = (self.end - self.start) * last / (self.count - 1)
            return self.start * last + x * step
        if kind == "pytorch_half_pixel" and self.count == 1:
            return 0 * x
        centres = (x + 0.5) / self.scale - 0.5
        if kind == "half_pixel_symmetric":
            centres += self.extent / 2 * (1 - self.count / (self.scale * self.extent))
        return centres

    @property
    def is_kept(self) -> bool:
        """Whether nothing changes."""
        return self.extent == self.count and self.scale == 1

    @property
    def is_whole(self) -> bool:
        """Whether it grows by a whole factor."""
        return self.count == self.extent * self.scale and self.count % self.extent == 0


def _resize(operation: Operation) -> Sequence[str] | None:
    x, attributes = operation.input(0), operation.attributes
    dtype = operation.dtype(x)
    axes = _axes(operation)
    mode = {"bilinear": "linear"}.get(m := attributes.get("mode", "nearest"), m)
    old = operation.node.op_type == "Upsample" or operation.writer.opset < 11
    kind = attributes.get("coordinate_transformation_mode", "half_pixel")
    kind = "asymmetric" if old else kind
    if axes is None or (mode != "nearest" and dtype not in (np.float16, np.float32, np.float64)):
        return None
    if _is_right_in_tvm(mode, kind, axes, attributes):
        return None
    writer = operation.writer
    wide = np.float32 if mode != "nearest" and dtype == np.float16 else dtype
    result = x if wide == dtype else writer.cast(x, wide)
    cropped = kind == "tf_crop_and_resize"
    if not cropped and all(axis.count == axis.extent for axis in axes):
        return [x]  # whatever the scales say
    for axis, resized in enumerate(axes):
        if resized.is_kept and not cropped:
            continue
        places = resized.coordinates(kind)
        if mode == "nearest":
            rounding = attributes.get("nearest_mode", "round_prefer_floor")
            if old:
                rounding = "floor" if resized.scale >= 1 else "ceil"
            # A factor such as 1.3 has an error, which must not move what is in the middle.
            nearest = _NEAREST[rounding](np.round(places, 5))
            nearest = np.clip(nearest, 0, resized.extent - 1)
            result = writer.take(result, nearest, axis)
        else:
            weights = _weights(places, resized, mode, attributes)
            result = _applied(operation, result, axis, weights.astype(wide))
    if cropped:
        value = np.asarray(attributes.get("extrapolation_value", 0), wide)
        result = _extrapolated(operation, result, axes, value)
    return [result if wide == dtype else writer.cast(result, dtype)]


def _is_right_in_tvm(
    mode: str, kind: str, axes: Sequence[_Axis], attributes: dict[str, Any]
) -> bool:
    image = axes[2:]
    usual = 1 <= len(image) <= 3 and kind in _IN_TVM and all(axis.is_kept for axis in axes[:2])
    if attributes.get("antialias") or attributes.get("exclude_outside") or "axes" in attributes:
        usual = False
    exact = all(axis.count == axis.extent * axis.scale and axis.count > 1 for axis in image)
    if mode == "nearest":
        exact = all(axis.is_whole for axis in image)
    return usual and exact and "keep_aspect_ratio_policy" not in attributes


def _axes(operation: Operation) -> list[_Axis] | None:
    """How each dimension is resized."""
    attributes, extents = operation.attributes, operation.shape(operation.input(0))
    rank = len(extents)
    named = [axis % rank for axis in attributes.get("axes", range(rank))]
    given = np.asarray([extents[axis] for axis in named])
    scales, sizes, ends = _arguments(operation)
    if sizes is not None and sizes.size:
        scales = sizes / given
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            common = scales.min() if policy == "not_larger" else scales.max()
            scales, sizes = np.full(len(named), common), np.floor(given * common + 0.5)
    elif scales is None or not scales.size:
        return None
    else:
        sizes = np.floor(np.asarray(scales, np.float32) * given.astype(np.float32))
    axes = [_Axis(extent, extent, 1.0) for extent in extents]
    for place, axis in enumerate(named):
        part = () if ends is None else (float(ends[place]), float(ends[place + len(named)]))
        axes[axis] = _Axis(extents[axis], int(sizes[place]), float(scales[place]), *part)
    return axes if all(axis.count > 0 and axis.extent > 0 for axis in axes) else None


def _arguments(operation: Operation) -> tuple[Array | None, Array | None, Array | None]:
    """The scales, the sizes, and the ends of the part that is resized."""
    if "scales" in operation.attributes:
        return np.asarray(operation.attributes["scales"]), None, None
    if len(operation.node.input) == 2:
        return operation.constant(1), None, None
    cropped = operation.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    ends = operation.constant(1) if cropped else None
    return operation.constant(2), operation.constant(3), ends


def _weights(places: Array, axis: _Axis, mode: str, attributes: dict[str, Any]) -> Array:
    """What each element of the source counts in each of the result, ``[count, extent]``.

    Places outside count for the nearest one inside, if they are not excluded.
    """
    linear, shrunk = mode == "linear", 1.0
    if attributes.get("antialias"):
        shrunk = min(1.0, float(axis.scale))
    reach = (1 if linear else 2) / shrunk
    taps = np.floor(places)[:, None] + np.arange(-math.ceil(reach), math.ceil(reach) + 1)
    distances = np.abs(taps - places[:, None]) * shrunk
    if linear:
        weights = np.maximum(1 - distances, 0)
    else:
        weights = _cubic(distances, attributes.get("cubic_coeff_a", -0.75))
    if attributes.get("exclude_outside"):
        weights = np.where((taps >= 0) & (taps < axis.extent), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((axis.count, axis.extent))
    rows = np.broadcast_to(np.arange(axis.count)[:, None], taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, axis.extent - 1).astype(int)), weights)
    return matrix


def _cubic(x: Array, a: float) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _applied(operation: Operation, x: str, axis: int, weights: Array) -> str:
    """The products of a matrix with a dimension of `x`."""
    writer, rank = operation.writer, len(operation.shape(operation.input(0)))
    terms = int((weights != 0).sum(1).max())
    if terms > _MOST_TERMS:
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]
        moved = x if axis == rank - 1 else writer.call("Transpose", x, perm=order)
        product = writer.call("MatMul", moved, writer.constant(weights.T))
        return product if axis == rank - 1 else writer.call("Transpose", product, perm=order)
    places = np.argsort(weights == 0, axis=1, kind="stable")[:, :terms]
    total = ""
    for term in range(terms):
        weight = np.take_along_axis(weights, places[:, [term]], 1)
        weight = weight.reshape([-1 if other == axis else 1 for other in range(rank)])
        part = writer.take(x, places[:, term], axis)
        part = writer.call("Mul", part, writer.constant(weight))
        total = writer.call("Add", total, part) if total else part
    return total


def _extrapolated(operation: Operation, x: str, axes: Sequence[_Axis], value: Array) -> str:
    """`x` with a value of its own where it was read outside of the source."""
    writer = operation.writer
    for axis, resized in enumerate(axes):
        places = resized.coordinates("tf_crop_and_resize")
        outside = (places < 0) | (places > resized.extent - 1)
        if outside.any():
            shape = [-1 if other == axis else 1 for other in range(len(axes))]
            mask = writer.constant(outside.reshape(shape))
            x = writer.call("Where", mask, writer.constant(value), x)
    return x
