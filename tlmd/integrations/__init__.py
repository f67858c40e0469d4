"""tlmd inside the tools that its users already have.

`TLMSearchStrategy` is a search strategy of TVM's MetaSchedule. In: what those tools hand over. Out:
candidates and compiled models. Importing this package loads nothing; its names load what they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tlmd.integrations.metaschedule_strategy import TLMSearchStrategy

__all__ = ["TLMSearchStrategy"]
_LAZY = {"TLMSearchStrategy": "tlmd.integrations.metaschedule_strategy"}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
