"""The registry: versions of the TLM on disk, published whole or not at all, kept, rolled back.

One folder per version (``v000012``) and ``current.json``, which names the version in force and is
replaced atomically. Whatever is killed at whatever moment, the next one to open the directory
finds a whole version in force. Files only; one registry per directory, one call at a time.
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

_log = logging.getLogger("tlmd.registry")
_SCHEMA = 1
_CURRENT = "current.json"
_FOLDER = re.compile(r"v(\d{6,})")
_LEFTOVER = re.compile(r"\.(v\d{6,}|current)\.(draft|gone)")

# (the new checkpoint, the one in force) -> why it must not be published; empty where it may.
Check = Callable[[Checkpoint, Checkpoint], str]


@dataclass(frozen=True)
class Published:
    """What became of a checkpoint; ``reason`` says in one line why it was refused.

    Example: ``Published(13, False, "held-out loss 2.31 against 1.90 nats")``.
    """

    version: int
    accepted: bool
    reason: str = ""


@dataclass(frozen=True)
class Entry:
    """One version there is; ``created`` is in seconds since the epoch.

    Example: ``Entry(12, current=True, promoted=False, created=1.7e9, notes={"steps": 60})``.
    """

    version: int
    current: bool
    promoted: bool
    created: float
    notes: dict[str, Any]


@dataclass(frozen=True)
class _State:
    """What `current.json` says; ``last`` is the highest version that was ever given away."""

    current: int = 0
    last: int = 0
    promoted: tuple[int, ...] = ()


class Registry:
    """The versions in one directory; version 0 is the base, a folder elsewhere that stays as it is.

    Opening removes what a killed predecessor left half done. A version in force that is missing,
    damaged or foreign is replaced by the newest older good one, finally the base, with a warning.
    Raises `BadInput` where the base is needed and unusable, `Failed` for a disk that cannot be
    written to.
    """

    def __init__(self, directory: Path, base: Path = SHIPPED, keep: int = 5) -> None:
        self._directory = directory
        self._base = base
        self._keep = max(keep, 1)
        with self._writing():
            directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._state = self._read_state()
            self._in_force()

    @property
    def current(self) -> int:
        """The version in force."""
        return self._state.current

    def next_version(self) -> int:
        """A version higher than any that was ever published, refused or begun."""
        return max(self._state.last, self._state.current, *self._folders(), 0) + 1

    def blob(self, version: int | None = None) -> bytes:
        """A version as `checkpoint.from_bytes` reads it; None for the one in force.

        Raises `BadInput` for an unknown or damaged version.
        """
        if version is None:
            version = self.current
        return checkpoints.read(self._known(version), version)

    def publish(self, data: bytes, version: int, check: Check) -> Published:
        """Put `data` (of `checkpoint.to_bytes`) in force as `version` if `check` finds no fault.

        `version` must be at least `next_version()` and what the checkpoint itself says; it is spent
        in any case. Raises `BadInput` for data that is no checkpoint.
        """
        if version < self.next_version():
            raise BadInput(f"version {version} has been taken; the next is {self.next_version()}")
        with self._writing():
            self._put(replace(self._state, last=version))
            reason = self._install(data, version, check)
            if reason:
                return Published(version, False, reason)
            self._put(replace(self._state, current=version))
            self._prune()
        return Published(version, True)

    def promote(self, version: int) -> None:
        """Put a version in force and keep it for ever; raises `BadInput` if there is none such."""
        self._load(version)
        promoted = tuple(sorted({*self._state.promoted, version}))
        self._change(replace(self._state, current=version, promoted=promoted))

    def rollback(self, version: int) -> None:
        """Put an older version in force again; raises `BadInput` if there is none such."""
        self._load(version)
        self._change(replace(self._state, current=version))

    def versions(self) -> list[Entry]:
        """All usable versions in ascending order, the base first."""
        found = []
        for version in (0, *self._folders()):
            folder = self._folder(version)
            with contextlib.suppress(BadInput, OSError):
                manifest = checkpoints.manifest(folder)
                found.append(
                    Entry(
                        version,
                        version == self.current,
                        version in self._state.promoted,
                        (folder / "manifest.json").stat().st_mtime,
                        manifest.get("notes", {}),
                    )
                )
        return found

    # reading

    def _folder(self, version: int) -> Path:
        return self._directory / f"v{version:06d}" if version else self._base

    def _folders(self) -> list[int]:
        """The versions that have a folder, ascending."""
        names = (_FOLDER.fullmatch(path.name) for path in self._directory.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def _known(self, version: int) -> Path:
        known = [0, *self._folders()]
        if version not in known:
            there = ", ".join(map(str, known))
            raise BadInput(f"there is no checkpoint version {version}; there are {there}")
        return self._folder(version)

    def _load(self, version: int) -> Checkpoint:
        folder = self._known(version)
        loaded = checkpoints.load(folder)
        if version == 0:  # a base may have been a version of somewhere else
            return replace(loaded, version=0)
        if loaded.version != version:
            raise BadInput(f"{folder} holds version {loaded.version}; remove it")
        return loaded

    def _in_force(self) -> Checkpoint:
        """The checkpoint in force; if it is not usable, an older one is put in force."""
        older = [v for v in reversed(self._folders()) if v < self.current]
        for version in (self.current, *older, 0):
            try:
                loaded = self._load(version)
            except BadInput as error:
                if version == 0:
                    raise
                _log.warning("version %d cannot be used, going back: %s", version, error)
                continue
            if version != self.current:
                _log.warning("version %d is in force now", version)
                self._put(replace(self._state, current=version))
            return loaded
        raise AssertionError("the base is returned or raises")

    def _read_state(self) -> _State:
        """What `current.json` says; where it is lost, the newest version and all are kept."""
        path, folders = self._directory / _CURRENT, tuple(self._folders())
        newest = max(folders, default=0)
        try:
            plain = json.loads(path.read_text())
            if plain["schema"] != _SCHEMA:
                raise ValueError(f"schema {plain['schema']}, not {_SCHEMA}")
            promoted = tuple(int(version) for version in plain["promoted"])
            return _State(int(plain["current"]), int(plain["last"]), promoted)
        except FileNotFoundError:
            reason = "is missing"
        except (ValueError, KeyError, TypeError) as error:
            reason = f"is damaged ({error})"
        if folders:
            _log.warning("%s %s, taking version %d and keeping all", path, reason, newest)
        return _State(newest, newest, folders)

    # writing

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Failed(
                f"cannot write to {self._directory}: {error.strerror}; free some disk"
            ) from error

    def _install(self, data: bytes, version: int, check: Check) -> str:
        """Draft, gate, rename; why it was refused. Nothing but a whole accepted folder remains."""
        folder = self._folder(version)
        draft = self._directory / f".{folder.name}.draft"
        try:
            checkpoints.unpack(data, draft)
            new = checkpoints.load(draft)  # what is on disk is what is examined
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
        """Make `state` what the disk says, then what this object says."""
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
        """Keep the last few folders, those promoted and the one in force."""
        folders = self._folders()
        kept = {*folders[-self._keep :], *self._state.promoted, self.current}
        gone = []
        for version in folders:
            if version not in kept:
                folder = self._folder(version)
                # Renamed first: a folder that is half removed must not look like a version.
                gone.append(folder.replace(folder.with_name(f".{folder.name}.gone")))
        if gone:
            checkpoints.sync(self._directory)
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        for path in list(self._directory.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                _log.info("removing %s, which was left half done", path)
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
