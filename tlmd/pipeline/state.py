"""State that all parts of the pipeline share: workers, orders, tasks, batches in flight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tlmd.data.config import GenerateConfig, PipelineConfig, RegistryConfig, TrainConfig
from tlmd.data.types import Candidate, Record, TargetInfo, Task
from tlmd.pipeline.batches import Batch
from tlmd.pipeline.orders import MeasureOrder, Order, Store, Worker, WorkerKind, WorkerPool
from tlmd.pipeline.store_writer import StoreWriter
from tlmd.pipeline.task_state import EARLIER, TaskState
from tlmd.processes.wall_clock import WallClock

_ABSENT_S = 60.0  # without a slot, before its tasks wait and the others go on

Emit = Callable[..., None]  # emit(kind, **facts): one event for the event log
Known = Callable[[Task], Sequence[tuple[float, Candidate]]]
"""The known programs of a task, the best first: seconds where they were measured, and candidate."""


@dataclass(frozen=True)
class PipelineOptions:
    """The sections of the configuration (`tlmd.data.config`) that the pipeline follows."""

    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)


@dataclass
class PipelineState:
    """Read and changed by all parts of the pipeline, in one thread.

    Everything is written by `writer`, and has its time of day from `clock`.
    """

    pool: WorkerPool
    store: Store
    options: PipelineOptions
    emit: Emit
    known: Known = lambda _: ()
    workers: dict[str, Worker] = field(default_factory=dict)
    """The living workers by name."""
    orders: dict[str, list[Order]] = field(default_factory=dict)
    """The orders that each worker has."""
    batches: deque[Batch] = field(default_factory=deque)
    tasks: dict[tuple[str, str], TaskState] = field(default_factory=dict)
    joined_at: dict[str, float] = field(default_factory=dict)
    _by_kind: dict[WorkerKind, dict[str, None]] = field(default_factory=dict)
    _offered_at: dict[str, float] = field(default_factory=dict)  # by fingerprint of the hardware
    _worked: dict[str, float] = field(default_factory=dict)
    clock: WallClock = field(init=False)
    writer: StoreWriter = field(init=False)
    _busy_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = WallClock(self.store.last_time())
        self.writer = StoreWriter(self.store, self.pool.now, self.emit)

    # workers

    def send(self, worker: str, order: Order) -> None:
        """Give a worker an order."""
        if not self.orders.setdefault(worker, []):
            self._busy_since[worker] = self.pool.now()
        self.orders[worker].append(order)
        self.pool.send(worker, order)

    def finish_order(self, worker: str, order: Order) -> bool:
        """Remove an order that was answered; False where its worker has left before."""
        orders = self.orders.get(worker, [])
        self.orders[worker] = [o for o in orders if o is not order]
        if orders and not self.orders[worker]:
            self._stop_clock(worker)
        return len(self.orders[worker]) < len(orders)

    def join(self, worker: Worker) -> None:
        """A worker is ready."""
        self.workers[worker.name] = worker
        self._by_kind.setdefault(worker.kind, {})[worker.name] = None
        self.orders.setdefault(worker.name, [])
        self.joined_at.setdefault(worker.name, self.pool.now())

    def leave(self, worker: str) -> None:
        """A worker is gone; the pool has reported its orders as lost."""
        self._stop_clock(worker)
        gone = self.workers.pop(worker, None)
        if gone is not None:
            del self._by_kind[gone.kind][worker]
        self.orders.pop(worker, None)

    def busy_s(self, worker: str) -> float:
        """How many seconds a worker has had at least one order."""
        since = self._busy_since.get(worker)
        running = self.pool.now() - since if since is not None else 0.0
        return self._worked.get(worker, 0.0) + running

    def _stop_clock(self, worker: str) -> None:
        if worker in self._busy_since:
            self._worked[worker] = self.busy_s(worker)
            del self._busy_since[worker]

    def workers_of(self, kind: WorkerKind) -> list[Worker]:
        """The living workers of one kind."""
        return [self.workers[name] for name in self._by_kind.get(kind, ())]

    def idle(self, kind: WorkerKind) -> list[Worker]:
        """The living workers of one kind that have no order."""
        return [w for w in self.workers_of(kind) if not self.orders.get(w.name)]

    def has_order(self, *kinds: type[Order]) -> bool:
        """Whether any worker has an order of one of these classes."""
        return any(isinstance(o, kinds) for orders in self.orders.values() for o in orders)

    def set_version(self, worker: str, version: int) -> None:
        """A generator uses another checkpoint."""
        if worker in self.workers:
            self.workers[worker] = replace(self.workers[worker], version=version)

    def is_offered(self, target: TargetInfo) -> bool:
        """Whether a slot measures for `target`, or did a moment ago: dead slots are replaced."""
        now = self.pool.now()
        if any(worker.accepts(target) for worker in self.workers_of(WorkerKind.MEASURER)):
            self._offered_at[target.fingerprint] = now
        return now <= self._offered_at.setdefault(target.fingerprint, now) + _ABSENT_S

    # tasks and batches

    def task(self, task: Task) -> TaskState:
        """The state of a task; read from the store the first time."""
        key = task.key
        if key not in self.tasks:
            records, known = self.store.records(*key), self.known(task)
            earlier = [candidate for _, candidate in known[:EARLIER]]
            if not records and not earlier:
                older = self.store.earlier_records(*key, EARLIER)
                earlier = [record.candidate for record in older]
            self.tasks[key] = TaskState(
                task,
                records,
                self.store.baseline(*key),
                earlier=tuple(earlier),
                known_s=known[0][0] if known else math.inf,
            )
        return self.tasks[key]

    def batch(self, number: int) -> Batch:
        """A batch in flight."""
        return next(b for b in self.batches if b.number == number)

    def drop_order(self, batch: Batch, order: MeasureOrder) -> None:
        """Forget candidates that no slot has yet; they may be written again."""
        batch.queue.remove(order)
        self.task(order.task).drop(candidate.candidate_id for candidate in order.inputs)

    def add_records(self, task: TaskState, records: list[Record]) -> None:
        """Add new records to a task; the next `writer.flush` writes them."""
        task.add(records)
        self.writer.records += records

    def replace_records(self, task: TaskState, records: list[Record]) -> None:
        """Replace the records of the same candidates; the next `writer.flush` writes them."""
        task.replace(records)
        self.writer.records += records
