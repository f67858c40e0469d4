"""The programs of attention that multiply bfloat16 numbers, or parts of float32 ones."""

from __future__ import annotations

from dataclasses import fields, replace

import tvm
from tvm import te

from tlmd.alternatives.amx.amx_code import EDGE
from tlmd.alternatives.amx.amx_numbers import KINDS
from tlmd.alternatives.attention.attention import Attention
from tlmd.alternatives.attention.attention_amx import PANEL, UnitAttention
from tlmd.alternatives.contraction import DTYPE
from tlmd.alternatives.implementation import Implementation
from tlmd.alternatives.kernel import multiple
from tlmd.alternatives.transforms import ATTENTION_BF16
from tlmd.alternatives.words import bfloat16

_MOST_FILLED = 1.5  # rows of whole tiles over rows


def short_attention(direct: Implementation, attention: Attention) -> Implementation | None:
    """The program in bfloat16; None where heads of `attention` are no whole vectors of pairs."""
    if not _are_multiples(attention, bfloat16.PAIR * attention.lanes):
        return None
    return _made(direct, replace(attention, bf16=True), ATTENTION_BF16, 1 / bfloat16.PAIR)


def unit_attention(
    direct: Implementation, attention: Attention, name: str
) -> Implementation | None:
    """The program for the CPU's matrix unit, `name` as in `KINDS`.

    None where heads are no whole panels, or rows much fewer than those of whole tiles.
    """
    if not _are_multiples(attention, PANEL):
        return None
    if multiple(attention.rows, EDGE) > _MOST_FILLED * attention.rows:
        return None
    kind = KINDS[name]
    given = {one.name: getattr(attention, one.name) for one in fields(Attention)}
    made = UnitAttention(**{**given, "bf16": True}, parts=kind.parts)
    return _made(direct, made, name, kind.work)


def _are_multiples(attention: Attention, least: int) -> bool:
    """Of the elements of a head."""
    return not any(one.size("D") % least for one in (attention.key, attention.value))


def _made(direct: Implementation, attention: Attention, name: str, work: float) -> Implementation:
    *given, _ = direct.module["main"].params
    tensors = [te.placeholder(p.ty.shape, DTYPE, name=f"p{i}") for i, p in enumerate(given)]
    module = tvm.IRModule({"main": te.create_prim_func([*tensors, attention(*tensors)])})
    return Implementation(name, module, direct.flops, direct.work * work)
