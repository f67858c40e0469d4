"""The registry: it stores the versions of the TLM on disk and knows which version is in force.

It has one folder per version (``v000012``) and ``current.json`` (`registry_state`), which names the
version in force and is replaced atomically. If a process is killed at any moment, the next registry
of the directory finds a complete version in force. Use one registry per directory and one call at a
time.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput, Failed
from tlmd.data.types import Published
from tlmd.processes.durable import sync
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm import registry_state
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.registry_state import RegistryState

_log = logging.getLogger("tlmd.registry")
_FOLDER = re.compile(r"v(\d{6,})")
_Used = TypeVar("_Used")
_LEFTOVER = re.compile(r"\.(v\d{6,}|current)\.(draft|gone)")


@dataclass(frozen=True)
class GateResult:
    """The decision of a gate on a new checkpoint.

    Example: ``GateResult("held-out loss 2.31 against 1.90 nats", best=(12,))``.
    """

    reason: str
    """Why it is refused; empty where it passes."""
    best: tuple[int, ...]
    """The versions that later ones are compared with."""


# (new checkpoint, the best versions so far and the one in force)
GateCheck = Callable[[Checkpoint, Sequence[Checkpoint]], GateResult]


@dataclass(frozen=True)
class CheckpointInfo:
    """One stored version.

    Example: ``CheckpointInfo(12, current=True, promoted=False, created=1.7e9, notes={"steps":
    60})``.
    """

    version: int

    current: bool
    """It is in force."""

    promoted: bool
    """It is never deleted."""

    pinned: bool
    """The user has chosen it: it stays in force until `Registry.unpin`."""

    created: float
    """Seconds since the epoch."""

    notes: dict[str, Any]


class Registry:
    """The versions in one directory. Version 0 is the base, another folder, which never changes.

    Opening removes unfinished files of a killed process. If the version in force cannot be used,
    the newest older version that can be used replaces it, or else the base; a warning is logged.
    Raises `BadInput` if the base is needed and cannot be used, and `Failed` if the disk cannot be
    written.
    """

    def __init__(self, directory: Path, base: Path = SHIPPED, keep: int = 5) -> None:
        self._directory = directory
        self._base = base
        self._keep = max(keep, 1)
        with self._writing():
            directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            self._state = registry_state.read(directory, self._folders())
            # The files are enough to check: building the network imports torch, which takes seconds
            # in which no generator can start. It was built before the version came into force.
            self._in_force(self._check)

    @property
    def current(self) -> int:
        """The version in force."""
        return self._state.current

    def next_version(self) -> int:
        """The next free version, higher than all versions that were ever published or refused."""
        return max(self._state.last, self._state.current, *self._folders(), 0) + 1

    def blob(self, version: int | None = None) -> bytes:
        """A version as bytes for `checkpoint.from_bytes`. None: the version in force.

        Raises `BadInput` for an unknown or damaged version.
        """
        if version is None:
            version = self.current
        return checkpoints.read(self._known(version), version)

    def publish(self, data: bytes, version: int, check: GateCheck) -> Published:
        """Store `data` (of `checkpoint.to_bytes`) as `version` if `check` accepts it, and use it.

        Where a version is pinned, that one stays in force. `version` must be at least
        `next_version()` and equal to the version in the checkpoint. It counts as used even if the
        checkpoint is refused. Raises `BadInput` for data that is no checkpoint.
        """
        if version < self.next_version():
            raise BadInput(f"version {version} is used already; the next is {self.next_version()}")
        with self._writing():
            self._put(replace(self._state, last=version))
            result = self._install(data, version, check)
            if result.reason:
                return Published(version, False, result.reason)
            pinned = self._state.pinned
            current = version if pinned is None else pinned
            self._put(replace(self._state, current=current, best=result.best))
            self._prune()
        reason = "" if pinned is None else f"it passed and is kept, but version {pinned} is pinned"
        return Published(version, pinned is None, reason)

    def promote(self, version: int) -> None:
        """Pin a version: put it in force until `unpin`, and never delete it.

        Raises `BadInput` if it does not exist.
        """
        self._load(version)
        promoted = tuple(sorted({*self._state.promoted, version}))
        self._change(replace(self._state, current=version, promoted=promoted, pinned=version))

    def rollback(self, version: int) -> None:
        """Pin an older version. Raises `BadInput` if it does not exist."""
        self._load(version)
        self._change(replace(self._state, current=version, pinned=version))

    def unpin(self) -> None:
        """From now on, the next version that passes the gate comes into force."""
        self._change(replace(self._state, pinned=None))

    def versions(self) -> list[CheckpointInfo]:
        """All usable versions in ascending order, the base first."""
        infos = []
        for version in (0, *self._folders()):
            folder = self._folder(version)
            with contextlib.suppress(BadInput, OSError):
                manifest = checkpoints.manifest(folder)
                infos.append(
                    CheckpointInfo(
                        version,
                        version == self.current,
                        version in self._state.promoted,
                        version == self._state.pinned,
                        (folder / "manifest.json").stat().st_mtime,
                        manifest.get("notes", {}),
                    )
                )
        return infos

    # Reading.

    def _folder(self, version: int) -> Path:
        return self._directory / f"v{version:06d}" if version else self._base

    def _folders(self) -> list[int]:
        """The versions that have a folder, in ascending order."""
        names = (_FOLDER.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def _known(self, version: int) -> Path:
        versions = [0, *self._folders()]
        if version not in versions:
            existing = ", ".join(map(str, versions))
            raise BadInput(f"there is no checkpoint version {version}; there are {existing}")
        return self._folder(version)

    def _load(self, version: int) -> Checkpoint:
        folder = self._known(version)
        loaded = checkpoints.load(folder)
        if version == 0:  # the base may come from another registry, with another version
            return replace(loaded, version=0)
        if loaded.version != version:
            raise BadInput(f"{folder} holds version {loaded.version}; remove it")
        return loaded

    def _check(self, version: int) -> None:
        """Raise `BadInput` where files of a version are missing or damaged. Builds no network."""
        folder = self._known(version)
        checkpoints.read(folder)
        if version and (held := checkpoints.manifest(folder)["version"]) != version:
            raise BadInput(f"{folder} holds version {held}; remove it")

    def _in_force(self, use: Callable[[int], _Used]) -> _Used:
        """The result of `use` for the version in force, or for an older one if it refuses that."""
        older = [v for v in reversed(self._folders()) if v < self.current]
        for version in (self.current, *older, 0):
            try:
                used = use(version)
            except BadInput as error:
                if version == 0:
                    raise
                _log.warning("version %d cannot be used, trying an older one: %s", version, error)
                continue
            if version != self.current:
                _log.warning("version %d is in force now, and none is pinned", version)
                self._put(replace(self._state, current=version, pinned=None))
            return used
        raise AssertionError("the base is returned or raises")

    def _rivals(self) -> list[Checkpoint]:
        """The version in force, and the best so far where they can be used."""
        loaded = {(current := self._in_force(self._load)).version: current}
        for version in self._state.best:
            if version not in loaded:
                try:
                    loaded[version] = self._load(version)
                except BadInput as error:
                    _log.warning("version %d, one of the best, cannot be used: %s", version, error)
        return list(loaded.values())

    # Writing.

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Failed(
                f"cannot write to {self._directory}: {error.strerror}; free some disk"
            ) from error

    def _install(self, data: bytes, version: int, check: GateCheck) -> GateResult:
        """Write a draft folder, check it and, if it is accepted, rename it."""
        folder = self._folder(version)
        draft = self._directory / f".{folder.name}.draft"
        try:
            checkpoints.unpack(data, draft)
            new = checkpoints.load(draft)  # read it again from disk, so that this is checked
            if new.version != version:
                raise BadInput(f"the checkpoint says version {new.version}, not {version}")
            result = check(new, self._rivals())
            if not result.reason:
                draft.replace(folder)
                sync(self._directory)
            return result
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _change(self, state: RegistryState) -> None:
        with self._writing():
            self._put(state)
            self._prune()

    def _put(self, state: RegistryState) -> None:
        """Write `state` to disk, then keep it in this object."""
        registry_state.write(self._directory, state)
        self._state = state

    def _prune(self) -> None:
        """Delete all versions but the newest `keep` and those that the state keeps."""
        folders = self._folders()
        kept = {*folders[-self._keep :], *self._state.kept}
        renamed = []
        for version in folders:
            if version not in kept:
                folder = self._folder(version)
                # Rename first: a folder that is partly removed must not look like a version.
                renamed.append(folder.replace(folder.with_name(f".{folder.name}.gone")))
        if renamed:
            sync(self._directory)
        for folder in renamed:
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in list(self._directory.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                _log.info("removing %s, which is unfinished", path)
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
