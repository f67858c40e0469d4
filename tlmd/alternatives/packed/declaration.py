"""The alternatives with packed weights: in float32, in pairs of bfloat16, in quads of int8."""

from __future__ import annotations

from functools import partial

from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.implementation import DirectProgram
from tlmd.alternatives.packed import packed_weights
from tlmd.alternatives.packed.packed import GROUPED, PRODUCTS, packed
from tlmd.alternatives.packed.packed_sketches import sketches
from tlmd.alternatives.words import bfloat16, int8

_SKETCHES = {PRODUCTS: sketches, GROUPED: sketches}


def _never(_direct: DirectProgram) -> None:
    """Nothing: only tasks of earlier versions have such a program."""


PACKED = Alternative("packed", packed, packed_weights.numbers, _SKETCHES)
PACKED_BF16 = Alternative(
    "paired_bf16",
    partial(packed, words=bfloat16.WORDS),
    packed_weights.pairs_of_halves,
    _SKETCHES,
    exact=False,
    multiplies="bfloat16",
    needs=(bfloat16.FEATURE,),
)
PACKED_INT8 = Alternative(
    "packed_int8",
    partial(packed, words=int8.WORDS),
    packed_weights.quads_of_neighbours,
    _SKETCHES,
    multiplies="int8",
    needs=(int8.FEATURE,),
)
NEIGHBOURS_BF16 = Alternative(
    "packed_bf16",
    _never,
    packed_weights.pairs_of_neighbours,
    _SKETCHES,
    exact=False,
    multiplies="bfloat16",
    needs=(bfloat16.FEATURE,),
)
BY_PANELS = (PACKED, PACKED_BF16, PACKED_INT8, NEIGHBOURS_BF16)
