"""The alternative by Strassen's algorithm: matrices in 2 x 2 parts, seven products of them."""

from __future__ import annotations

from functools import partial

from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.strassen.multiplications import MULTIPLICATIONS
from tlmd.alternatives.strassen.strassen import PRODUCTS, strassen
from tlmd.alternatives.strassen.strassen_sketches import sketches

BY_PARTS = tuple(
    Alternative(name, partial(strassen, by), by.summed, {PRODUCTS: sketches}, exact=False)
    for name, by in MULTIPLICATIONS.items()
)
