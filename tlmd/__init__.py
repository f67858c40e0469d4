"""tlmd makes deep-learning models fast on the hardware in front of it.

`tune` does what ``tlmd tune`` does, from Python. Importing tlmd loads neither TVM nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlmd.api import tune
    from tlmd.daemon.tune import TuneResult

__version__ = "0.1.0"
__all__ = ["TuneResult", "__version__", "tune"]
_LAZY = {"tune": "tlmd.api", "TuneResult": "tlmd.daemon.tune"}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tlmd' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
