"""Simulated slots and generators: actors that cost hardly any CPU, in place of the real ones.

`actors.session.Settings` names them by `SLOT` and `GENERATOR`. They take the same orders and give
answers of the usual size. Every actor's process imports this module, so it imports little.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

from tlmd.data import wire
from tlmd.data.types import Baseline, Candidate, Outcome, Proposal, Status, TargetInfo, Timing
from tlmd.pipeline.orders import BaselineOrder, MeasureOrder, WriteOrder, Written

SLOT = "benchmarks.daemon.simulated:SimulatedSlot"
GENERATOR = "benchmarks.daemon.simulated:SimulatedGenerator"
CANDIDATE_S = 0.25
"""How long a simulated slot takes for a candidate."""
TARGET = TargetInfo("{}", "cpu", "x86_64", "avx2", 256, 1, 1 << 15, 1 << 20, 1 << 25, "simulated")

_TRACE = "x" * 5000  # of the usual length


def packed_outcome(rng: random.Random) -> bytes:
    """An `Outcome` of the usual size, as a slot answers it."""
    seconds = tuple(rng.uniform(1e-3, 2e-3) for _ in range(7))
    timing = Timing(0.005, 0.003, 0.1, 0.0, CANDIDATE_S, 0.01)
    return wire.pack(Outcome(Status.OK, seconds, verified=True, max_abs_err=1e-6, timing=timing))


class SimulatedSlot:
    """Stands in for `MeasurerActor`: sleeps instead of measuring, one candidate at a time."""

    candidate_s = CANDIDATE_S

    def __init__(self, *_arguments: Any) -> None:
        self._lock = threading.Lock()  # orders run in several threads
        self._random = random.Random(os.getpid())

    def describe(self) -> dict[str, Any]:
        """The same hardware in all slots."""
        return {"target": wire.pack(TARGET), "cores": ()}

    def measure(self, data: bytes) -> list[bytes]:
        """Carry out a `MeasureOrder`."""
        return [self._sleep_for_one() for _ in wire.unpack(MeasureOrder, data).inputs]

    def _sleep_for_one(self) -> bytes:
        with self._lock:
            time.sleep(self.candidate_s)
        return packed_outcome(self._random)

    def baseline(self, data: bytes) -> bytes:
        """Carry out a `BaselineOrder`."""
        task = wire.unpack(BaselineOrder, data).task
        return wire.pack(Baseline(task.id, 0.01, task.target.fingerprint))


class SimulatedGenerator:
    """Stands in for `GeneratorActor`: makes up candidates, each different from all others."""

    def __init__(self, _registry: Any, _config: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)

    def describe(self) -> dict[str, Any]:
        """There is only one version."""
        return {"version": 0}

    def write(self, data: bytes) -> bytes:
        """Carry out a `WriteOrder`."""
        order = wire.unpack(WriteOrder, data)
        proposals = tuple(self._proposal(order.task.id) for _ in range(order.count))
        return wire.pack(Written(proposals, (), 0))

    def _proposal(self, task_id: str) -> Proposal:
        decisions = tuple((self._random.getrandbits(30), 2, 1, 1) for _ in range(9))
        candidate = Candidate(task_id, 0, decisions)
        return Proposal(candidate, _TRACE, candidate.id[:16], version=0)

    def swap(self, _blob: Any) -> int:
        """There is nothing to swap."""
        return 0
