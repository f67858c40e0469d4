"""Finds the tasks of models and corpora, in a child process.

A model must work before anything of it is measured (`lowering.acceptance`). If it crashes a
frontend or needs too much memory, only its job fails. The child gets one `ExtractionRequest` and
sends the tasks as soon as they are known.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tlmd.corpus.corpus import CORPORA, held_out_ids, training_tasks
from tlmd.data import wire
from tlmd.data.config import CheckConfig
from tlmd.data.errors import BadInput, Crashed, Failed
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo, Task
from tlmd.processes import forks
from tlmd.processes.guarded_child import STAGE, Channel, GuardedChild, serve
from tlmd.records.task_file import load_tasks, read_tasks, save_tasks


@dataclass(frozen=True)
class ExtractionRequest:
    """A model to lower, and its target."""

    model: ModelSpec
    target: str

    corpus: str
    """A name of `corpus.CORPORA` or a file of tasks. Empty: lower `model`."""

    cores: int
    """Cores of a slot of this machine."""

    slot: TargetInfo | None = None
    """Target of the slot that measures. None: `target`, resolved on this machine."""

    cache_dir: str = ""
    """Folder for the tasks of a corpus, because lowering one takes 5 to 15 minutes."""

    after_crash: str = ""
    """How an earlier process for this model was ended by the compiler. Empty: there was none."""


class TaskExtractor:
    """Runs one child process. `cancel` may be called from another thread than `run`."""

    def __init__(self, log: Path, limits: CheckConfig) -> None:
        self._log, self._limits = log, limits
        self._child: GuardedChild | None = None
        self._cancelled = False

    def run(
        self,
        request: ExtractionRequest,
        cwd: str,
        on_tasks: Callable[[list[Task]], None],
        on_stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Call `on_tasks` with each portion of tasks, and `on_stage` with what is being done.

        If a model ends the process, another one tries its parts with care. Raises `BadInput` and
        `Failed`.
        """
        try:
            self._run(request, cwd, on_tasks, on_stage)
        except Crashed as crash:
            if not request.model.name:
                raise
            self._run(replace(request, after_crash=str(crash)), cwd, on_tasks, on_stage)

    def _run(
        self,
        request: ExtractionRequest,
        cwd: str,
        on_tasks: Callable[[list[Task]], None],
        on_stage: Callable[[str], None],
    ) -> None:
        if self._cancelled:
            raise Failed("it was cancelled")
        subject = request.model.name or f"corpus {request.corpus}"
        module = "tlmd.daemon.task_extraction"
        with GuardedChild(module, self._log, self._limits, subject, cwd) as child:
            self._child = child
            child.send("extract", wire.pack(request))
            for kind, payload in child.messages("end"):
                if kind == STAGE:
                    on_stage(payload)
                elif kind == "tasks":
                    on_tasks(list(wire.unpack(tuple[Task, ...], payload)))  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Kill the child process; `run` then raises `Failed`."""
        self._cancelled = True
        if self._child is not None:
            self._child.kill()


def tasks_of(request: ExtractionRequest, on_stage: Callable[[str], None]) -> Iterator[list[Task]]:
    """Yield the tasks of a model or a corpus in portions. Raises `BadInput` and `Failed`."""
    from tlmd.lowering.acceptance import accept
    from tlmd.space.hardware import host_cpu
    from tlmd.space.hardware import target as targets

    target = request.slot or targets.resolve(request.target, request.cores)
    if request.slot is None:
        host_cpu.check(target)
    if request.corpus in CORPORA:
        cache = Path(request.cache_dir) / f"{request.corpus}-{target.fingerprint}.tasks"
        yield from _cached(request.corpus, cache, target)
    elif request.corpus:
        tasks = read_tasks(Path(request.corpus))
        yield tasks if request.slot else [host_cpu.of_this_machine(task) for task in tasks]
    else:
        yield accept(request.model, target, on_stage, request.after_crash).tasks


def _cached(name: str, cache: Path, target: TargetInfo) -> Iterator[list[Task]]:
    """The tasks of a corpus that is known by name, from the file `cache` once it is complete."""
    with contextlib.suppress(BadInput):  # it is missing, damaged or of a newer tlmd
        yield load_tasks(cache)
        return
    tasks = []
    for portion in _portions(name, target):
        tasks += portion
        yield portion
    save_tasks(cache, tasks)


def _portions(name: str, target: TargetInfo) -> Iterator[list[Task]]:
    if name == "paper":
        yield from ([task] for task in training_tasks(target))
        return
    from tlmd.corpus.synthetic import synthetic_tasks
    from tlmd.corpus.synthetic_operators import SELDOM, USUAL

    seed, shares = (1, SELDOM) if name == "seldom" else (0, USUAL)
    yield from synthetic_tasks(target, held_out_ids(target), seed=seed, shares=shares)


def handle(channel: Channel) -> None:
    """Answer the request of the parent process."""
    message = channel.receive()
    if message is None:
        return
    request = wire.unpack(ExtractionRequest, message[1])
    if not request.after_crash:
        forks.allow()
    for tasks in tasks_of(request, channel.stage):
        channel.send("tasks", wire.pack(tasks))
    channel.send("end")


if __name__ == "__main__":
    sys.exit(serve(handle))
