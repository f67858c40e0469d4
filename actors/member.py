"""What the worker pool knows of one of its actors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from actors.placement import ActorSpec
from tlmd.pipeline.orders import Order


@dataclass
class Member:
    """An actor of the pool."""

    spec: ActorSpec
    life: int
    """A number that no other actor has, also not one of the same name."""
    handle: Any
    since: float
    joined: bool = False
    pid: int = 0
    """0: it has not joined."""
    in_flight: list[Order] = field(default_factory=list)
