"""What the pipeline asks of its workers and what they answer; the protocols it sees them through.

An order goes to one worker; its answer, or its loss, comes back as an event. Everything here is
small and frozen, so that an actor, a simulated worker and the trace can all hold it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tlmd.types import Baseline, Outcome, Proposal, Record, TargetInfo, Task


class Kind(enum.StrEnum):
    """What a worker does."""

    GENERATOR = "generator"
    MEASURER = "measurer"
    TRAINER = "trainer"
    REGISTRY = "registry"


@dataclass(frozen=True)
class Worker:
    """A living worker; ``target`` is a slot's own hardware, ``local`` the daemon's machine.

    ``resource`` is what a slot's node offers it as. ``version`` is the checkpoint a generator uses
    or the registry has in force, ``next_version`` the one it would give to the next checkpoint.

    Example: ``Worker("measurer-0", Kind.MEASURER, node="ab12", pid=71, target=target)``.
    """

    name: str
    kind: Kind
    node: str = ""
    pid: int = 0
    local: bool = True
    target: TargetInfo | None = None
    cores: tuple[int, ...] = ()
    version: int = 0
    next_version: int = 1
    resource: str = ""

    def accepts(self, target: TargetInfo) -> bool:
        """Whether this slot may time programs of `target`: times of unlike machines never mix."""
        if self.local or self.target is None:
            return self.kind is Kind.MEASURER
        return self.target.fingerprint == target.fingerprint


@dataclass(frozen=True)
class WriteOrder:
    """To a generator: at most `count` new candidates of `task`; see `Generator.write`.

    `records` are the fastest so far, `avoid` the ids and hashes of all that was tried. For each
    candidate that is kept, `over` are written.
    """

    batch: int
    task: Task
    count: int
    over: float = 8.0
    records: tuple[Record, ...] = ()
    avoid: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Written:
    """Its answer: proposals, records of what TVM refused, and the version that wrote them."""

    proposals: tuple[Proposal, ...]
    refused: tuple[Record, ...]
    version: int


@dataclass(frozen=True)
class MeasureOrder:
    """To a slot: time these candidates of one task; answered by one outcome each, in order."""

    batch: int
    task: Task
    proposals: tuple[Proposal, ...]
    incumbent_s: float | None = None


@dataclass(frozen=True)
class BaselineOrder:
    """To a slot: time the task's unscheduled program; answered by a `Baseline`."""

    task: Task


@dataclass(frozen=True)
class RaceOrder:
    """To a slot: time verified candidates of a task against each other, in interleaved rounds.

    Answered by one outcome each, in order; by none where it failed.
    """

    task: Task
    records: tuple[Record, ...]


@dataclass(frozen=True)
class TrainOrder:
    """To the trainer: learn from all records up to `upto` and make `version`.

    `tasks` and `records` are what came since its last order; `fresh` says that it has to forget
    what it had, since it gets everything anew. `current` is the version in force.
    """

    version: int
    upto: int
    tasks: tuple[Task, ...]
    records: tuple[Record, ...]
    fresh: bool = False
    current: int = 0


@dataclass(frozen=True)
class Trained:
    """Its answer: what was trained on, and how it went. The weights wait for the registry."""

    version: int
    demonstrations: int
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class PublishOrder:
    """To the registry: examine what was trained and put it in force if it is no worse."""

    version: int


@dataclass(frozen=True)
class Published:
    """Its answer; `reason` says why a checkpoint was refused."""

    version: int
    accepted: bool
    reason: str = ""


@dataclass(frozen=True)
class SwapOrder:
    """To a generator: use this version from now on; answered by the version now in use."""

    version: int


SlotOrder = MeasureOrder | BaselineOrder | RaceOrder
Order = WriteOrder | SlotOrder | TrainOrder | PublishOrder | SwapOrder
Answer = Written | tuple[Outcome, ...] | Baseline | Trained | Published | int


@dataclass(frozen=True)
class Done:
    """The order was carried out."""

    worker: str
    order: Order
    answer: Answer


@dataclass(frozen=True)
class Lost:
    """The worker died before it answered; another one takes its place."""

    worker: str
    order: Order


@dataclass(frozen=True)
class Failed:
    """The worker lives, but the order raised an error."""

    worker: str
    order: Order
    error: str


@dataclass(frozen=True)
class Joined:
    """A worker is ready, a new one or one that replaces another."""

    worker: Worker


@dataclass(frozen=True)
class Left:
    """A worker is gone; what it held was reported lost."""

    worker: str


Event = Done | Lost | Failed | Joined | Left


class Crew(Protocol):
    """All workers, whatever runs them: Ray actors, or simulated ones under a simulated clock."""

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        ...

    def send(self, worker: str, order: Order) -> None:
        """Hand over an order; returns at once."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """What happened; returns when something did, at the latest after `seconds`."""
        ...

    def interrupt_training(self) -> None:
        """Let the trainer stop soon and answer with what it has learnt until then."""
        ...


class Store(Protocol):
    """Keeps what was measured; returning means committed."""

    def add_records(self, records: Iterable[Record]) -> None: ...
    def all_records(self) -> list[Record]: ...
    def tasks(self) -> list[Task]: ...
    def records(self, task_id: str, fingerprint: str) -> list[Record]: ...
    def put_baseline(self, baseline: Baseline) -> None: ...
    def baseline(self, task_id: str, fingerprint: str) -> Baseline | None: ...
    def put_batch(self, number: int, payload: bytes) -> None: ...
    def last_batch(self) -> tuple[int, bytes] | None: ...
