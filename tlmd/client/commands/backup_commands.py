"""The commands `tlmd backup` and `tlmd restore`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Common = Callable[[argparse.ArgumentParser], None]


def add(commands: Any, common: Common) -> None:
    """Add the parsers of these commands to `commands`; `common` adds the options all have."""
    for name, run, text in (
        ("backup", _backup, "write records, jobs and checkpoints to one file; the daemon may run"),
        ("restore", _restore, "make a new state directory from a backup"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("file", metavar="FILE", type=Path)
        common(parser)
        parser.set_defaults(run=run)


def _backup(options: argparse.Namespace) -> int:
    from tlmd.records import backup

    saved = backup.save(_state_dir(options), options.file)
    return _tell(options, saved, f"in {options.file}; `tlmd restore` makes a state directory of it")


def _restore(options: argparse.Namespace) -> int:
    from tlmd.records import backup

    state_dir = _state_dir(options)
    saved = backup.restore(options.file, state_dir)
    return _tell(options, saved, f"in {state_dir}; `tlmd start` continues its jobs")


def _state_dir(options: argparse.Namespace) -> Path:
    from tlmd.data.state_dir import default_state_dir

    return Path(options.state_dir or default_state_dir()).absolute()


def _tell(options: argparse.Namespace, saved: Any, where: str) -> int:
    if options.json:
        print(json.dumps({"records": saved.records, "files": saved.files}))
    else:
        print(f"{saved.records} records and {saved.files} files {where}")
    return 0
