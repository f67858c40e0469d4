"""Says how the model of a job is lowered: for which hardware, and with how many cores.

A job whose hardware no slot has, and no slot will have, is refused. A kind of slot that a node of
the cluster offers, has offered or will offer by the cluster's description is waited for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tlmd.daemon.task_extraction import ExtractionRequest
from tlmd.data.errors import BadInput, Failed
from tlmd.data.types import TargetInfo, Task
from tlmd.measure.cores.core_plan import CARD
from tlmd.pipeline.orders import Worker
from tlmd.records.job_specs import JobSpec

_LOOK_S = 0.2
_SLOT = "slot:"
_MEASURE = "measure"

Slots = tuple[list[Worker], frozenset[str] | None]
"""The slots of a cluster that have joined, and all resources by which nodes offer slots (see
`Cluster.offered`; None: they are not known yet)."""


class ExtractionRequests:
    """Makes the requests of all jobs of a daemon.

    `slots` returns the slots that there are. On its own machine (`is_local`) only a CUDA card has
    to be a slot; other targets are resolved there. `is_stopping` ends a wait for a slot. The
    threads that prepare jobs call `of`, so `slots` has to ask the pipeline's thread.
    """

    def __init__(
        self,
        state_dir: Path,
        run_cores: int,
        slots: Callable[[], Slots],
        is_local: bool,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._cache_dir = str(state_dir / "corpus")
        self._run_cores = run_cores
        self._slots = slots
        self._is_local = is_local
        self._is_stopping = is_stopping

    def of(
        self, spec: JobSpec, on_stage: Callable[[str], None] = lambda _: None
    ) -> ExtractionRequest:
        """The request of a job. On a cluster it waits until a slot for its target has joined.

        Raises `BadInput` for a target that the cluster has not, and `Failed` where the daemon
        stops.
        """
        slot = None
        if not self._is_local or _is_card(spec.request.target):
            slot = self._slot_for(spec, on_stage)
        return ExtractionRequest(
            spec.model_spec,
            spec.request.target,
            corpus=spec.request.corpus,
            cores=self._run_cores,
            slot=slot,
            cache_dir=self._cache_dir,
        )

    def check_tasks(self, spec: JobSpec, tasks: Iterable[Task]) -> None:
        """Raise `BadInput` if there is no slot for tasks of a file, and none is awaited."""
        if self._is_local or spec.request.wait_for_hardware:
            return
        joined, offered = self._slots()
        if offered is None or offered - {slot.resource for slot in joined}:
            return  # they may be for a slot that is starting, or is away
        for target in dict.fromkeys(task.target for task in tasks):
            if not any(slot.accepts(target) for slot in joined):
                raise _no_slot(f"tasks made on another machine ({_cpu(target)})", joined, offered)

    def _slot_for(self, spec: JobSpec, on_stage: Callable[[str], None]) -> TargetInfo:
        """The hardware of the cluster's slot for a job. Waits until such a slot has joined."""
        wanted, target = _read(spec.request.target), f"the target {spec.request.target!r}"
        while not self._is_stopping():
            joined, offered = self._slots()
            for slot in joined:
                if slot.target and _fits(slot, wanted):
                    return slot.target
            awaited = offered is None or _may_come(wanted, joined, offered)
            if not awaited and not spec.request.wait_for_hardware:
                raise _no_slot(target, joined, offered or frozenset())
            on_stage(f"waiting for a slot that has {target}")
            time.sleep(_LOOK_S)
        raise Failed("the daemon is stopping")


def _is_card(target: str) -> bool:
    return target in (CARD, f"{_SLOT}{CARD}") or '"cuda"' in target


def _read(target: str) -> str | dict[str, Any]:
    """``native``, ``slot:NAME`` or the keys of a TVM target."""
    if target == CARD:
        return f"{_SLOT}{CARD}"
    if target == "native" or target.startswith(_SLOT):
        return target
    try:
        keys = json.loads(target)
    except ValueError:
        keys = None
    if not isinstance(keys, dict):
        raise BadInput(
            "on a cluster, use the target 'native' (the target of its first slot), 'slot:NAME' "
            f"(nodes with the resource measure:NAME) or that of a slot as JSON, not {target!r}"
        )
    return keys


def _fits(slot: Worker, wanted: str | dict[str, Any]) -> bool:
    if isinstance(wanted, str):
        if wanted == "native":
            return slot.target is not None and slot.target.device == "cpu"
        return slot.resource == _resource(wanted)
    target: dict[str, Any] = json.loads(slot.target.spec) if slot.target else {}
    return wanted.items() <= target.items()


def _may_come(wanted: str | dict[str, Any], joined: list[Worker], offered: frozenset[str]) -> bool:
    """Whether a slot that has not joined may have the wanted hardware."""
    away = offered - {slot.resource for slot in joined}
    if isinstance(wanted, str) and wanted != "native":
        return _resource(wanted) in away
    return bool(away)


def _resource(target: str) -> str:
    return f"{_MEASURE}:{target.removeprefix(_SLOT)}"


def _no_slot(what: str, joined: list[Worker], offered: frozenset[str]) -> BadInput:
    cpus = {slot.resource: _cpu(slot.target) for slot in joined if slot.target}
    kinds = [f"{_name(r)} ({cpus.get(r, 'away')})" for r in sorted(offered | cpus.keys())]
    return BadInput(
        f"no slot can run {what}; there are {', '.join(kinds) or 'no slots'}; on a cluster, "
        "--wait-for-hardware waits until one joins; `measure.cards` offers cards of this machine"
    )


def _name(resource: str) -> str:
    name = resource.partition(":")[2]
    return f"{_SLOT}{name}" if name else "slots without a name"


def _cpu(target: TargetInfo) -> str:
    spec = json.loads(target.spec)
    return f"{spec.get('mcpu') or spec.get('model') or target.arch} {target.isa}"
