"""The choice between alternatives that are nearly as fast, by their times inside of the model.

A task is timed alone: its weights come from memory, but what it reads and its working memory stay
in the near caches. In the model the tasks before it have used them. A version of the model with the
rivals runs in turns with the one with the best programs, and a task takes its rival if that is
faster there in nearly all turns: other programs of the machine disturb some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tlmd.data.errors import Failed
from tlmd.export import in_model, libraries
from tlmd.export.libraries import TunedLibrary
from tlmd.export.result import Result
from tlmd.lowering import alternatives
from tlmd.lowering.preparation import LoweredModel

_log = logging.getLogger("tlmd.export")
_CLEARLY = 0.99  # of the time of the other one
_NEARLY_ALL = 0.8  # of the turns: by chance 10 of 12 happen once in fifty tasks, 5 of 5 in thirty


def compile_rivals(
    models: Sequence[LoweredModel], result: Result, folder: Path
) -> list[TunedLibrary]:
    """The models with each rival instead of the best program.

    Empty where there are none, or where they cannot be compiled, which costs only the choice.
    """
    rivals = result.rivals()
    if not rivals:
        return []
    try:
        return libraries.tuned(models, replace(result, preferred=rivals), folder)
    except Failed as error:  # no space left, for example
        _log.warning("no choice inside of the model: %s", error)
        return []


def choose(
    models: Sequence[LoweredModel],
    result: Result,
    best: Sequence[TunedLibrary],
    rivals: Sequence[TunedLibrary],
    cores: tuple[int, ...],
    scratch: Path,
) -> bool:
    """Let `result` prefer the rivals that are faster inside of the model; whether one is.

    `best` and `rivals`: the libraries of `models`. Without times it prefers none.
    """
    if not rivals:
        return False
    other = replace(result, preferred=result.rivals())
    faster: set[str] = set()
    for model, one, two in zip(models, best, rivals, strict=True):
        inputs = model.source.random_inputs(0)
        try:
            times = in_model.measure((one.path, two.path), inputs, cores, scratch)
        except Failed as error:  # too little memory for both, for example
            _log.warning("no choice inside of the model: %s", error)
            return False
        now = [_by_task(turn, model, result) for turn in times[0]]
        then = [_by_task(turn, model, other) for turn in times[1]]
        faster |= {
            key
            for key in then[0]
            if _is_faster([turn[key] for turn in then], [turn[key] for turn in now])
        }
    result.preferred = {key: rival for key, rival in other.preferred.items() if key in faster}
    return bool(result.preferred)


def _is_faster(theirs: Sequence[float], ours: Sequence[float]) -> bool:
    """Whether it is clearly faster in nearly all turns."""
    wins = sum(one < _CLEARLY * two for one, two in zip(theirs, ours, strict=True))
    return wins > _NEARLY_ALL * len(ours)


def _by_task(times: in_model.Times, model: LoweredModel, version: Result) -> dict[str, float]:
    """Seconds of each computation in one run of a version of the model, by its direct task."""
    totals: dict[str, float] = {}
    for name, key in alternatives.direct_tasks(model.lowered, version.alternatives()).items():
        totals[key] = totals.get(key, 0.0) + times.get(name, 0.0)
    return totals
