"""One slot as an actor: builds, times and verifies candidates on its own cores."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tlmd.data import wire
from tlmd.data.config import MeasureConfig
from tlmd.data.types import MeasureInput
from tlmd.measure.cores.core_plan import CARD, card_cores, plan_slots
from tlmd.measure.measurer import Measurer
from tlmd.pipeline.orders import BaselineOrder, CompareOrder, MeasureOrder
from tlmd.space import tvm_alone


class MeasurerActor:
    """`Measurer` behind orders. No candidate ever runs in this process.

    Slot `index` of the `count` of its node that time on CPUs, or card `index`. `cache_dir` keeps
    the reference outputs of the node. The actor uses `cores`; where they are empty, all cores of
    this process. It measures for `target`.
    """

    def __init__(
        self,
        config: dict[str, Any],
        index: int,
        count: int,
        cache_dir: str,
        cores: frozenset[int] = frozenset(),
        target: str = "native",
    ) -> None:
        tvm_alone.import_tvm()
        from tlmd.space.cache import SpaceCache
        from tlmd.space.hardware import host_cpu
        from tlmd.space.hardware import target as targets

        measure = MeasureConfig.model_validate(config)
        layouts = plan_slots(count, set(cores) or None, measure.run_cores or None)
        plan = layouts[index]
        if target == CARD:
            plan = card_cores(set(layouts[0].build), index)
        self._target = targets.resolve(target, len(plan.run))
        host_cpu.check(self._target)
        self._run_cores = plan.run
        self._spaces = SpaceCache()
        self._lock = threading.Lock()  # of the spaces: orders run in several threads
        self._measurer = Measurer(plan, Path(cache_dir), measure)
        self._measurer.start(self._target)

    def describe(self) -> dict[str, Any]:
        """The hardware of the slot."""
        return {"target": wire.pack(self._target), "cores": self._run_cores}

    def measure(self, data: bytes) -> list[bytes]:
        """Carry out a `MeasureOrder`: one outcome per candidate, in order."""
        order = wire.unpack(MeasureOrder, data)
        return [wire.pack(outcome) for outcome in self._measurer.measure(order.task, order.inputs)]

    def compare(self, data: bytes) -> list[bytes]:
        """Carry out a `CompareOrder`: one outcome per finalist, in order; none where it failed."""
        order = wire.unpack(CompareOrder, data)
        tasks = {task.id: task for task in order.tasks}
        with self._lock:
            finalists = [
                (task, MeasureInput(c.id, self._spaces.get(task).trace_json(c)))
                for c in order.finalists
                for task in [tasks[c.task_id]]
            ]
        return [wire.pack(outcome) for outcome in self._measurer.compare(finalists)]

    def baseline(self, data: bytes) -> bytes:
        """Carry out a `BaselineOrder`."""
        return wire.pack(self._measurer.baseline(wire.unpack(BaselineOrder, data).task))

    def close(self) -> None:
        """End the measuring server."""
        self._measurer.close()
