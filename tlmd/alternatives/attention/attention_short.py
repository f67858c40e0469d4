"""The program of attention that multiplies pairs of bfloat16 numbers."""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import te

from tlmd.alternatives.attention.attention import Attention
from tlmd.alternatives.contraction import DTYPE
from tlmd.alternatives.implementation import DirectProgram, Implementation
from tlmd.alternatives.words import bfloat16


def short_attention(direct: DirectProgram) -> Implementation | None:
    """The program in bfloat16; None where heads are no whole vectors of pairs."""
    if not direct.attention:
        return None
    attention = Attention.from_json(direct.attention)
    if not attention.has_heads_of(bfloat16.PAIR * attention.lanes):
        return None
    return implementation(direct, replace(attention, bf16=True), 1 / bfloat16.PAIR)


def implementation(direct: DirectProgram, attention: Attention, work: float) -> Implementation:
    """The program of `attention` with the parameters of the direct one.

    `work`: over that of the direct one.
    """
    *given, _ = direct.module["main"].params
    tensors = [te.placeholder(p.ty.shape, DTYPE, name=f"p{i}") for i, p in enumerate(given)]
    module = tvm.IRModule({"main": te.create_prim_func([*tensors, attention(*tensors)])})
    return Implementation(module, direct.flops, direct.work * work)
