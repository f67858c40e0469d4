"""One graph for fixed shapes, which gets faster while it is called."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from tlmd.client import lifecycle
from tlmd.data.config import Config
from tlmd.data.errors import BadInput, TlmdError
from tlmd.data.types import JobState, Task
from tlmd.export.library import Library, use_threads
from tlmd.export.program_source import ProgramSource
from tlmd.integrations import call_context
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.programs import COMPILING, compile_here
from tlmd.integrations.weights import Weights
from tlmd.lowering import comparison
from tlmd.lowering.alternatives import check_precision
from tlmd.lowering.preparation import lower_source, merged_tasks
from tlmd.measure.cores.core_plan import plan_slots
from tlmd.measure.cores.slot_lock import Calls
from tlmd.models.pytorch import torch_frontend
from tlmd.models.pytorch.operators import NotConvertible
from tlmd.models.pytorch.tensors import to_numpy
from tlmd.records.task_file import save_tasks
from tlmd.space.hardware import target as targets

_log = logging.getLogger("tlmd.integrations")
_POLL_S = 2.0
_GAIN = 0.95  # a job's estimate below this share of the last one is worth a new compile
FASTER = 0.98  # a library replaces another one below this share of its time
_TIMING_S = 0.4  # for all libraries that are compared
_NICENESS = 15  # of the thread that compiles in the background
_PAUSE = 20  # times as long as the last compile took is the pause before the next one
_IN_A_ROW = 3  # runs of the same: threads of the one before may still spin during the first
Run = Callable[[Sequence[Any]], list[Any]]


class Function(Protocol):
    """Runs a graph for fixed shapes: what a `HotSwapped` has in common with a `Partitioned`."""

    reason: str
    swaps: list[float]

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run it once."""

    def improve(self) -> bool:
        """Compile with the records there are now; whether something faster is in use."""

    def save_tasks(self, path: Path) -> None:
        """Write the tasks for a daemon."""


class HotSwapped:
    """Runs `module` on flat lists of tensors: the fastest library there is, or eager PyTorch.

    `module` takes and returns flat tensors; `example` are inputs of the shapes that it is used
    with. Compiling happens here, which takes seconds. With `options.background` the graph's tasks
    go to the daemon, and better libraries replace the current one between two calls. Raises
    `BadInput` for a precision that this CPU does not have.
    """

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        example: Sequence[torch.Tensor],
        options: GraphOptions,
        programs: ProgramSource | None = None,
    ) -> None:
        settings = call_context.context()

        def eager(tensors: Sequence[Any]) -> list[Any]:
            with call_context.with_settings(settings):  # of this thread, in any thread
                return list(module(*tensors))

        self._eager: Run = eager
        self._weights = Weights([*module.parameters(), *module.buffers()])
        self._current = self._eager
        self._calls = Calls(options.state_dir / "references")
        self._example = [t.detach().clone() for t in example]
        self._tolerated = options.tolerated
        self.reason = ""
        """Why it runs in eager PyTorch; empty if it runs a compiled library."""
        self.swaps: list[float] = []
        """Seconds per run of each library that was put in use, as timed when it was."""
        self.tasks: list[Task] = []
        """The tasks of the graph; none if TVM cannot compile it."""
        self.obstacle = ""
        """The name of the operator that has a converter, which failed."""
        cores = _cores(options.state_dir)
        use_threads(cores)
        call_context.libraries_are_used()
        self._target = targets.resolve("native", cores)
        check_precision(options.precision, [self._target])
        self._programs = programs or ProgramSource(options.state_dir)
        try:
            with torch.no_grad():
                source = torch_frontend.from_module(name, module, tuple(self._example), caches=True)
                self._model = lower_source(options.spec(name), source, self._target)
            if not self._model.tasks:
                raise BadInput(f"{name} has no tensor program to tune")
            self._try_compile()
        except TlmdError as error:
            self.reason = str(error)
            if isinstance(error.__cause__, NotConvertible):
                self.obstacle = error.__cause__.node.target.__name__
            return
        self.tasks = merged_tasks([self._model])
        if options.background:
            improve_in_background(self, name, options.state_dir)

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run it once."""
        with self._calls:  # what the daemon times and this would slow each other
            return self._current(tensors)

    def improve(self) -> bool:
        """Compile with the records there are now; whether a faster library is in use."""
        with COMPILING:
            # TVM reads the weights where they were: that memory may be gone, if they have moved.
            return not self._weights.have_moved() and self._try_compile()

    def save_tasks(self, path: Path) -> None:
        """Write the tasks of the graph for a daemon."""
        save_tasks(path, self.tasks)

    def _try_compile(self) -> bool:
        """Compile, compare the outputs, and use the library if it is faster than the current."""
        try:
            library = self._compiled()
        except TlmdError:
            raise
        except Exception as error:  # TVM raises many kinds
            raise BadInput(f"TVM cannot compile the graph ({error})"[:200]) from error
        old, new = shortest_times([self._current, library], self._example)
        if new > old * FASTER:
            if not self.reason and not self.swaps:
                self.reason = "eager PyTorch is faster"
            return False
        self._current = library  # one assignment: a call sees the old or the new one
        self.swaps.append(new)
        self.reason = ""
        _log.info("a library with %.3f ms a run replaces one with %.3f ms", new * 1e3, old * 1e3)
        return True

    def _compiled(self) -> Library:
        """A library with the right outputs. Raises `BadInput` where there is none."""
        while True:
            compiled = compile_here(self._model, self._target, self._programs)
            try:
                check_outputs(compiled.library, self._eager, self._example, self._tolerated)
                return compiled.library
            except BadInput as error:
                if not compiled.has_known:
                    raise
                _log.warning("known programs are not used: %s", error)
                self._programs.forget_known()


def check_outputs(run: Run, eager: Run, example: Sequence[Any], least: float = 0.0) -> None:
    """Compare the outputs of `run` with eager PyTorch. Raises `BadInput`.

    An error up to `least` of the largest output is allowed in any case.
    """
    with torch.no_grad():
        actual, expected = run(example), eager(example)
    for index, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a.dtype != e.dtype:
            raise BadInput(f"output {index} of the graph has dtype {a.dtype}, not {e.dtype}")
        comparison.check_output("the graph", f"output {index}", to_numpy(a), to_numpy(e), least)


def shortest_times(runs: Sequence[Run], example: Sequence[Any]) -> list[float]:
    """The shortest time of each, in seconds, run alternately."""
    best = [float("inf")] * len(runs)
    end = time.perf_counter() + _TIMING_S
    with torch.no_grad():
        for number in range(200):
            for index, run in enumerate(runs):
                for _ in range(_IN_A_ROW):
                    begin = time.perf_counter()
                    run(example)
                    best[index] = min(best[index], time.perf_counter() - begin)
            if number >= 1 and time.perf_counter() > end:
                break
    return best


def improve_in_background(function: Function, name: str, state_dir: Path) -> None:
    """Improve `function` with the records of a daemon in `state_dir`, while it is in use."""
    arguments = (weakref.ref(function), name, state_dir)
    threading.Thread(target=_improve, args=arguments, name="tlmd", daemon=True).start()


def _improve(reference: weakref.ref[Function], name: str, state_dir: Path) -> None:
    """Give the graph's tasks to the daemon, and compile again whenever it has found better ones."""
    path = state_dir / "jobs" / f"{uuid.uuid4().hex[:12]}.tasks"
    with contextlib.suppress(TlmdError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        daemon = _wait_for_daemon(reference, state_dir)
        function = reference()
        if daemon is None or function is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        function.save_tasks(path)
        del function
        job = daemon.submit(name, tasks=str(path))
        last, next_at = float("inf"), 0.0
        for document in daemon.follow(job.id):
            function = reference()
            if function is None:
                job.cancel()
                return
            finished = JobState(document["state"]).is_finished
            progress = document.get("progress") or {}
            whole = progress.get("done", 0) >= progress.get("total", 1)
            estimate = progress.get("estimate_s") or float("inf")
            begin = time.monotonic()
            if finished or (whole and estimate < last * _GAIN and begin >= next_at):
                last = estimate
                function.improve()
                next_at = time.monotonic() + _PAUSE * (time.monotonic() - begin)
            del function


def _cores(state_dir: Path) -> int:
    """For how many cores the daemon tunes, or would if it were started."""
    with contextlib.suppress(TlmdError):
        daemon = lifecycle.running(state_dir)
        if daemon is not None:
            return lifecycle.check_cores(daemon, None)
    return len(plan_slots(Config().measure.slots)[0].run)


def _wait_for_daemon(reference: weakref.ref[Function], state_dir: Path) -> Any:
    """The daemon of the state directory, as soon as one runs; None if the model is gone first."""
    told = False
    while reference() is not None:
        with contextlib.suppress(TlmdError):
            daemon = lifecycle.running(state_dir)
            if daemon is not None:
                return daemon
        if not told:
            told = True
            _log.info("no daemon runs on %s; `tlmd start` starts one", state_dir)
        time.sleep(_POLL_S)
    return None
