"""How long each function takes inside of its model, where the others share the caches with it.

`python -m tlmd.export.in_model PLAN.json` is the process that times. It is pinned to the run
cores, runs several compiled versions of one model by turns, and prints one line of JSON.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlmd.export import timing_process
from tlmd.export.timing_process import TimingProcess
from tlmd.space import tvm_alone

_TURNS, _TURN_S = 12, 0.05
_LEAST_TURNS, _BUDGET_S = 5, 8.0  # of all turns, for slow models

Times = dict[str, float]
"""Seconds that all calls of a function take in one run of the model, by the function's name."""

Turns = list[Times]
"""The medians of the runs of each turn."""


def measure(
    libraries: Sequence[Path], inputs: Sequence[np.ndarray], cores: Sequence[int], scratch: Path
) -> list[Turns]:
    """The times of the functions of each library, which take turns. Raises `Failed`."""
    plan = {"libraries": list(map(str, libraries))}
    doing = "timing inside of the model"
    module = "tlmd.export.in_model"
    with TimingProcess(module, plan, inputs, cores, scratch, doing) as process:
        turns: list[Turns] = process.ask({})
    return turns


class _Timed:
    """A compiled model that keeps the times of its functions."""

    def __init__(self, library: str, inputs: Sequence[np.ndarray]) -> None:
        import tvm

        from tlmd.export.library import load_machine

        self._machine = load_machine(Path(library))
        self._tensors = [tvm.runtime.tensor(value) for value in inputs]
        self._run: defaultdict[str, float] = defaultdict(float)
        self._began = 0.0
        self._machine.set_instrument(self._at_call)

    def turn(self) -> Times:
        """Run it at least twice. The first run fills the caches and does not count."""
        self._once()
        end = time.perf_counter() + _TURN_S
        runs = [self._once()]
        while time.perf_counter() < end:
            runs.append(self._once())
        return {name: statistics.median(run[name] for run in runs) for name in runs[0]}

    def _once(self) -> Times:
        self._run = defaultdict(float)
        self._machine["main"](*self._tensors)
        return self._run

    def _at_call(self, _func: Any, name: str, before: bool, *_: Any) -> int:
        """TVM calls it before and after each function."""
        if before:
            self._began = time.perf_counter()
        else:
            self._run[name] += time.perf_counter() - self._began
        return 0


def _main(plan_path: str) -> None:
    plan, inputs = timing_process.begin(plan_path)
    tvm_alone.import_tvm()
    for _request in timing_process.requests(plan):
        timing_process.answer(_turns(plan["libraries"], inputs))


def _turns(libraries: Sequence[str], inputs: Sequence[np.ndarray]) -> list[Turns]:
    timed = [_Timed(library, inputs) for library in libraries]
    turns: list[Turns] = [[] for _ in timed]
    begin = time.perf_counter()
    for number in range(_TURNS):
        if number >= _LEAST_TURNS and time.perf_counter() - begin > _BUDGET_S:
            break
        for one, times in zip(timed, turns, strict=True):
            times.append(one.turn())
    return turns


if __name__ == "__main__":
    _main(sys.argv[1])
