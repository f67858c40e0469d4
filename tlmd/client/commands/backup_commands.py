"""The commands `tlmd backup` and `tlmd restore`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tlmd.client.commands.arguments import state_dir


def backup(options: argparse.Namespace) -> int:
    from tlmd.records import backup as backups

    saved = backups.save(state_dir(options), options.file)
    return _tell(options, saved, f"in {options.file}; `tlmd restore` makes a state directory of it")


def restore(options: argparse.Namespace) -> int:
    from tlmd.records import backup as backups

    folder = state_dir(options)
    saved = backups.restore(options.file, folder)
    return _tell(options, saved, f"in {folder}; `tlmd start` continues its jobs")


def _tell(options: argparse.Namespace, saved: Any, where: str) -> int:
    if options.json:
        print(json.dumps({"records": saved.records, "files": saved.files}))
    else:
        print(f"{saved.records} records and {saved.files} files {where}")
    return 0
