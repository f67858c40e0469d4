"""The registry: it stores the versions of the TLM on disk and knows which version is in force.

It has one folder per version (``v000012``) and ``current.json``, which names the version in force
and is replaced atomically. If a process is killed at any moment, the next registry of the directory
finds a complete version in force. Use one registry per directory and one call at a time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tlmd.config import SHIPPED
from tlmd.errors import BadInput, Failed
from tlmd.model import checkpoint as checkpoints
from tlmd.model.checkpoint import Checkpoint
from tlmd.types import Published

_log = logging.getLogger("tlmd.registry")
_SCHEMA = 1
_CURRENT = "current.json"
_FOLDER = re.compile(r"v(\d{6,})")
_LEFTOVER = re.compile(r"\.(v\d{6,}|current)\.(draft|gone)")

# (new checkpoint, checkpoint in force) -> the reason to refuse the new one; empty to accept it.
GateCheck = Callable[[Checkpoint, Checkpoint], str]


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

    created: float
    """Seconds since the epoch."""

    notes: dict[str, Any]


@dataclass(frozen=True)
class _State:
    """The content of `current.json`."""

    current: int = 0
    """The version in force."""

    last: int = 0
    """The highest version that was ever published or refused."""

    promoted: tuple[int, ...] = ()


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
            self._state = self._read_state()
            if self.current:
                self._in_force()
            else:  # its files are enough to check: building the network imports torch (seconds)
                checkpoints.read(self._base)

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
        """Store `data` (of `checkpoint.to_bytes`) as `version` and use it, if `check` accepts it.

        `version` must be at least `next_version()` and equal to the version in the checkpoint. It
        counts as used even if the checkpoint is refused. Raises `BadInput` for data that is no
        checkpoint.
        """
        if version < self.next_version():
            raise BadInput(f"version {version} is used already; the next is {self.next_version()}")
        with self._writing():
            self._put(replace(self._state, last=version))
            reason = self._install(data, version, check)
            if reason:
                return Published(version, False, reason)
            self._put(replace(self._state, current=version))
            self._prune()
        return Published(version, True)

    def promote(self, version: int) -> None:
        """Put a version in force and never delete it. Raises `BadInput` if it does not exist."""
        self._load(version)
        promoted = tuple(sorted({*self._state.promoted, version}))
        self._change(replace(self._state, current=version, promoted=promoted))

    def rollback(self, version: int) -> None:
        """Put an older version in force again. Raises `BadInput` if it does not exist."""
        self._load(version)
        self._change(replace(self._state, current=version))

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
        known = [0, *self._folders()]
        if version not in known:
            existing = ", ".join(map(str, known))
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

    def _in_force(self) -> Checkpoint:
        """The checkpoint in force. If it cannot be used, put an older one in force."""
        older = [v for v in reversed(self._folders()) if v < self.current]
        for version in (self.current, *older, 0):
            try:
                loaded = self._load(version)
            except BadInput as error:
                if version == 0:
                    raise
                _log.warning("version %d cannot be used, trying an older one: %s", version, error)
                continue
            if version != self.current:
                _log.warning("version %d is in force now", version)
                self._put(replace(self._state, current=version))
            return loaded
        raise AssertionError("the base is returned or raises")

    def _read_state(self) -> _State:
        """Read `current.json`. If it is lost, use the newest version and mark all as promoted."""
        path, folders = self._directory / _CURRENT, tuple(self._folders())
        newest = max(folders, default=0)
        try:
            plain = json.loads(path.read_text())
            if isinstance(plain["schema"], int) and plain["schema"] > _SCHEMA:
                raise BadInput(
                    f"{path} was written by a newer tlmd (schema {plain['schema']}, this one reads "
                    f"up to {_SCHEMA}); upgrade tlmd or use another --state-dir"
                )
            if plain["schema"] != _SCHEMA:
                raise ValueError(f"schema {plain['schema']}, not {_SCHEMA}")
            promoted = tuple(int(version) for version in plain["promoted"])
            return _State(int(plain["current"]), int(plain["last"]), promoted)
        except FileNotFoundError:
            reason = "is missing"
        except (ValueError, KeyError, TypeError) as error:
            reason = f"is damaged ({error})"
        if folders:
            _log.warning("%s %s, using version %d and keeping all", path, reason, newest)
        return _State(newest, newest, folders)

    # Writing.

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Failed(
                f"cannot write to {self._directory}: {error.strerror}; free some disk"
            ) from error

    def _install(self, data: bytes, version: int, check: GateCheck) -> str:
        """Write a draft folder, check it and rename it. Returns the reason if it is refused."""
        folder = self._folder(version)
        draft = self._directory / f".{folder.name}.draft"
        try:
            checkpoints.unpack(data, draft)
            new = checkpoints.load(draft)  # read it again from disk, so that this is checked
            if new.version != version:
                raise BadInput(f"the checkpoint says version {new.version}, not {version}")
            reason = check(new, self._in_force())
            if not reason:
                draft.replace(folder)
                checkpoints.sync(self._directory)
            return reason
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _change(self, state: _State) -> None:
        with self._writing():
            self._put(state)
            self._prune()

    def _put(self, state: _State) -> None:
        """Write `state` to disk, then keep it in this object."""
        plain = {
            "schema": _SCHEMA,
            "current": state.current,
            "last": state.last,
            "promoted": list(state.promoted),
        }
        draft = self._directory / ".current.draft"
        draft.write_text(json.dumps(plain) + "\n")
        checkpoints.sync(draft)
        draft.replace(self._directory / _CURRENT)
        checkpoints.sync(self._directory)
        self._state = state

    def _prune(self) -> None:
        """Delete all versions but the newest `keep`, the promoted ones and the one in force."""
        folders = self._folders()
        kept = {*folders[-self._keep :], *self._state.promoted, self.current}
        renamed = []
        for version in folders:
            if version not in kept:
                folder = self._folder(version)
                # Rename first: a folder that is partly removed must not look like a version.
                renamed.append(folder.replace(folder.with_name(f".{folder.name}.gone")))
        if renamed:
            checkpoints.sync(self._directory)
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
