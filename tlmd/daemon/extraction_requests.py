"""Says how the model of a job is lowered: for which hardware, and with how many cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tlmd.daemon.task_extraction import ExtractionRequest
from tlmd.errors import BadInput, Failed
from tlmd.pipeline.orders import Worker
from tlmd.records.job_specs import JobSpec
from tlmd.types import TargetInfo

_LOOK_S = 0.2


class ExtractionRequests:
    """Makes the requests of all jobs of a daemon.

    `joined_slots` returns the measuring slots of a cluster; None: the daemon measures on its own
    machine only, and the target of a job is resolved there. `is_stopping` ends a wait for a slot.
    The threads that prepare jobs call `of`, so `joined_slots` has to ask the pipeline's thread.
    """

    def __init__(
        self,
        state_dir: Path,
        run_cores: int,
        joined_slots: Callable[[], list[Worker]] | None,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._cache_dir = str(state_dir / "corpus")
        self._run_cores = run_cores
        self._joined_slots = joined_slots
        self._is_stopping = is_stopping

    def of(self, spec: JobSpec) -> ExtractionRequest:
        """The request of a job. On a cluster it waits until a slot for its target has joined.

        Raises `BadInput` for a target that no cluster has, and `Failed` where the daemon stops.
        """
        slot = None
        if self._joined_slots is not None:
            slot = self._slot_for(spec.target, self._joined_slots)
        return ExtractionRequest(
            spec.model_spec,
            spec.target,
            corpus=spec.corpus,
            cores=self._run_cores,
            slot=slot,
            cache_dir=self._cache_dir,
        )

    def _slot_for(self, target: str, joined_slots: Callable[[], list[Worker]]) -> TargetInfo:
        """The hardware of the cluster's slot for `target`. Waits until such a slot has joined."""
        name = target.removeprefix("slot:")
        if target not in ("native", f"slot:{name}"):
            raise BadInput(
                "on a cluster, use the target 'native' (the target of its first slot) or "
                "'slot:NAME' (nodes with the resource measure:NAME)"
            )
        while not self._is_stopping():
            for slot in joined_slots():
                if slot.target and (target == "native" or slot.resource == f"measure:{name}"):
                    return slot.target
            time.sleep(_LOOK_S)
        raise Failed("the daemon is stopping")
