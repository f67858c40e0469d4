"""Workers without processes under a simulated clock, and a store in memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tlmd.data import wire
from tlmd.data.config import PipelineConfig, TrainConfig
from tlmd.data.types import (
    Baseline,
    Candidate,
    Outcome,
    Proposal,
    Published,
    Record,
    Status,
    TargetInfo,
    Task,
)
from tlmd.generate.history import WrittenHistory
from tlmd.pipeline.orders import (
    BaselineOrder,
    CompareOrder,
    Event,
    MeasureOrder,
    Order,
    OrderDone,
    OrderFailed,
    OrderLost,
    PublishOrder,
    SwapOrder,
    Trained,
    TrainOrder,
    Worker,
    WorkerJoined,
    WorkerKind,
    WorkerLeft,
    WriteOrder,
    Written,
)
from tlmd.pipeline.state import PipelineOptions

TARGET = TargetInfo("{}", "cpu", "x86_64", "avx2", 256, 1, 1, 1, 1, "here")


def options(
    *, train: bool = True, min_train_s: float | None = None, **pipeline: Any
) -> PipelineOptions:
    """Options of the pipeline; `pipeline` are fields of its own section."""
    seconds = {} if min_train_s is None else {"seconds": min_train_s}
    return PipelineOptions(PipelineConfig(**pipeline), TrainConfig(enabled=train, **seconds))


def task(name: str, weight: int = 1, target: TargetInfo = TARGET) -> Task:
    return Task(name, name, weight, 1e6, "{}", target)


@dataclass
class Pace:
    """Seconds that things take: writing and measuring per candidate."""

    write: float = 0.02
    measure: float = 0.25
    train: float = 3.0
    publish: float = 0.5
    swap: float = 0.1
    restart: float = 2.0
    baseline: float = 0.5
    compare: float = 1.0


@dataclass
class SimulatedWorkerPool:
    """Writes 0, 1, 2, ... for each task, `sizes` programs in all, every fifth one refused.

    ``log`` keeps ``(begin, end, worker, order)`` of everything that was carried out.
    """

    sizes: dict[str, int]
    slots: int = 1
    generators: int = 1
    pace: Pace = field(default_factory=Pace)
    refuse: tuple[int, ...] = ()  # versions that the gate refuses
    broken: bool = False  # slots raise errors
    width: float = 0.0  # of the times' intervals, as a share to either side
    luck: float = 1.0
    time: float = 0.0
    version: int = 0  # in force, as the registry knows it

    def __post_init__(self) -> None:
        self.log: list[tuple[float, float, str, Order]] = []
        self.measured: list[str] = []
        self._candidates: dict[str, Candidate] = {}
        self._ticks = itertools.count()
        self._events: list[tuple[float, int, Any]] = []
        self._free: dict[str, float] = {}
        self._in_flight: dict[str, list[tuple[float, Order]]] = {}
        self._alive: dict[str, int] = {}
        self._histories: dict[str, WrittenHistory] = {}  # of the generators
        self._trained = 0
        self.trained_on: dict[int, tuple[int, int]] = {}  # version -> (upto, records)
        self._taught: set[str] = set()
        names = [f"measurer-{i}" for i in range(self.slots)]
        names += [f"generator-{i}" for i in range(self.generators)]
        for name in [*names, "trainer-0", "registry-0"]:
            self._start(name, 0.0)

    def _start(self, name: str, delay: float) -> None:
        self._alive[name] = self._alive.get(name, 0) + 1
        self._free[name] = self.time + delay
        self._in_flight[name] = []
        self._histories[name] = WrittenHistory()
        self._push(self.time + delay, ("join", name, self._alive[name]))

    def _push(self, when: float, what: Any) -> None:
        heapq.heappush(self._events, (when, next(self._ticks), what))

    def now(self) -> float:
        return self.time

    def send(self, worker: str, order: Order) -> None:
        begin = max(self.time, self._free[worker])
        end = begin + self._seconds(order)
        self._free[worker] = end
        self._in_flight[worker].append((begin, order))
        self._push(end, ("done", worker, self._alive[worker], order, begin))

    def _seconds(self, order: Order) -> float:
        pace = self.pace
        if isinstance(order, WriteOrder):
            return pace.write * order.count
        if isinstance(order, MeasureOrder):
            return pace.measure * len(order.inputs)
        return {
            BaselineOrder: pace.baseline,
            CompareOrder: pace.compare,
            TrainOrder: pace.train,
            PublishOrder: pace.publish,
            SwapOrder: pace.swap,
        }[type(order)]

    def replace(self, worker: str) -> None:
        self.kill_at(self.time, worker)

    def interrupt_training(self, at_once: bool) -> None:
        for begin, order in self._in_flight["trainer-0"]:
            self._free["trainer-0"] = self.time + 0.1
            what = ("done", "trainer-0", self._alive["trainer-0"], order, begin)
            self._push(self.time + 0.1, what)

    def kill_at(self, when: float, worker: str) -> None:
        self._push(when, ("kill", worker))

    def wait(self, seconds: float) -> list[Event]:
        until = self.time + seconds
        while self._events and self._events[0][0] <= until:
            when, _, what = heapq.heappop(self._events)
            self.time = max(self.time, when)
            if found := self._happen(what):
                return found
        self.time = until
        return []

    def _happen(self, what: Any) -> list[Event]:
        if what[0] == "join":
            _, name, life = what
            return [WorkerJoined(self._worker(name))] if self._alive[name] == life else []
        if what[0] == "kill":
            name = what[1]
            lost: list[Event] = [OrderLost(name, order) for _, order in self._in_flight[name]]
            self._start(name, self.pace.restart)
            if name == "trainer-0":
                self._taught.clear()
            return [*lost, WorkerLeft(name)]
        _, name, life, order, begin = what
        if self._alive[name] != life or not any(o is order for _, o in self._in_flight[name]):
            return []
        self._in_flight[name] = [(b, o) for b, o in self._in_flight[name] if o is not order]
        self.log.append((begin, self.time, name, order))
        if self.broken and isinstance(order, MeasureOrder | BaselineOrder):
            return [OrderFailed(name, order, "no gcc")]
        return [OrderDone(name, order, self._answer(name, order))]

    def _worker(self, name: str) -> Worker:
        kind = WorkerKind(name.split("-")[0])
        return Worker(
            name, kind, target=TARGET, version=self.version, next_version=self._trained + 1
        )

    def _answer(self, name: str, order: Order) -> Any:
        if isinstance(order, WriteOrder):
            return self._write(name, order)
        if isinstance(order, MeasureOrder):
            return tuple(self._outcome(i.candidate_id) for i in order.inputs)
        if isinstance(order, CompareOrder):
            return tuple(self._comparison(c) for c in order.finalists)
        if isinstance(order, BaselineOrder):
            return Baseline(order.task.id, 1.0, TARGET.fingerprint)
        if isinstance(order, TrainOrder):
            assert order.fresh or self._taught or not self.trained_on
            stored = [wire.unpack(Record, data) for data in order.packed]
            self._taught |= {r.candidate.id for r in (*stored, *order.records)}
            self._trained = max(self._trained, order.version)
            self.trained_on[order.version] = (order.upto, len(self._taught))
            return Trained(order.version, len(self._taught), 1, 1.0, 1.0)
        if isinstance(order, PublishOrder):
            accepted = order.version not in self.refuse
            self.version = order.version if accepted else self.version
            return Published(order.version, accepted, "" if accepted else "worse")
        return order.version

    def _outcome(self, candidate_id: str) -> Outcome:
        self.measured.append(candidate_id)
        candidate = self._candidates[candidate_id]
        seconds = true_seconds(candidate)
        # The first of all looks faster than it is, as the luckiest of many does.
        lucky = self.luck if candidate.decisions[0][0] == 0 else 1.0
        low, high = seconds * lucky * (1 - self.width), seconds * lucky * (1 + self.width)
        return Outcome(Status.OK, (seconds * lucky,), verified=True, low=low, high=high)

    def _comparison(self, candidate: Candidate) -> Outcome:
        seconds = true_seconds(candidate)
        low, high = 0.999 * seconds, 1.001 * seconds
        return Outcome(Status.OK, (seconds,), low=low, high=high, compared=True)

    def _write(self, name: str, order: WriteOrder) -> Written:
        avoid = self._histories[name].add(order.task.key, order.known, order.avoid)
        known = {r.candidate.id for r in order.records} | {i for i, _ in avoid}
        proposals: list[Proposal] = []
        refused: list[Record] = []
        for number in range(self.sizes[order.task.id]):
            candidate = Candidate(order.task.id, 0, ((number,),))
            self._candidates[candidate.id] = candidate
            if candidate.id in known or len(proposals) >= order.count:
                continue
            if number % 5 == 4:
                outcome = Outcome(Status.INVALID, detail="refused")
                refused.append(Record(candidate, outcome, fingerprint=TARGET.fingerprint))
            else:
                digest = f"{order.task.id}/{number}"
                version = self.version
                proposals.append(Proposal(candidate, "", digest, version, picked_by=version))
        return Written(tuple(proposals), tuple(refused), self.version)


def true_seconds(candidate: Candidate) -> float:
    """What a candidate takes: the higher its number, the faster."""
    return 0.5 / (1 + candidate.decisions[0][0])


@dataclass
class MemoryStore:
    rows: list[Record] = field(default_factory=list)
    known: list[Task] = field(default_factory=list)
    baselines: dict[str, Baseline] = field(default_factory=dict)
    plans: dict[int, bytes] = field(default_factory=dict)

    def add_records(self, records: Iterable[Record]) -> None:
        self.rows.extend(records)

    def last_row(self) -> int:
        return len(self.rows)

    def last_time(self) -> float:
        return max((record.created for record in self.rows), default=0.0)

    def packed_records(self, after: int, count: int) -> list[tuple[int, str, str, int, bytes]]:
        found = list(enumerate(self.rows, 1))[after : after + count]
        return [
            (row, r.candidate.task_id, r.fingerprint, r.batch, wire.pack(r)) for row, r in found
        ]

    def tasks(self) -> list[Task]:
        return self.known

    def records(self, task_id: str, fingerprint: str) -> list[Record]:
        return [r for r in self.rows if r.candidate.task_id == task_id]

    def earlier_records(self, task_id: str, fingerprint: str, count: int) -> list[Record]:
        return []

    def put_baseline(self, baseline: Baseline) -> None:
        self.baselines[baseline.task_id] = baseline

    def baseline(self, task_id: str, fingerprint: str) -> Baseline | None:
        return self.baselines.get(task_id)

    def put_batch(self, number: int, payload: bytes) -> None:
        self.plans[number] = payload

    def last_batch(self) -> tuple[int, bytes] | None:
        return max(self.plans.items(), default=None)
