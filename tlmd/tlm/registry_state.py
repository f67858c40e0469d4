"""The memory of a registry beside its versions: ``current.json``, replaced atomically."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.processes.durable import sync

_log = logging.getLogger("tlmd.registry")
_SCHEMA = 2  # 1 had neither `pinned` nor `best`
NAME = "current.json"


@dataclass(frozen=True)
class RegistryState:
    """The content of the file.

    Example: ``RegistryState(current=12, last=14, promoted=(9,), pinned=12, best=(9, 12))``.
    """

    current: int = 0
    """The version in force."""

    last: int = 0
    """The highest version that was ever published or refused."""

    promoted: tuple[int, ...] = ()

    pinned: int | None = None
    """The version that the user has chosen: it stays in force."""

    best: tuple[int, ...] = (0,)
    """The best versions so far, which a new one is compared with."""

    @property
    def kept(self) -> set[int]:
        """Versions that must not be deleted."""
        return {self.current, *self.promoted, *self.best}


def read(directory: Path, folders: Sequence[int]) -> RegistryState:
    """Read the file in `directory`. `folders` are its versions in ascending order.

    Where the file is lost or damaged, the newest version is in force, all count as promoted and as
    the best, and none is pinned. A file of an older schema is read, too. Raises `BadInput` where a
    newer tlmd wrote the file.
    """
    path = directory / NAME
    try:
        plain = json.loads(path.read_text())
        schema = plain["schema"]
        if isinstance(schema, int) and schema > _SCHEMA:
            raise BadInput(
                f"{path} was written by a newer tlmd (schema {schema}, this one reads up to "
                f"{_SCHEMA}); upgrade tlmd or use another --state-dir"
            )
        if schema not in range(1, _SCHEMA + 1):
            raise ValueError(f"schema {schema}, not {_SCHEMA}")
        return _from_plain(plain)
    except FileNotFoundError:
        reason = "is missing"
    except (ValueError, KeyError, TypeError) as error:
        reason = f"is damaged ({error})"
    newest = max(folders, default=0)
    if folders:
        text = "%s %s, using version %d, keeping all, and none is pinned"
        _log.warning(text, path, reason, newest)
    return RegistryState(newest, newest, tuple(folders), best=tuple(folders) or (0,))


def _from_plain(plain: dict[str, Any]) -> RegistryState:
    current = int(plain["current"])
    if plain["schema"] == 1:
        plain = plain | {"pinned": None, "best": [current]}
    pinned = plain["pinned"]
    return RegistryState(
        current,
        int(plain["last"]),
        tuple(int(version) for version in plain["promoted"]),
        int(pinned) if pinned is not None else None,
        tuple(int(version) for version in plain["best"]),
    )


def write(directory: Path, state: RegistryState) -> None:
    """Replace the file; when this returns, it is on disk. Raises `OSError`."""
    plain = {
        "schema": _SCHEMA,
        "current": state.current,
        "last": state.last,
        "promoted": list(state.promoted),
        "pinned": state.pinned,
        "best": list(state.best),
    }
    draft = directory / ".current.draft"
    draft.write_text(json.dumps(plain) + "\n")
    sync(draft)
    draft.replace(directory / NAME)
    sync(directory)
