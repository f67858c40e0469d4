"""A program for each task without measuring: recorded, known, or the cost model's choice.

`tlmd compile` and the first library of `torch.compile` have these programs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tlmd.corpus.known_programs import KnownPrograms
from tlmd.data import wire
from tlmd.data.config import SHIPPED
from tlmd.data.errors import TlmdError
from tlmd.data.types import Candidate, TargetInfo, Task
from tlmd.export.result import Result
from tlmd.generate.carry import carried_over
from tlmd.generate.first_choice import FirstChoice
from tlmd.pipeline.task_state import EARLIER, TaskState
from tlmd.processes import forks
from tlmd.records.store import RecordStore
from tlmd.space.cache import SpaceCache
from tlmd.tlm import checkpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What an unmeasured computation gets."""

    task: str
    """The id of the alternative."""
    candidate: Candidate | None
    """None: TVM refuses all that the cost model likes."""
    is_known: bool = False
    refused: int = 0
    """Known programs that were not taken."""


class ProgramSource:
    """Finds the programs with the records in `state_dir` and the cost model in `checkpoint_dir`.

    Its choices are kept, so that a model compiled again costs no search. Not thread-safe.
    """

    def __init__(self, state_dir: Path, checkpoint_dir: Path | str = "") -> None:
        self._state_dir = state_dir
        self._records = state_dir / "records.sqlite"
        self._checkpoint = Path(checkpoint_dir or SHIPPED)
        self._first_choice: FirstChoice | None = None
        self._choices: dict[tuple[str, ...], _Choice] = {}  # by the ids of all alternatives

    def find(
        self, name: str, tasks: Sequence[Task], target: TargetInfo, spaces: SpaceCache
    ) -> Result:
        """The result of a model with these tasks, their alternatives included.

        A computation without any record has the best known program of its alternatives, or else
        the cost model's choice for the first alternative, which has the least work.
        """
        states = self._states(tasks)
        result = Result(name, target, 0, states)
        self._drop_refused(result, spaces)
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            groups.setdefault(task.computation, []).append(task)
        unmeasured = [row.direct for row in result.rows() if not row.is_measured]
        wanted = [groups[direct.computation] for direct in unmeasured]
        self._choose(wanted, spaces, {state.task.id: state.earlier for state in states})
        for direct, group in zip(unmeasured, wanted, strict=True):
            choice = self._choices[_key(group)]
            result.refused += choice.refused
            if choice.candidate is not None:
                task = next(task for task in group if task.id == choice.task)
                result.predicted[direct.id] = task, choice.candidate
                if choice.is_known:
                    result.known.add(direct.id)
        return result

    @functools.cached_property
    def _known(self) -> KnownPrograms:
        """Read when a task has no record: it takes 50 ms."""
        return KnownPrograms.of_state(self._state_dir)

    def forget_known(self) -> None:
        """Use no known programs from now on."""
        self._known = KnownPrograms(())
        self._choices = {k: choice for k, choice in self._choices.items() if not choice.is_known}

    def _choose(
        self,
        groups: Sequence[Sequence[Task]],
        spaces: SpaceCache,
        earlier: Mapping[str, Sequence[Candidate]],
    ) -> None:
        """Make the choices for these groups, in several processes where that is allowed."""
        missing = [group for group in groups if _key(group) not in self._choices]
        missing.sort(key=lambda group: -group[0].flops)  # the largest have the largest spaces

        if not all(map(self._is_known, missing)):
            self._chooser()  # once, and not in each process

        def chosen(index: int) -> bytes:
            return wire.pack(self._choice(missing[index], spaces, earlier))

        for group, packed in zip(missing, forks.each(chosen, len(missing)), strict=True):
            self._choices[_key(group)] = wire.unpack(_Choice, packed)

    def _is_known(self, group: Sequence[Task]) -> bool:
        return any(self._known.of(task) for task in group)

    def _choice(
        self,
        group: Sequence[Task],
        spaces: SpaceCache,
        earlier: Mapping[str, Sequence[Candidate]],
    ) -> _Choice:
        found = [(known, task) for task in group for known in self._known.of(task)]
        refused = 0
        for known, task in sorted(found, key=lambda pair: pair[0].seconds):
            if spaces.get(task).makes(known.candidate, known.module_hash):
                return _Choice(task.id, known.candidate, is_known=True, refused=refused)
            _log.warning("TVM no longer makes the known program of %s", task.name)
            refused += 1
        first = group[0]
        candidate = self.propose(first, spaces, earlier[first.id])
        return _Choice(first.id, candidate, refused=refused)

    def propose(
        self, task: Task, spaces: SpaceCache, earlier: Sequence[Candidate] = ()
    ) -> Candidate | None:
        """The cost model's choice for a task; None if TVM refuses all that it likes.

        `earlier` are the best candidates of older revisions of the task.
        """
        space = spaces.get(task)
        return self._chooser().of(space, carried_over(space, earlier))

    def _chooser(self) -> FirstChoice:
        if self._first_choice is None:
            self._first_choice = FirstChoice(checkpoint.load_cost_model(self._checkpoint))
        return self._first_choice

    def _drop_refused(self, result: Result, spaces: SpaceCache) -> None:
        """Drop records that would be exported and that TVM refuses: the next best replace them."""
        taken = set[tuple[str, str]]()
        while True:
            refused = set[tuple[str, str]]()
            for row in result.rows():
                for task, record in ((row.chosen, row.record), (row.direct, row.direct_record)):
                    if record is None or (key := (task.id, record.candidate.id)) in taken:
                        continue
                    taken.add(key)
                    if spaces.get(task).finish_stored(record.candidate) is None:
                        _log.warning("TVM refuses the recorded program %s of %s", key[1], task.name)
                        refused.add(key)
            if not refused:
                return
            result.refused += len(refused)
            result.states = [_without(state, refused) for state in result.states]

    def _states(self, tasks: Sequence[Task]) -> list[TaskState]:
        try:
            with RecordStore(self._records, read_only=True) as store:
                return [
                    TaskState(
                        task,
                        store.records(*task.key),
                        store.baseline(*task.key),
                        earlier=tuple(
                            record.candidate for record in store.earlier_records(*task.key, EARLIER)
                        ),
                    )
                    for task in tasks
                ]
        except TlmdError:  # nothing was measured yet
            return [TaskState(task, []) for task in tasks]


def _key(group: Sequence[Task]) -> tuple[str, ...]:
    return tuple(task.id for task in group)


def _without(state: TaskState, refused: Set[tuple[str, str]]) -> TaskState:
    kept = [r for r in state.records if (state.task.id, r.candidate.id) not in refused]
    if len(kept) == len(state.records):
        return state
    return TaskState(state.task, kept, state.baseline, earlier=state.earlier)
