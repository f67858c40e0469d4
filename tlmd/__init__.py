"""tlmd makes deep-learning models fast on the machine on which it runs.

`tune` is the Python form of the command ``tlmd tune``. `start` and `connect` return a `Daemon`,
which takes jobs. Importing tlmd loads neither TVM, torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tlmd.version import __version__

if TYPE_CHECKING:
    from tlmd.api import check, connect, load, start, tune
    from tlmd.client.connection import Daemon
    from tlmd.client.job import Job
    from tlmd.export.tune_result import TuneResult
    from tlmd.integrations.optimized_model import optimize

__all__ = [
    "Daemon",
    "Job",
    "TuneResult",
    "__version__",
    "check",
    "connect",
    "load",
    "optimize",
    "start",
    "tune",
]
_LAZY = {
    "tune": "tlmd.api",
    "check": "tlmd.api",
    "load": "tlmd.api",
    "optimize": "tlmd.integrations.optimized_model",
    "start": "tlmd.api",
    "connect": "tlmd.api",
    "Daemon": "tlmd.client.connection",
    "Job": "tlmd.client.job",
    "TuneResult": "tlmd.export.tune_result",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tlmd' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
