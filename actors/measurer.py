"""One slot as an actor: builds, times and verifies candidates on cores of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tlmd import wire
from tlmd.config import MeasureConfig
from tlmd.measure.client import Job, Measurer
from tlmd.measure.cores import plan_slots
from tlmd.measure.protocol import Limits
from tlmd.measure.shared import SharedMeasurer
from tlmd.pipeline.orders import BaselineOrder, MeasureOrder, RaceOrder
from tlmd.space import target as targets
from tlmd.types import TargetInfo


class MeasurerActor:
    """`Measurer` behind orders. No candidate ever runs in this process.

    Slot `index` of `count` of its node; `cache_dir` keeps the reference outputs of the node, and
    `cores` are those it may use (none given: all that this process has).
    """

    def __init__(
        self,
        config: dict[str, Any],
        index: int,
        count: int,
        cache_dir: str,
        cores: frozenset[int] = frozenset(),
    ) -> None:
        c = self._config = MeasureConfig.model_validate(config)
        self._cores = plan_slots(count, set(cores) or None, c.run_cores or None)[index]
        self._cache = Path(cache_dir)
        self._target = targets.resolve("native", len(self._cores.run))
        self._measurer = SharedMeasurer(self._make)
        self._measurer.start(self._target)

    def _make(self, target: TargetInfo) -> Measurer:
        c = self._config
        limits = Limits(
            build_s=c.build_timeout,
            run_s=c.run_timeout,
            budget_s=c.budget,
            baseline_s=c.baseline_timeout,
            memory_bytes=c.memory_bytes,
            repeats=c.repeats,
            cold=c.cache == "cold",
        )
        return Measurer(target, self._cores, self._cache, limits, c.builders, c.lend)

    def describe(self) -> dict[str, Any]:
        """The hardware of the slot."""
        return {"target": wire.pack(self._target), "cores": self._cores.run}

    def measure(self, data: bytes) -> list[bytes]:
        """Carry out a `MeasureOrder`: one outcome per candidate, in order."""
        order = wire.unpack(MeasureOrder, data)
        jobs = [Job(order.task, p.candidate, p.trace, order.incumbent_s) for p in order.proposals]
        return [wire.pack(outcome) for outcome in self._measurer.measure(jobs)]

    def race(self, data: bytes) -> list[bytes]:
        """Carry out a `RaceOrder`."""
        order = wire.unpack(RaceOrder, data)
        outcomes = self._measurer.final(order.task, [r.candidate for r in order.records])
        return [wire.pack(outcome) for outcome in outcomes]

    def baseline(self, data: bytes) -> bytes:
        """Carry out a `BaselineOrder`."""
        return wire.pack(self._measurer.baseline(wire.unpack(BaselineOrder, data).task))

    def close(self) -> None:
        """End the measuring server."""
        self._measurer.close()
