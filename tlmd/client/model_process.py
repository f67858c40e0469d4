"""The user's model in a process of its own: accepted before anything is measured, compiled at last.

The command itself loads neither TVM nor torch, and a model that crashes, hangs or needs all memory
costs one line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tlmd.client.model_child import AcceptRequest, DeliverRequest
from tlmd.data import wire
from tlmd.data.config import Config
from tlmd.data.errors import Crashed
from tlmd.data.model_spec import ModelSpec
from tlmd.export.tune_result import TuneResult
from tlmd.measure.cores.core_plan import CoreLayout
from tlmd.processes.guarded_child import STAGE, GuardedChild


class ModelProcess:
    """Call `accept` first, then, for a job, `deliver`. A context manager that ends the process."""

    def __init__(self, spec: ModelSpec, config: Config, log: Path) -> None:
        self._spec, self._config, self._log = spec, config, log
        self._child = self._start()

    def _start(self) -> GuardedChild:
        here = str(Path.cwd())
        paths = os.pathsep.join(dict.fromkeys([here, *filter(None, sys.path[:1])]))
        module, limits = "tlmd.client.model_child", self._config.check
        return GuardedChild(module, self._log, limits, self._spec.name, here, paths)

    def __enter__(self) -> ModelProcess:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._child.kill("")

    def accept(
        self,
        target: str,
        layout: CoreLayout,
        is_slot_busy: bool,
        tasks: Path | None,
        on_stage: Callable[[str], None],
        records: Path | None = None,
    ) -> dict[str, Any]:
        """The report on the model once it works; its tasks are written to `tasks`.

        `records`: the model is to be compiled without measuring, with the records of this state
        directory.

        If the model ends the process, another one tries its parts with care. Raises `BadInput` if
        it does not work, and `Failed`.
        """
        request = AcceptRequest(
            self._spec,
            target,
            layout.run,
            layout.build,
            is_slot_busy,
            str(tasks or ""),
            records=str(records or ""),
            checkpoint=self._config.generate.checkpoint,
        )
        try:
            return self._accept(request, on_stage)
        except Crashed as crash:
            self._child.kill("")
            self._child = self._start()
            return self._accept(replace(request, after_crash=str(crash)), on_stage)

    def _accept(self, request: AcceptRequest, on_stage: Callable[[str], None]) -> dict[str, Any]:
        self._child.send("accept", wire.pack(request))
        accepted: dict[str, Any] = {}
        for kind, payload in self._child.messages("accepted"):
            if kind == STAGE:
                on_stage(payload)
            else:
                accepted = payload
        return accepted

    def deliver(
        self,
        state_dir: Path,
        out: Path | None,
        started_at: float,
        interrupted: bool,
        before_timing: Callable[[], None],
    ) -> TuneResult:
        """Compile, time and write the model with the records in `state_dir`.

        `before_timing` is called when it is compiled. Raises `BadInput` and `Failed`.
        """
        elapsed_s = time.monotonic() - started_at
        folder = str(out.absolute()) if out else ""
        request = DeliverRequest(str(state_dir), folder, elapsed_s, interrupted)
        self._child.send("deliver", wire.pack(request))
        plain: dict[str, Any] = {}
        for kind, payload in self._child.messages("delivered"):
            if kind == "compiled":
                before_timing()
                self._child.send("time")
            elif kind == "delivered":
                plain = payload
        result = TuneResult.from_plain(plain)
        return result if out is None else TuneResult.from_plain(plain | {"out": str(out)})
