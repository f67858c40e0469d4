"""From records to training data, for the language model, the cost model and the gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tlmd.data.types import Outcome, Record, Status, Task
from tlmd.learn.candidate_encoder import Encoder
from tlmd.learn.demonstrations import SelectionPolicy, shares
from tlmd.learn.feature_tables import FeatureTables
from tlmd.space.cache import SpaceCache
from tlmd.tlm.cost_model import Measured
from tlmd.tlm.demonstration import Demonstration, TaskDemonstrations


@dataclass(frozen=True)
class TaskDataset:
    """The training data in the records of one task on one machine."""

    task_id: str
    newest: float
    """When the last record was measured, in seconds since the epoch."""
    training: TaskDemonstrations
    held_out: TaskDemonstrations
    """For the gate; its sentences are never trained on."""
    table: Measured
    """For the cost model, without the held-out records."""


@dataclass
class ReadBudget:
    """How much a training round may read.

    Applying a candidate to find its features takes as long as a training step. So thousands of
    records without features, such as those of a data set, are read over several rounds.
    """

    stop: Callable[[], bool]
    """Says when to stop reading."""
    without_features: int = 500
    """Records without features that may still be read."""


class RecordReader:
    """Reads the records of one machine's tasks. Each candidate is encoded and applied once."""

    def __init__(self) -> None:
        self._spaces = SpaceCache()
        self._features = FeatureTables(self._spaces)
        self._prompts: dict[str, tuple[int, ...]] = {}
        self._encoded: dict[str, Demonstration | None] = {}
        self._refused: set[str] = set()

    def read(self, task: Task, records: Sequence[Record], budget: ReadBudget) -> bool:
        """Read the records that are new; False where the budget ended it."""
        encoder: Encoder | None = None
        for record in records:
            if record.candidate.id in self._encoded:
                continue
            if budget.stop():
                return False
            if not record.features:
                if budget.without_features <= 0:
                    continue
                budget.without_features -= 1
            encoder = encoder or Encoder(self._spaces.get(task))
            self._prompts[task.id] = encoder.prompt
            self._read(task, record, encoder)
        return not budget.stop()

    def knows(self, records: Sequence[Record]) -> bool:
        """Whether all of these records were read."""
        return all(record.candidate.id in self._encoded for record in records)

    def forget(self, candidate_id: str) -> None:
        """Drop what is kept of a candidate."""
        self._encoded.pop(candidate_id, None)
        self._refused.discard(candidate_id)
        self._features.forget(candidate_id)

    def dataset(
        self, task: Task, records: Sequence[Record], select: SelectionPolicy, held_out: float
    ) -> TaskDataset:
        """The training data of the records that were read.

        `select` chooses what the language model learns from. The share `held_out` of all candidates
        is never trained on. If all that `select` chose is held out, it chooses again among the
        other records.
        """
        encoded = [self._as_today(r) for r in records if self._encoded.get(r.candidate.id)]
        trainable = [r for r in encoded if not is_held_out(r, held_out)]
        chosen = select(encoded)
        shown = [r for r in chosen if not is_held_out(r, held_out)] or select(trainable)
        programs = [r for r in trainable if r.outcome.status is not Status.INVALID]
        speeds = dict(zip((r.candidate.id for r in encoded), shares(encoded), strict=True))
        return TaskDataset(
            task.id,
            max((r.created for r in records), default=0.0),
            self._shown(task, shown, speeds),
            self._shown(task, [r for r in encoded if is_held_out(r, held_out)], speeds),
            self._features.table(task, programs),
        )

    def _read(self, task: Task, record: Record, encoder: Encoder) -> None:
        encoded = encoder.encode(record.candidate)
        # The features that this makes are kept. A candidate without a program has none.
        if encoded and not record.features and self._features.row(task, record) is None:
            self._refused.add(record.candidate.id)
        self._encoded[record.candidate.id] = encoded

    def _as_today(self, record: Record) -> Record:
        """A candidate that TVM refuses today is a failure, even if it was measured before."""
        if record.candidate.id not in self._refused:
            return record
        return replace(record, outcome=Outcome(Status.INVALID, detail="no longer in the space"))

    def _shown(
        self, task: Task, records: Sequence[Record], speeds: dict[str, float]
    ) -> TaskDemonstrations:
        sentences = []
        for record in records:
            sentence = self._encoded[record.candidate.id]
            assert sentence is not None
            share, weight = speeds[record.candidate.id], record.outcome.weight
            sentences.append(replace(sentence, share=share, weight=weight))
        return TaskDemonstrations(task.id, self._prompts.get(task.id, ()), tuple(sentences))


def is_held_out(record: Record, share: float) -> bool:
    """Whether a record's candidate belongs to the `share` that is never trained on.

    Its content hash decides: the answer is the same for every record of it, in every process.
    """
    return int(record.candidate.id[:8], 16) < share * 2**32
