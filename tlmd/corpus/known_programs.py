"""Known programs: the best programs of tasks on a kind of CPU, to be used without measuring.

tlmd ships a file of them, and users share theirs (`tlmd records export --best`), as TVM's TopHub
did. Each program is checked when it is used: TVM must make the program that was measured.
"""

from __future__ import annotations

import logging
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tlmd.data import wire
from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput, Failed, TlmdError, in_one_line
from tlmd.data.types import Candidate, Task
from tlmd.processes.durable import replacing, sync
from tlmd.records.dataset import check_version

FILE = "known.msgpack.xz"
_MAGIC, _VERSION = "tlmd-known", 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """One of the fastest programs of a task, and how fast it was where it was measured.

    Example: ``KnownProgram('{"kind":"llvm","mcpu":"znver4","num-cores":2}', "fused_matmul_add",
    candidate, "77ab...", 1.6e-3)``.
    """

    target: str
    """The TVM target as JSON, cores included: a program is known for one kind of CPU."""
    task: str
    """The task's name where it was measured; only `candidate` says which task it is."""
    candidate: Candidate
    module_hash: str
    """Of the program that was measured."""
    seconds: float


@dataclass(frozen=True, slots=True)
class KnownFile:
    """The content of a file of known programs."""

    magic: str
    version: int
    programs: tuple[KnownProgram, ...]


class KnownPrograms:
    """Finds known programs. Of a task in several files, those of the first file count."""

    def __init__(self, files: Iterable[Sequence[KnownProgram]]) -> None:
        self._programs: dict[tuple[str, str], list[KnownProgram]] = {}
        for programs in files:
            of_file: dict[tuple[str, str], list[KnownProgram]] = {}
            for program in programs:
                key = program.target, program.candidate.task_id
                of_file.setdefault(key, []).append(program)
            self._programs = of_file | self._programs

    @classmethod
    def of_state(cls, state_dir: Path) -> KnownPrograms:
        """Those that were imported to a state directory, before those that tlmd ships.

        A file that cannot be read is named in the log and is left out.
        """
        paths = (state_dir / FILE, SHIPPED / FILE)
        return cls(_read_if_possible(path) for path in paths if path.exists())

    def of(self, task: Task) -> tuple[KnownProgram, ...]:
        """The known programs of a task on its CPU, the best first; mostly none."""
        return tuple(self._programs.get((task.target.spec, task.id), ()))

    def timed(self, task: Task) -> tuple[tuple[float, Candidate], ...]:
        """Those of a task as seconds where they were measured and candidates."""
        return tuple((program.seconds, program.candidate) for program in self.of(task))

    def all(self) -> tuple[KnownProgram, ...]:
        """All programs, task by task, the best of each first."""
        programs = [program for of_task in self._programs.values() for program in of_task]
        return tuple(sorted(programs, key=_place))


def _place(program: KnownProgram) -> tuple[str, str, str]:
    return program.target, program.task, program.candidate.task_id


def is_known_file(path: Path) -> bool:
    """Whether a file begins as one of known programs; only `read` says whether it is whole."""
    try:
        with path.open("rb") as file:
            head = lzma.LZMADecompressor().decompress(file.read(1 << 12), 64)
    except (OSError, lzma.LZMAError):
        return False
    return wire.head(head, 1) == [_MAGIC]


def read(path: Path) -> tuple[KnownProgram, ...]:
    """Read a file of known programs. Raises `BadInput` for any other file."""
    try:
        raw = lzma.decompress(path.read_bytes(), lzma.FORMAT_XZ)
        check_version(path, raw, _MAGIC, _VERSION)
        content = wire.unpack(KnownFile, raw)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except (EOFError, lzma.LZMAError, wire.WireError) as error:
        raise BadInput(f"{path} is damaged ({in_one_line(error)}); export it again") from error
    if content.magic != _MAGIC:
        raise BadInput(f"{path} holds no known programs; `tlmd records export --best` writes some")
    return content.programs


def write(path: Path, programs: KnownPrograms) -> int:
    """Write a file of known programs, completely or not at all; their number. Raises `Failed`."""
    content = KnownFile(_MAGIC, _VERSION, programs.all())
    try:
        with replacing(path) as new:
            new.write_bytes(lzma.compress(wire.pack(content), preset=9))
            sync(new)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}; choose another path") from error
    return len(content.programs)


def add(state_dir: Path, path: Path) -> tuple[KnownProgram, ...]:
    """Add the programs of a file to those of a state directory, where they replace older ones.

    Returns them. Raises `BadInput` for a damaged file; then nothing is added.
    """
    programs = read(path)
    own = state_dir / FILE
    write(own, KnownPrograms([programs, read(own) if own.exists() else ()]))
    return programs


def _read_if_possible(path: Path) -> tuple[KnownProgram, ...]:
    try:
        return read(path)
    except TlmdError as error:
        _log.warning("known programs are not used: %s", error)
        return ()
