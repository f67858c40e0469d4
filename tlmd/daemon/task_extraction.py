"""Finds the tasks of models and corpora, in a child process.

A model must work before anything of it is measured (`workloads.acceptance`). If it crashes a
frontend or needs too much memory, only its job fails. The child gets one `ExtractionRequest` and
sends the tasks as soon as they are known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tlmd import wire
from tlmd.config import CheckConfig
from tlmd.errors import BadInput, Failed
from tlmd.guarded_child import STAGE, Channel, GuardedChild, serve
from tlmd.model_spec import ModelSpec
from tlmd.types import TargetInfo, Task


@dataclass(frozen=True)
class ExtractionRequest:
    """What to lower, and for which target."""

    model: ModelSpec
    target: str

    corpus: str
    """``paper`` or a file of tasks. Empty: lower `model`."""

    cores: int
    """Cores of a slot of this machine."""

    slot: TargetInfo | None = None
    """Target of the slot that measures. None: `target`, resolved on this machine."""

    cache_dir: str = ""
    """Folder for the tasks of the paper's corpus, because lowering it takes 15 minutes."""


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

        Raises `BadInput` and `Failed`.
        """
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
    from tlmd.space import target as targets
    from tlmd.workloads.acceptance import accept

    target = request.slot or targets.resolve(request.target, request.cores)
    if request.corpus == "paper":
        yield from _paper(Path(request.cache_dir) / f"paper-{target.fingerprint}.tasks", target)
    elif request.corpus:
        yield _from_file(Path(request.corpus))
    else:
        yield accept(request.model, target, on_stage).tasks


def _paper(cache: Path, target: TargetInfo) -> Iterator[list[Task]]:
    from tlmd.workloads import corpus

    if cache.exists():
        yield corpus.load_tasks(cache)
        return
    tasks = []
    for task in corpus.training_tasks(target):
        tasks.append(task)
        yield [task]
    corpus.save_tasks(cache, tasks)


def _from_file(path: Path) -> list[Task]:
    """Read the tasks of a file of tasks or of an exported data set."""
    from tlmd.records.dataset import read_dataset
    from tlmd.workloads.corpus import load_tasks

    try:
        return load_tasks(path)
    except BadInput as error:
        try:
            return list(read_dataset(path).tasks)
        except BadInput:
            raise error from None


def handle(channel: Channel) -> None:
    """Answer the request of the parent process."""
    message = channel.receive()
    if message is None:
        return
    request = wire.unpack(ExtractionRequest, message[1])
    for tasks in tasks_of(request, channel.stage):
        channel.send("tasks", wire.pack(tasks))
    channel.send("end")


if __name__ == "__main__":
    sys.exit(serve(handle))
