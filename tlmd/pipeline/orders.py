"""The orders of the pipeline to its workers, their answers, and the protocols of both sides.

An order goes to one worker. An event says that the worker answered it, failed, or died. Orders and
events are small and frozen, so that actors, simulated workers and the event log can all hold them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tlmd.data.types import (
    Baseline,
    Candidate,
    MeasureInput,
    Outcome,
    Proposal,
    Published,
    Record,
    TargetInfo,
    Task,
)


class WorkerKind(enum.StrEnum):
    """The work of a worker."""

    GENERATOR = "generator"
    MEASURER = "measurer"
    TRAINER = "trainer"
    REGISTRY = "registry"


@dataclass(frozen=True)
class Worker:
    """A living worker.

    Example: ``Worker("measurer-0", WorkerKind.MEASURER, node="ab12", pid=71, target=target)``.
    """

    name: str
    kind: WorkerKind
    node: str = ""
    pid: int = 0
    local: bool = True
    """It runs on the daemon's machine."""
    target: TargetInfo | None = None
    """The hardware of a slot."""
    cores: tuple[int, ...] = ()
    version: int = 0
    """The checkpoint that a generator uses, or that the registry has in force."""
    next_version: int = 1
    """The version that the registry gives to the next checkpoint."""
    resource: str = ""
    """The Ray resource by which a slot's node offers it."""

    def accepts(self, target: TargetInfo) -> bool:
        """Whether this slot may time programs of `target`: times of unlike machines never mix."""
        if self.target is None:
            return self.kind is WorkerKind.MEASURER
        if self.local:  # for any CPU that it can run
            return self.target.device == target.device
        return self.target.fingerprint == target.fingerprint


@dataclass(frozen=True)
class WriteOrder:
    """To a generator: write new candidates of a task; see `Generator.write`."""

    batch: int
    task: Task
    count: int
    """Candidates that are returned, at most."""
    oversample: float = 8.0
    """Candidates that are written for each one that is returned."""
    records: tuple[Record, ...] = ()
    """The fastest records so far."""
    avoid: tuple[tuple[str, str], ...] = ()
    """Candidate ids and module hashes that must not be written again; only those that are new since
    the generator's last order for this task."""
    known: int = 0
    """How many the generator has from earlier orders; 0: it must forget them."""
    earlier: tuple[Candidate, ...] = ()
    """The fastest candidates of older revisions of the task, which are tried first."""


@dataclass(frozen=True)
class Written:
    """Answer to a `WriteOrder`."""

    proposals: tuple[Proposal, ...]
    refused: tuple[Record, ...]
    """Records of the candidates that TVM refused."""
    version: int
    """The checkpoint that wrote them."""


@dataclass(frozen=True)
class MeasureOrder:
    """To a slot: measure these candidates of a task. The answer has one outcome each, in order."""

    batch: int
    task: Task
    inputs: tuple[MeasureInput, ...]


@dataclass(frozen=True)
class BaselineOrder:
    """To a slot: time the task's unscheduled program. The answer is a `Baseline`."""

    task: Task


@dataclass(frozen=True)
class CompareOrder:
    """To a slot: time verified candidates of one computation in interleaved rounds.

    The answer has one outcome each, in order; it is empty where the comparison failed.
    """

    tasks: tuple[Task, ...]
    """The tasks of the finalists: alternatives of one computation."""
    finalists: tuple[Candidate, ...]

    @property
    def task(self) -> Task:
        """One of the tasks; all have one target."""
        return self.tasks[0]


@dataclass(frozen=True)
class TrainOrder:
    """To the trainer: learn from the records up to a batch and make a checkpoint."""

    version: int
    """Version of the new checkpoint."""
    upto: int
    """The newest batch to learn from."""
    tasks: tuple[Task, ...]
    """Tasks that are new since the last order."""
    records: tuple[Record, ...]
    """Records that are new since the last order."""
    fresh: bool = False
    """The trainer has to forget what it knows: this order holds all that it has to know."""
    current: int = 0
    """The version in force."""
    packed: tuple[bytes, ...] = ()
    """Further records, as the store has them (`wire.pack`)."""


@dataclass(frozen=True)
class Trained:
    """Answer to a `TrainOrder`. The registry fetches the weights from the trainer."""

    version: int
    demonstrations: int
    steps: int
    loss: float
    """Nats per decided token."""
    seconds: float


@dataclass(frozen=True)
class PublishOrder:
    """To the registry: evaluate the trained checkpoint, and use it if it is not worse."""

    version: int


@dataclass(frozen=True)
class SwapOrder:
    """To a generator: use this version from now on. The answer is the version it uses."""

    version: int


SlotOrder = MeasureOrder | BaselineOrder | CompareOrder
Order = WriteOrder | SlotOrder | TrainOrder | PublishOrder | SwapOrder
Answer = Written | tuple[Outcome, ...] | Baseline | Trained | Published | int


@dataclass(frozen=True)
class OrderDone:
    """The worker has carried out the order."""

    worker: str
    order: Order
    answer: Answer


@dataclass(frozen=True)
class OrderLost:
    """The worker died before it answered. Another worker replaces it."""

    worker: str
    order: Order


@dataclass(frozen=True)
class OrderFailed:
    """The worker lives, but the order raised an error."""

    worker: str
    order: Order
    error: str


@dataclass(frozen=True)
class WorkerJoined:
    """A worker is ready: a new one, or one that replaces another."""

    worker: Worker


@dataclass(frozen=True)
class WorkerLeft:
    """A worker is gone; an `OrderLost` came before for each of its orders."""

    worker: str


@dataclass(frozen=True)
class StartFailed:
    """A worker that may be missing cannot be started. It is tried again."""

    worker: str
    kind: WorkerKind
    error: str
    again_s: float
    """Seconds until then."""


Event = OrderDone | OrderLost | OrderFailed | WorkerJoined | WorkerLeft | StartFailed


class WorkerPool(Protocol):
    """All workers: Ray actors, or simulated ones under a simulated clock. For one thread."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def send(self, worker: str, order: Order) -> None:
        """Send an order to a worker; returns at once."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """Wait for events, at most `seconds`."""
        ...

    def replace(self, worker: str) -> None:
        """End a worker that does not answer, and start another; its orders come back as lost."""
        ...

    def interrupt_training(self, at_once: bool) -> None:
        """Ask the trainer to answer with what it has learnt so far.

        At once; otherwise as soon as it has trained for ``train.seconds``.
        """
        ...


class Store(Protocol):
    """Keeps what was measured. When a method that writes returns, the data is committed."""

    def add_records(self, records: Iterable[Record]) -> None: ...
    def last_row(self) -> int:
        """The number of the newest record; 0 while there is none."""
        ...

    def last_time(self) -> float:
        """When the newest record was made, in seconds since the epoch; 0 while there is none."""
        ...

    def packed_records(self, after: int, count: int) -> list[tuple[int, str, str, int, bytes]]:
        """The next `count` records after a row: row, task id, fingerprint, batch, packed record."""
        ...

    def tasks(self) -> list[Task]: ...
    def records(self, task_id: str, fingerprint: str) -> list[Record]: ...
    def earlier_records(self, task_id: str, fingerprint: str, count: int) -> list[Record]:
        """The fastest verified records of older revisions of a task, at most `count`."""
        ...

    def put_baseline(self, baseline: Baseline) -> None: ...
    def baseline(self, task_id: str, fingerprint: str) -> Baseline | None: ...
    def put_batch(self, number: int, payload: bytes) -> None: ...
    def last_batch(self) -> tuple[int, bytes] | None: ...
