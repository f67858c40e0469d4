"""Reading records: what a task's records teach the language model, the ranker and the gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tlmd.generate.generator import Generator
from tlmd.learn.demonstrations import Chosen, Policy
from tlmd.learn.encoding import Encoded, Encoder
from tlmd.learn.gate import Question
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.ranker import Measured
from tlmd.model.training import Demonstration
from tlmd.types import Outcome, Record, Status, Task


@dataclass(frozen=True)
class Lesson:
    """What one task on one machine teaches.

    ``table`` is for the ranker and, like ``training``, without what is held out; ``newest`` is when
    the last of its records was measured, in seconds since the epoch.
    """

    task_id: str
    newest: float
    training: tuple[Demonstration, ...]
    held_out: tuple[Question, ...]
    table: Measured


@dataclass
class Patience:
    """For how much reading a lesson has time: until `stop` says so, `left` without features.

    Applying a candidate to find its features takes as long as a step of training, so thousands that
    came without them, such as a data set's, are read over several lessons.
    """

    stop: Callable[[], bool]
    left: int = 500


class Reader:
    """Reads the records of one machine's tasks; each candidate is encoded and applied once."""

    def __init__(self, base: Checkpoint) -> None:
        self._generator = Generator(base)
        self._encoded: dict[str, Encoded | None] = {}
        self._refused: set[str] = set()

    def read(self, task: Task, records: Sequence[Record], patience: Patience) -> bool:
        """Read what has not been read before; False as soon as it has to stop, even if nothing."""
        encoder: Encoder | None = None
        for record in records:
            if record.candidate.id in self._encoded:
                continue
            if patience.stop():
                return False
            if not record.features:
                if patience.left <= 0:
                    continue
                patience.left -= 1
            encoder = encoder or Encoder(self._generator.space(task))
            self._read(task, record, encoder)
        return not patience.stop()

    def lesson(
        self, task: Task, records: Sequence[Record], select: Policy, held_out: float
    ) -> Lesson:
        """The lesson of records that have been read.

        What `select` chooses is trained on, but for the share of it that is held out. Where that
        leaves nothing, it chooses again among what is not held out.
        """
        said = [self._today(r) for r in records if self._encoded.get(r.candidate.id) is not None]
        open_to = [r for r in said if not is_held_out(r, held_out)]
        chosen = select(said)
        shown = [c for c in chosen if not is_held_out(c.record, held_out)] or select(open_to)
        asked = [c for c in chosen if is_held_out(c.record, held_out)]
        programs = [r for r in open_to if r.outcome.status is not Status.INVALID]
        return Lesson(
            task.id,
            max((r.created for r in records), default=0.0),
            tuple(self._words(c).demonstration(c.quality, c.record.outcome.weight) for c in shown),
            tuple(self._words(c).question(c.quality) for c in asked),
            self._generator.table(task, programs),
        )

    def _read(self, task: Task, record: Record, encoder: Encoder) -> None:
        encoded = encoder.encode(record.candidate)
        # The generator keeps the features that it makes here; there are none without a program.
        unknown = encoded is not None and not record.features
        if unknown and not len(self._generator.table(task, [record]).seconds):
            self._refused.add(record.candidate.id)
        self._encoded[record.candidate.id] = encoded

    def _today(self, record: Record) -> Record:
        """A candidate that TVM refuses today is a failure, whatever it was when measured."""
        if record.candidate.id not in self._refused:
            return record
        return replace(record, outcome=Outcome(Status.INVALID, detail="no longer in the space"))

    def _words(self, chosen: Chosen) -> Encoded:
        encoded = self._encoded[chosen.record.candidate.id]
        assert encoded is not None
        return encoded


def is_held_out(record: Record, share: float) -> bool:
    """Whether a record's candidate belongs to the `share` that is never trained on.

    Decided by its content hash: the same for every record of it, in every process.
    """
    return int(record.candidate.id[:8], 16) < share * 2**32
