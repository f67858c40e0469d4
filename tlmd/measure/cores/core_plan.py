"""Plans which cores time candidates and which cores build them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tlmd.data.errors import BadInput

CARD = "cuda"
"""Name and target of a slot that is a CUDA card: the one which its process sees."""

_FEWEST_BUILT, _MOST_BUILT = 3, 8
_SYSFS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class CoreLayout:
    """The logical CPUs of one slot: ``run`` times, ``build`` does everything else.

    Examples: ``CoreLayout(run=(0, 1), build=(0, 1))``, ``CoreLayout(run=(1,), build=(0,))``.
    """

    run: tuple[int, ...]
    build: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Building and timing take turns on the same cores."""
        return bool(set(self.run) & set(self.build))

    @property
    def builders(self) -> int:
        """How many candidates are worth building at the same time, with the one that is timed.

        Building one takes two to four times as long as timing it, so more of them would wait.
        """
        return min(max(_FEWEST_BUILT, len(self.build) + 1), _MOST_BUILT)


def plan_cores(
    available: set[int] | None = None, run: int | None = None, sysfs: Path = _SYSFS
) -> CoreLayout:
    """Split `available` CPUs (default: this process's) into a slot of `run` cores and builders.

    The last physical cores time, one thread each; their SMT siblings stay idle and the rest builds.
    By default all physical cores time, since a model is served with all of them. When no core is
    left for building, it takes turns with the timing on the same cores. Raises `BadInput` for a
    `run` that the CPUs cannot give.
    """
    cpus = os.sched_getaffinity(0) if available is None else available
    physical = _physical_cores(cpus, sysfs)
    count = len(physical) if run is None else run
    if not 1 <= count <= len(physical):
        raise BadInput(
            f"a slot of {count} cores does not fit: {len(physical)} physical cores are available; "
            "ask for fewer cores"
        )
    timing, rest = physical[len(physical) - count :], physical[: len(physical) - count]
    run_cpus = tuple(core[0] for core in timing)
    return CoreLayout(run_cpus, tuple(sorted(cpu for core in rest for cpu in core)) or run_cpus)


def plan_slots(
    count: int, available: set[int] | None = None, run: int | None = None, sysfs: Path = _SYSFS
) -> list[CoreLayout]:
    """`count` slots of `run` cores each on one machine; all of them build on the same other cores.

    By default they share all physical cores. Raises `BadInput` where they do not fit.
    """
    if count == 1:
        return [plan_cores(available, run, sysfs)]
    cpus = os.sched_getaffinity(0) if available is None else available
    each = run or max(1, len(_physical_cores(cpus, sysfs)) // count)
    together = plan_cores(cpus, each * count, sysfs)
    return [
        CoreLayout(together.run[i * each : (i + 1) * each], together.build) for i in range(count)
    ]


def card_cores(available: set[int] | None, index: int) -> CoreLayout:
    """The cores for card `index`: one that starts its programs, on all of them they are built.

    `available` are those that slots of CPUs leave; None: all of this process.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0) if available is None else available))
    return CoreLayout((cpus[index % len(cpus)],), cpus)


def threads() -> set[int]:
    """The threads of this process."""
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def spread(cores: tuple[int, ...], workers: Iterable[int]) -> None:
    """Pin this thread and `workers` (thread ids) to one core each, so that no two share a core."""
    for thread, core in zip((0, *sorted(workers)), cores, strict=False):
        os.sched_setaffinity(thread, {core})


def _physical_cores(cpus: Iterable[int], sysfs: Path) -> list[tuple[int, ...]]:
    """Groups of SMT siblings among `cpus`, ascending; a CPU without known siblings is alone."""
    left = set(cpus)
    groups = []
    while left:
        first = min(left)
        group = tuple(sorted(left & (_siblings(first, sysfs) | {first})))
        groups.append(group)
        left -= set(group)
    return groups


def _siblings(cpu: int, sysfs: Path) -> set[int]:
    numbers: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        text = (sysfs / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        for part in text.strip().split(","):
            low, _, high = part.partition("-")
            numbers.update(range(int(low), int(high or low) + 1))
    return numbers
