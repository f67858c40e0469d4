"""Models and corpora become tasks here, in a process of its own: `python -m tlmd.daemon.intake`.

A model that crashes a frontend, or needs much memory, costs its job and nothing else. The process
reads one `Intake` from standard input and writes frames to standard output: tasks as they are
found, at the end `Closing`.
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
from tlmd.types import Shapes, TargetInfo, Task

_HEADER = struct.Struct("<I?")


@dataclass(frozen=True)
class Intake:
    """What to lower; `slot` is the hardware that measures, None for this machine's.

    The paper's corpus takes a quarter of an hour to lower, so its tasks are kept in `cache_dir`.
    """

    model: str
    input_shapes: Shapes | None
    target: str
    corpus: str
    cores: int
    slot: TargetInfo | None = None
    cache_dir: str = ""


@dataclass(frozen=True)
class Closing:
    """The last frame: '' or one line about what was wrong, and whose fault it was."""

    error: str
    bad_input: bool = False


class Intaker:
    """Runs one intake in a child process; `cancel` ends it from another thread."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def run(self, intake: Intake, cwd: str, on_tasks: Callable[[list[Task]], None]) -> None:
        """Call `on_tasks` with tasks as they come. Raises `BadInput` and `Failed`."""
        if self._cancelled:
            raise Failed("it was cancelled")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tlmd.daemon.intake"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=cwd if Path(cwd).is_dir() else None,
                # The submitter's modules can be imported, and so can tlmd.
                env=children.environment(cwd, CUDA_VISIBLE_DEVICES=""),
            )
        with self._process as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(wire.pack(intake))
            process.stdin.close()
            closing = None
            for frame in _frames(process.stdout):
                if isinstance(frame, Closing):
                    closing = frame
                else:
                    on_tasks(frame)
        if closing is None:
            why = "it was cancelled" if self._cancelled else f"exit code {process.returncode}"
            raise Failed(f"lowering the model ended early ({why}); see {self._log}")
        if closing.error:
            raise BadInput(closing.error) if closing.bad_input else Failed(closing.error)

    def cancel(self) -> None:
        """End the child; `run` raises."""
        self._cancelled = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def _frames(stream: IO[bytes]) -> Iterator[list[Task] | Closing]:
    while len(head := stream.read(_HEADER.size)) == _HEADER.size:
        length, last = _HEADER.unpack(head)
        body = stream.read(length)
        if len(body) < length:
            return
        if last:
            yield wire.unpack(Closing, body)
        else:
            yield list(wire.unpack(tuple[Task, ...], body))  # type: ignore[arg-type]


def tasks_of(intake: Intake) -> Iterator[list[Task]]:
    """The tasks of a model or a corpus, in portions. Raises `BadInput` and `Failed`."""
    from tlmd.daemon import delivery
    from tlmd.space import target as targets

    target = intake.slot or targets.resolve(intake.target, intake.cores)
    if intake.corpus == "paper":
        yield from _paper(Path(intake.cache_dir) / f"paper-{target.fingerprint}.tasks", target)
        return
    if intake.corpus:
        yield _from_file(Path(intake.corpus))
        return
    yield delivery.prepare(intake.model, intake.input_shapes, target).tasks


def _paper(kept: Path, target: TargetInfo) -> Iterator[list[Task]]:
    from tlmd.workloads import corpus

    if kept.exists():
        yield corpus.load_tasks(kept)
        return
    tasks = []
    for task in corpus.training_tasks(target):
        tasks.append(task)
        yield [task]
    corpus.save_tasks(kept, tasks)


def _from_file(path: Path) -> list[Task]:
    """The tasks of a file of tasks, or of an exported data set."""
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
    """Serve the process at the other end of the pipes."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between the frames
    intake = wire.unpack(Intake, sys.stdin.buffer.read())

    def send(message: Any, last: bool) -> None:
        body = wire.pack(message)
        out.write(_HEADER.pack(len(body), last) + body)
        out.flush()

    try:
        for tasks in tasks_of(intake):
            send(tasks, False)
        send(Closing(""), True)
    except TlmdError as error:
        send(Closing(str(error), isinstance(error, BadInput)), True)
    except Exception as error:
        import traceback

        traceback.print_exc()
        send(Closing(f"lowering failed: {type(error).__name__}: {error}"[:300]), True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
