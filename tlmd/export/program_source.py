"""A program for each task without measuring: the best one recorded, else the cost model's choice.

`tlmd compile` and the first library of `torch.compile` have these programs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

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
from tlmd.space.space import TaskSpace
from tlmd.tlm import checkpoint

_log = logging.getLogger(__name__)


class ProgramSource:
    """Finds the programs with the records in `state_dir` and the cost model in `checkpoint_dir`.

    Its choices are kept, so that a model compiled again costs no search. Not thread-safe.
    """

    def __init__(self, state_dir: Path, checkpoint_dir: Path | str = "") -> None:
        self._records = state_dir / "records.sqlite"
        self._checkpoint = Path(checkpoint_dir or SHIPPED)
        self._first_choice: FirstChoice | None = None
        self._choices: dict[str, Candidate | None] = {}

    def find(
        self, name: str, tasks: Sequence[Task], target: TargetInfo, spaces: SpaceCache
    ) -> Result:
        """The result of a model with these tasks, their alternatives included.

        Of a computation without any record it has the first alternative, which has the least work.
        """
        states = self._states(tasks)
        result = Result(name, target, 0, states)
        self._drop_refused(result, spaces)
        earlier = {state.task.id: state.earlier for state in states}
        unmeasured = [row.direct for row in result.rows() if not row.is_measured]
        firsts = [next(t for t in tasks if t.computation == d.computation) for d in unmeasured]
        self._choose(firsts, spaces, earlier)
        for direct, first in zip(unmeasured, firsts, strict=True):
            choice = self._choices[first.id]
            if choice is not None:
                result.predicted[direct.id] = first, choice
        return result

    def _choose(
        self, tasks: Sequence[Task], spaces: SpaceCache, earlier: Mapping[str, Sequence[Candidate]]
    ) -> None:
        """Make the choices for these tasks, in several processes where that is allowed."""
        missing = [task for task in tasks if task.id not in self._choices]
        missing.sort(key=lambda task: -task.flops)  # the largest have the largest spaces

        if missing:
            self._chooser()  # once, and not in each process

        def chosen(index: int) -> bytes:
            task = missing[index]
            return wire.pack(self.propose(task, spaces, earlier[task.id]))

        for task, packed in zip(missing, forks.each(chosen, len(missing)), strict=True):
            self._choices[task.id] = wire.unpack(Candidate | None, packed)  # type: ignore[arg-type]

    def propose(
        self, task: Task, spaces: SpaceCache, earlier: Sequence[Candidate] = ()
    ) -> Candidate | None:
        """The cost model's choice for a task; None if TVM refuses all that it likes.

        `earlier` are the best candidates of older revisions of the task.
        """
        if task.id not in self._choices:
            space = spaces.get(task)
            near = carried_over(space, earlier)
            self._choices[task.id] = self._chooser().of(space, near)
        return self._choices[task.id]

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
                    if not _is_applied(spaces.get(task), record.candidate):
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


def _is_applied(space: TaskSpace, candidate: Candidate) -> bool:
    """Whether TVM takes a candidate of a record, which another version may have written."""
    try:
        return space.accepts(candidate)
    except (IndexError, ValueError):  # it does not fit the sketches there are now
        return False


def _without(state: TaskState, refused: Set[tuple[str, str]]) -> TaskState:
    kept = [r for r in state.records if (state.task.id, r.candidate.id) not in refused]
    if len(kept) == len(state.records):
        return state
    return TaskState(state.task, kept, state.baseline, earlier=state.earlier)
