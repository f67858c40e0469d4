"""Lowers models and corpora to tasks, in a child process.

The child is ``python -m tlmd.daemon.task_extraction``. If a model crashes a frontend or needs too
much memory, only its job fails. The child reads one `ExtractionRequest` from standard input. It
writes frames to standard output: the tasks as soon as they are known, and `ExtractionEnd` at last.
A frame is its length, a flag that marks the last frame, and a msgpack message.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tlmd import children, wire
from tlmd.errors import BadInput, Failed, TlmdError
from tlmd.model_spec import ModelSpec
from tlmd.types import TargetInfo, Task

_HEADER = struct.Struct("<I?")


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


@dataclass(frozen=True)
class ExtractionEnd:
    """The last frame."""

    error: str
    """One line. Empty: all tasks were found."""

    bad_input: bool = False
    """The error is caused by the user's input (`BadInput`)."""


class TaskExtractor:
    """Runs one child process. `cancel` may be called from another thread than `run`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def run(
        self, request: ExtractionRequest, cwd: str, on_tasks: Callable[[list[Task]], None]
    ) -> None:
        """Call `on_tasks` with each portion of tasks. Raises `BadInput` and `Failed`."""
        if self._cancelled:
            raise Failed("it was cancelled")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tlmd.daemon.task_extraction"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=cwd if Path(cwd).is_dir() else None,
                # The child can import tlmd and the modules in the folder of the submitter.
                env=children.environment(cwd, CUDA_VISIBLE_DEVICES=""),
            )
        with self._process as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(wire.pack(request))
            process.stdin.close()
            end = None
            for frame in _frames(process.stdout):
                if isinstance(frame, ExtractionEnd):
                    end = frame
                else:
                    on_tasks(frame)
        if end is None:
            reason = "it was cancelled" if self._cancelled else f"exit code {process.returncode}"
            raise Failed(f"lowering the model ended early ({reason}); see {self._log}")
        if end.error:
            raise BadInput(end.error) if end.bad_input else Failed(end.error)

    def cancel(self) -> None:
        """Kill the child process; `run` then raises `Failed`."""
        self._cancelled = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def _frames(stream: IO[bytes]) -> Iterator[list[Task] | ExtractionEnd]:
    while len(head := stream.read(_HEADER.size)) == _HEADER.size:
        length, last = _HEADER.unpack(head)
        body = stream.read(length)
        if len(body) < length:
            return
        if last:
            yield wire.unpack(ExtractionEnd, body)
        else:
            yield list(wire.unpack(tuple[Task, ...], body))  # type: ignore[arg-type]


def tasks_of(request: ExtractionRequest) -> Iterator[list[Task]]:
    """Yield the tasks of a model or a corpus in portions. Raises `BadInput` and `Failed`."""
    from tlmd.space import target as targets
    from tlmd.workloads.preparation import lower_model

    target = request.slot or targets.resolve(request.target, request.cores)
    if request.corpus == "paper":
        yield from _paper(Path(request.cache_dir) / f"paper-{target.fingerprint}.tasks", target)
        return
    if request.corpus:
        yield _from_file(Path(request.corpus))
        return
    yield lower_model(request.model, target).tasks


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


def main() -> int:
    """Answer the request of the parent process; the exit code."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of libraries must not mix with the frames
    request = wire.unpack(ExtractionRequest, sys.stdin.buffer.read())

    def send(message: Any, last: bool) -> None:
        body = wire.pack(message)
        out.write(_HEADER.pack(len(body), last) + body)
        out.flush()

    try:
        for tasks in tasks_of(request):
            send(tasks, False)
        send(ExtractionEnd(""), True)
    except TlmdError as error:
        send(ExtractionEnd(str(error), isinstance(error, BadInput)), True)
    except Exception as error:
        import traceback

        traceback.print_exc()
        send(ExtractionEnd(f"lowering failed: {type(error).__name__}: {error}"[:300]), True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
