"""The alternative of attention in bfloat16. That for the matrix unit is declared in `amx`."""

from __future__ import annotations

from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.attention.attention import SCORES
from tlmd.alternatives.attention.attention_short import short_attention
from tlmd.alternatives.attention.attention_sketches import sketches
from tlmd.alternatives.words import bfloat16

ATTENTION_BF16 = Alternative(
    "bf16",
    short_attention,
    # The direct program of attention has the same blocks and gets the same sketches.
    sketches={SCORES: sketches},
    exact=False,
    multiplies="bfloat16",
    needs=(bfloat16.FEATURE,),
)
IN_BFLOAT16 = (ATTENTION_BF16,)
