"""A daemon with simulated slots and generators: ``python -m tests.chaos.simulated_daemon STATE``.

Ray, its actors, HTTP, the store and the registry are real. Nothing is trained.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks import simulated
from tlmd.errors import TlmdError

SLOTS = 2
_SETTINGS = {
    "train.enabled": False,
    "pipeline.batch": 8,
    "pipeline.per_task": 4,
    "pipeline.chunk": 2,
    "generate.timeout": 10.0,
    "daemon.generators": 1,
    "daemon.niceness": 0,
    "measure.background_share": 1.0,
}


class QuickSlot(simulated.SimulatedSlot):
    """Takes little time for a candidate."""

    candidate_s = 0.05


class FreshGenerator(simulated.SimulatedGenerator):
    """Never writes again what an earlier one of its place wrote."""

    def __init__(self, registry: Any, config: dict[str, Any], _seed: int) -> None:
        super().__init__(registry, config, 0)
        self._random = random.Random(os.urandom(8))


def main(state_dir: Path) -> int:
    """Run until the daemon ends; its exit code."""
    from actors import session
    from tlmd import config
    from tlmd.daemon.serve import serve

    place = "tests.chaos.simulated_daemon"
    session.Settings = functools.partial(  # type: ignore[misc, assignment]
        session.Settings,
        slot_class=f"{place}:QuickSlot",
        slot_count=SLOTS,
        generator_class=f"{place}:FreshGenerator",
    )
    try:
        return serve(state_dir, config.load(None, _SETTINGS))
    except TlmdError as error:
        print(f"tlmd: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
