"""The best programs of a model's tasks, of each kind of alternative, for `on_off`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.common import setting
from benchmarks.common.measured import searched
from tlmd.data.model_spec import ModelSpec
from tlmd.data.selection import fastest
from tlmd.data.types import MeasureInput, Record, Task

if TYPE_CHECKING:
    from tlmd.models.sources import SourceModel

ATTENTION, EXPANSIONS, WINDOWS = "attention", "expansions", "windows"
KINDS = ("winograd", "packed", "strassen", "amx", ATTENTION, EXPANSIONS, WINDOWS)
_LOWERED = (ATTENTION, EXPANSIONS)  # without these a model has other tasks
_DIRECT = "direct"


@dataclass(frozen=True)
class Timed:
    """The alternatives of one computation, timed."""

    name: str
    weights: dict[str, int]
    """How often the model computes it, by the kinds without which it is lowered."""
    times: dict[str, float]
    """Seconds of the best program of each, by its name, in the order in which they are tried."""

    def has(self, kind: str) -> bool:
        """Whether it is of this kind, or has an alternative of it."""
        if kind in _LOWERED:
            return self.weights[""] != self.weights[kind]
        return any(name.startswith(kind) for name in self.times)

    def seconds(self, without: Collection[str]) -> float:
        """What it costs a run of the model that is tuned without these kinds."""
        return self.weights[_key(without)] * self.best(without)

    def best(self, without: Collection[str]) -> float:
        """Seconds of the fastest program that is of none of these kinds."""
        return min(s for name, s in self.times.items() if not name.startswith(tuple(without)))

    @property
    def has_alternatives(self) -> bool:
        """Whether there is another program than the direct one."""
        return not self.times.keys() <= {_DIRECT, WINDOWS}

    @property
    def first(self) -> float:
        """Seconds of the alternative that is tried first."""
        return next(iter(self.times.values()))


def timed_model(measurer: Any, spec: ModelSpec, options: Any) -> list[Timed]:
    """All tasks of a model for one core, also those of the model without attention or expansions.

    `options`: ``checkpoint``, ``untrained``, ``trials`` of each alternative, ``seed``.
    """
    checkpoint = setting.load(options.checkpoint, options.untrained)
    source = load_source(spec)
    sets = [without for n in range(3) for without in combinations(_LOWERED, n)]
    lowered = {_key(without): groups(source, without) for without in sets}
    found = []
    for computation, members in {
        k: v for tasks in lowered.values() for k, v in tasks.items()
    }.items():
        programs = list(_best_programs(measurer, members, checkpoint, options))
        weights = {
            key: tasks[computation][0].weight if computation in tasks else 0
            for key, tasks in lowered.items()
        }
        times = compared(measurer, programs)
        found.append(Timed(members[0].name, weights, times))
        listed = ", ".join(f"{name} {s * 1e6:.0f} us" for name, s in times.items())
        print(f"{members[0].name}: {listed}", file=sys.stderr, flush=True)
    return found


def load_source(spec: ModelSpec) -> SourceModel:
    """The model at its one set of input shapes."""
    from tlmd.models import frontends

    ((_, source),) = frontends.load_sets(spec)
    return source


def _key(without: Collection[str]) -> str:
    return "+".join(kind for kind in _LOWERED if kind in without)


def groups(source: SourceModel, without: Collection[str] = ()) -> dict[str, list[Task]]:
    """The tasks of a model for one core with their alternatives, by `Task.computation`.

    `without`: which of attention and expansions are several tasks each.
    """
    from tlmd.lowering import lowering
    from tlmd.lowering.alternatives import with_alternatives
    from tlmd.space.hardware.target import resolve, tvm_target

    target, found = resolve("native", 1), dict[str, list[Task]]()
    lowered = lowering.lower(
        source.module,
        tvm_target(target),
        attention=ATTENTION not in without,
        expansions=EXPANSIONS not in without,
    )
    for task in with_alternatives(lowering.extract(lowered, target)):
        found.setdefault(task.computation, []).append(task)
    return found


def _best_programs(
    measurer: Any, members: Sequence[Task], checkpoint: Any, options: Any
) -> Iterator[tuple[str, Task, Record]]:
    """The name, the task and the best program of each alternative."""
    from tlmd.space.rules import window_sketches

    for task in members:
        if task.alternative or not _has_windows(task):
            yield task.alternative or _DIRECT, task, best(measurer, task, checkpoint, options)
            continue
        yield WINDOWS, task, best(measurer, task, checkpoint, options)
        with mock.patch.object(window_sketches, "sketch", return_value=[]):
            yield _DIRECT, task, best(measurer, task, checkpoint, options)


def _has_windows(task: Task) -> bool:
    """Whether the direct program has the sketch of `tlmd.space.rules.window_sketches`."""
    import tvm

    from tlmd.space.hardware.target import tvm_target, vector_unit
    from tlmd.space.rules import window_sketches

    unit = vector_unit(tvm_target(task.target))
    return not task.attention and bool(
        window_sketches.sketch(tvm.ir.load_json(task.module), unit, 1)
    )


def best(measurer: Any, task: Task, checkpoint: Any, options: Any) -> Record:
    """The best of `trials` candidates, written by the product's own search."""
    records = searched(measurer, task, checkpoint, options.trials, options.seed)
    found = fastest(records)
    if found is None:
        raise SystemExit(f"no program of {task.name} works")
    return found


def compared(measurer: Any, programs: Sequence[tuple[str, Task, Record]]) -> dict[str, float]:
    """Seconds of programs that compute the same, by their names; timed in interleaved rounds."""
    from tlmd.space.space import TaskSpace

    if len(programs) == 1:
        ((name, _, record),) = programs
        return {name: record.outcome.seconds}
    finalists = [
        (task, MeasureInput(record.candidate.id, TaskSpace(task).trace_json(record.candidate)))
        for _, task, record in programs
    ]
    outcomes = measurer.compare(finalists)
    if not outcomes:
        raise SystemExit(f"the alternatives of {programs[0][1].name} could not be compared")
    names = [name for name, _, _ in programs]
    return {name: outcome.seconds for name, outcome in zip(names, outcomes, strict=True)}
