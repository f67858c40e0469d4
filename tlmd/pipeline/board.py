"""What all parts of the pipeline look at: workers and what they do, tasks, batches in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tlmd.pipeline.batches import Batch
from tlmd.pipeline.jobs import TaskState
from tlmd.pipeline.orders import Crew, Kind, Order, Store, Worker
from tlmd.types import Record, Task

Tell = Callable[..., None]  # tell(kind, **facts): one line of the trace


@dataclass(frozen=True)
class Rules:
    """``batch`` candidates per step and slot in turns of ``turn``; ``chunk`` go to a slot at once.

    ``depth`` orders are with each slot, so that it never waits for the daemon. `window` and `gain`
    are the convergence of the corpus job: less than `gain` (a share) over `window` candidates.
    Training is not cut short before `lesson_s` seconds. For each candidate between ``least`` and
    ``most`` are written, as many as the generators manage without the slots running dry.
    """

    batch: int = 32
    turn: int = 8
    chunk: int = 4
    depth: int = 2
    strict: bool = False
    train: bool = True
    lesson_s: float = 20.0
    over: float = 8.0
    least: float = 3.0
    most: float = 16.0
    window: int = 20_000
    gain: float = 0.01


@dataclass
class Board:
    """``busy`` are the orders each worker has; ``kept`` the records that the store has not yet."""

    crew: Crew
    store: Store
    rules: Rules
    tell: Tell
    workers: dict[str, Worker] = field(default_factory=dict)
    busy: dict[str, list[Order]] = field(default_factory=dict)
    batches: deque[Batch] = field(default_factory=deque)
    kept: list[Record] = field(default_factory=list)
    states: dict[tuple[str, str], TaskState] = field(default_factory=dict)
    joined: dict[str, float] = field(default_factory=dict)
    _worked: dict[str, float] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)

    def send(self, worker: str, order: Order) -> None:
        """Give a worker an order."""
        if not self.busy.setdefault(worker, []):
            self._since[worker] = self.crew.now()
        self.busy[worker].append(order)
        self.crew.send(worker, order)

    def landed(self, worker: str, order: Order) -> bool:
        """Take an order off the board; False where its worker was given up before."""
        orders = self.busy.get(worker, [])
        self.busy[worker] = [o for o in orders if o is not order]
        if orders and not self.busy[worker]:
            self._rest(worker)
        return len(self.busy[worker]) < len(orders)

    def join(self, worker: Worker) -> None:
        """A worker is ready."""
        self.workers[worker.name] = worker
        self.busy.setdefault(worker.name, [])
        self.joined.setdefault(worker.name, self.crew.now())

    def leave(self, worker: str) -> None:
        """A worker is gone; its orders were reported lost."""
        self._rest(worker)
        self.workers.pop(worker, None)
        self.busy.pop(worker, None)

    def worked_s(self, worker: str) -> float:
        """For how long a worker has had something to do, in seconds."""
        running = self.crew.now() - self._since[worker] if worker in self._since else 0.0
        return self._worked.get(worker, 0.0) + running

    def _rest(self, worker: str) -> None:
        if worker in self._since:
            self._worked[worker] = self.worked_s(worker)
            del self._since[worker]

    def of(self, kind: Kind) -> list[Worker]:
        """The living workers of one kind."""
        return [w for w in self.workers.values() if w.kind is kind]

    def idle(self, kind: Kind) -> list[Worker]:
        """Those of them without an order."""
        return [w for w in self.of(kind) if not self.busy.get(w.name)]

    def doing(self, *kinds: type[Order]) -> bool:
        """Whether anybody has an order of one of these classes."""
        return any(isinstance(o, kinds) for orders in self.busy.values() for o in orders)

    def update(self, worker: str, version: int) -> None:
        """A generator uses another version now."""
        if worker in self.workers:
            self.workers[worker] = replace(self.workers[worker], version=version)

    def state(self, task: Task) -> TaskState:
        """What is known of a task, from the store the first time."""
        key = task.key
        if key not in self.states:
            records = self.store.records(*key)
            self.states[key] = TaskState(task, records, self.store.baseline(*key))
        return self.states[key]

    def batch(self, number: int) -> Batch:
        """A batch in flight."""
        return next(b for b in self.batches if b.number == number)

    def keep(self, state: TaskState, records: list[Record]) -> None:
        """Take in new records; the next `commit` writes them."""
        state.add(records)
        self.kept += records

    def refresh(self, state: TaskState, records: list[Record]) -> None:
        """Take in newer times of candidates that have records; the next `commit` writes them."""
        state.refresh(records)
        self.kept += records

    def commit(self) -> list[Record]:
        """Write what came in; returns it when it is on disk."""
        fresh, self.kept = self.kept, []
        if fresh:
            self.store.add_records(fresh)
        return fresh
