"""Networks of transformers, tiny and with random weights, given as a user would give them.

Outputs are left as they are (classes of transformers with named fields, and caches of keys and
values), and `use_cache` is left at its default.
"""

from __future__ import annotations

from benchmarks.coverage.networks.lists import Make, factory
from benchmarks.coverage.networks.networks_transformers_decoders import DECODERS
from benchmarks.coverage.networks.networks_transformers_text import ENCODER_DECODERS, ENCODERS
from benchmarks.coverage.networks.networks_transformers_various import (
    AUDIO,
    MULTI_MODAL,
    TIME_SERIES,
)
from benchmarks.coverage.networks.networks_transformers_vision import VISION

NETWORKS: dict[str, Make] = {
    **ENCODERS,
    **DECODERS,
    **ENCODER_DECODERS,
    **VISION,
    **AUDIO,
    **MULTI_MODAL,
    **TIME_SERIES,
}


def __getattr__(name: str) -> Make:
    return factory(NETWORKS, name)
