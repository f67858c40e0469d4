"""The alternative of attention in bfloat16. Those for the matrix unit are declared in `amx`."""

from __future__ import annotations

from dataclasses import replace

from tlmd.alternatives.alternative import Alternative, DirectProgram, Implementation
from tlmd.alternatives.attention.attention import SCORES, Attention
from tlmd.alternatives.attention.attention_sketches import sketches
from tlmd.alternatives.words import bfloat16


def short_attention(direct: DirectProgram) -> Implementation | None:
    """The program in bfloat16; None where heads are no whole vectors of pairs."""
    if not direct.attention:
        return None
    attention = Attention.from_json(direct.attention)
    if not attention.has_heads_of(bfloat16.PAIR * attention.lanes):
        return None
    return replace(attention, bf16=True).implementation(direct, 1 / bfloat16.PAIR)


ATTENTION_BF16 = Alternative(
    "bf16",
    short_attention,
    # The direct program of attention has the same blocks and gets the same sketches.
    sketches={SCORES: sketches},
    exact=False,
    multiplies="bfloat16",
    needs=(bfloat16.FEATURE,),
)
