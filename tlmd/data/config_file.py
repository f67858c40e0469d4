"""Reads the configuration's file and the names of its keys; `config` has the keys themselves."""

from __future__ import annotations

import difflib
import functools
import logging
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tlmd.data.errors import BadInput
from tlmd.version import __version__

_log = logging.getLogger("tlmd")  # without a handler, Python prints its warnings on stderr

REMOVED_IN = "0.3.0"
"""The version that no longer knows the old keys."""
# Keys of tlmd 0.1 that have another name now; files that use them still work.
RENAMED = {
    "measure.lend": "measure.build_on_run_cores",
    "generate.over": "generate.oversample",
    "generate.least": "generate.oversample_min",
    "generate.most": "generate.oversample_max",
    "pipeline.turn": "pipeline.per_task",
    "registry.tolerated_legal": "registry.tolerated_order",
}


def read(path: Path) -> dict[str, Any]:
    """The tree of a TOML file. Raises `BadInput`."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}") from error


def put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set one value of a tree. Raises `BadInput` where a key is no section."""
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise BadInput(f"configuration key {'.'.join(keys)!r} is not a section")
    tree[keys[-1]] = value


def rename(tree: dict[str, Any]) -> None:
    """Move values of old keys to their new names, with a warning; a value of the new name wins."""
    for old, new in RENAMED.items():
        section, _, key = old.partition(".")
        values = tree.get(section)
        if isinstance(values, dict) and key in values:
            values.setdefault(new.partition(".")[2], values.pop(key))
            _warn(old)


@functools.cache  # once in each process, which may read its configuration several times
def _warn(old: str) -> None:
    _log.warning(
        "configuration key %r is now %r; tlmd %s no longer takes the old one",
        *(old, RENAMED[old], REMOVED_IN),
    )


def explain(error: ValidationError, path: Path | None, keys: list[str]) -> str:
    """One line about the first thing that is wrong."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    where = f"in {path}" if path else "in the configuration"
    if first["type"] != "extra_forbidden":
        return f"configuration key {key!r} {where}: {first['msg'].lower()} (got {first['input']!r})"
    near = difflib.get_close_matches(key, keys, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; tlmd {__version__} has no such key"
    return f"unknown configuration key {key!r} {where}{hint}"
