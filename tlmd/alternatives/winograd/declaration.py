"""The alternatives by Winograd's minimal filtering: tiles of 2 x 2 and of 4 x 4 outputs."""

from __future__ import annotations

from functools import partial

from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.winograd.filterings import FILTERINGS
from tlmd.alternatives.winograd.winograd import PRODUCTS, winograd
from tlmd.alternatives.winograd.winograd_sketches import sketches

BY_TILES = tuple(
    Alternative(
        name,
        partial(winograd, filtering),
        filtering.transformed,
        {PRODUCTS: sketches},
        exact=False,
    )
    for name, filtering in FILTERINGS.items()
)
