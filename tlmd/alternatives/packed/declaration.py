"""The alternatives with packed weights: in float32, in pairs of bfloat16, in quads of int8."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives import weights as arrays
from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.packed.packed import GROUPED, PRODUCTS, packed
from tlmd.alternatives.packed.packed_sketches import sketches
from tlmd.alternatives.weights import Shape
from tlmd.alternatives.words import bfloat16, int8


def in_pairs(
    weights: NDArray[Any], shape: Shape, are_neighbours: bool = False
) -> NDArray[np.uint32]:
    """Pairs ``[panels, K / 2, columns]`` of a channel and the one after half of the channels.

    `are_neighbours`: pairs of neighbouring channels, which programs of earlier versions have.
    """
    panels, pairs, columns = shape
    taps = pairs if are_neighbours else math.prod(weights.shape[:-2])
    short = arrays.rounded(arrays.packed(weights, (panels, 2 * pairs, columns)))
    halves = short.reshape(panels, taps, 2, -1, columns)
    return arrays.pairs(halves[:, :, 0], halves[:, :, 1]).reshape(shape)


def in_quads(weights: NDArray[np.int8], shape: Shape) -> NDArray[np.uint32]:
    """Words ``[panels, K / 4, columns]`` of four neighbouring channels."""
    panels, quads, columns = shape
    packed = arrays.packed(weights, (panels, 4 * quads, columns))
    return arrays.quads(packed.reshape(panels, quads, 4, columns).transpose(0, 1, 3, 2))


_SKETCHES = {PRODUCTS: sketches, GROUPED: sketches}
PACKED = Alternative("packed", packed, arrays.packed, _SKETCHES)
PACKED_BF16 = Alternative(
    "paired_bf16",
    partial(packed, words=bfloat16.WORDS),
    in_pairs,
    _SKETCHES,
    exact=False,
    multiplies="bfloat16",
    needs=(bfloat16.FEATURE,),
)
PACKED_INT8 = Alternative(
    "packed_int8",
    partial(packed, words=int8.WORDS),
    in_quads,
    _SKETCHES,
    multiplies="int8",
    needs=(int8.FEATURE,),
)
NEIGHBOURS_BF16 = replace(
    PACKED_BF16,
    name="packed_bf16",
    find=lambda _direct: None,  # only tasks of earlier versions have such a program
    weights=partial(in_pairs, are_neighbours=True),
)
BY_PANELS = (PACKED, PACKED_BF16, PACKED_INT8, NEIGHBOURS_BF16)
