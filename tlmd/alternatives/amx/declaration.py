"""The alternatives for the matrix unit: bfloat16, two bfloat16 parts of float32, int8."""

from __future__ import annotations

from functools import partial

from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.amx import (
    amx_attention,
    amx_attention_sketches,
    amx_grid,
    amx_grid_sketches,
    amx_packed,
    amx_sketches,
    amx_weights,
)
from tlmd.alternatives.amx.amx import FEATURES
from tlmd.alternatives.amx.amx_code import BF16, INT8, PARTS
from tlmd.alternatives.amx.amx_numbers import Numbers
from tlmd.alternatives.implementation import DirectProgram, Implementation

_SKETCHES = {
    amx_packed.PRODUCED: amx_sketches.sketches,
    amx_grid.PRODUCED: amx_grid_sketches.sketches,
    amx_attention.KEYS: amx_attention_sketches.sketches,
}


def _program(direct: DirectProgram, kind: Numbers) -> Implementation | None:
    """The program of attention, of a GEMM or of a convolution."""
    program = amx_attention.unit_attention if direct.attention else amx_packed.packed
    return program(direct, kind)


AMX_BF16 = Alternative(
    "amx_bf16",
    partial(_program, kind=Numbers(BF16, parts=1, work=0.35)),
    amx_weights.pairs,
    _SKETCHES,
    exact=False,
    multiplies="bfloat16",
    needs=FEATURES[BF16],
)
AMX_PARTS = Alternative(
    "amx_bf16x3",
    partial(_program, kind=Numbers(BF16, parts=2, work=0.65)),
    amx_weights.pairs,
    _SKETCHES,
    exact=False,
    multiplies=PARTS,
    needs=FEATURES[BF16],
)
AMX_INT8 = Alternative(
    "amx_int8",
    partial(_program, kind=Numbers(INT8, parts=1, work=0.2)),
    amx_weights.quads,
    _SKETCHES,
    multiplies="int8",
    needs=FEATURES[INT8],
)
BY_MATRIX_UNIT = (AMX_BF16, AMX_PARTS, AMX_INT8)
