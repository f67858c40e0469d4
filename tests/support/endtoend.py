"""What the end-to-end tests share: the models they tune, the command, and what it measured.

Nothing here imports torch before it is needed: the tests of the command line use it as well.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tlmd.data.types import Record, Status

ROOT = Path(__file__).parents[2]
MODEL = "tests.support.small_network:make"
OTHER = "tests.support.small_network:make_other"
THIRD = "tests.support.small_network:make_third"
FOURTH = "tests.support.small_network:make_fourth"
LONG = "tests.support.small_network:make_wide"


def save_checkpoint(directory: Path) -> Path:
    """An untrained TLM: what these tests are about is not how good it is."""
    from tlmd.tlm import checkpoint, network
    from tlmd.tlm.cost_model import CostModel

    checkpoint.save(
        checkpoint.Checkpoint(0, "nano", network.create("nano", 0), CostModel()), directory
    )
    return directory


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tlmd.cli", *map(str, arguments)]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`tlmd ARGUMENTS` in a process of its own."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False, **options
    )


@contextlib.contextmanager
def known_roofline() -> Iterator[None]:
    """This process takes the machine's limits for known, instead of measuring them (seconds)."""
    from tlmd.export import job_export
    from tlmd.measure.timing.peak import Roofline

    found = Roofline({"float32": 100.0}, ((1 << 62, 20.0),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_export, "kept_roofline", lambda *_: found)
        yield


def candidates(state: Path) -> list[str]:
    """Ids of everything measured in a state directory, in order; also beside a running job."""
    from tlmd.data.errors import BadInput, Failed
    from tlmd.records.store import RecordStore

    try:
        with RecordStore(state / "records.sqlite", read_only=True) as store:
            return measured(store.all_records())
    except (BadInput, Failed):  # not made yet
        return []


def measured(records: list[Record]) -> list[str]:
    """The ids of what was measured, in order.

    A race times finalists once more, which does not count; one of the same batch replaces the row.
    """
    found: list[str] = []
    for record in records:
        again = record.outcome.compared and record.candidate.id in found
        if record.outcome.status is not Status.INVALID and not again:
            found.append(record.candidate.id)
    return found


def children(group: int) -> list[int]:
    """Processes of a process group that are still there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.name))
    return found
