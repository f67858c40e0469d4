"""A worker pool without Ray, for more slots than one machine has memory for actors.

Slots are timers: a candidate takes `simulated.CANDIDATE_S` and no CPU. Generators are child
processes. Orders and answers are packed and unpacked as for actors. What Ray itself costs the
daemon is missing, so this measures the pipeline's thread alone.
"""

from __future__ import annotations

import heapq
import itertools
import multiprocessing
import queue
import random
import threading
import time
from multiprocessing.connection import Connection

from actors.order_calls import pack_order, unpack_answer
from benchmarks.daemon import simulated
from tlmd.pipeline.orders import (
    Event,
    MeasureOrder,
    Order,
    OrderDone,
    Worker,
    WorkerJoined,
    WorkerKind,
    WriteOrder,
)

_OUTCOMES = 256  # different ones


class InProcessPool:
    """`slots` timers and `generators` processes, which have all joined at the first `wait`."""

    def __init__(self, slots: int, generators: int) -> None:
        names = [(f"slot-{i}", WorkerKind.MEASURER) for i in range(slots)]
        names += [(f"generator-{i}", WorkerKind.GENERATOR) for i in range(generators)]
        self._joining: list[Event] = [
            WorkerJoined(Worker(name, kind, target=simulated.TARGET)) for name, kind in names
        ]
        self._free = {name: 0.0 for name, kind in names if kind is WorkerKind.MEASURER}
        self._timers: list[tuple[float, int, str, MeasureOrder]] = []
        self._count = itertools.count()
        self._answers: queue.Queue[tuple[str, WriteOrder, bytes]] = queue.Queue()
        self._generators = {
            name: _GeneratorProcess(name, seed, self._answers)
            for seed, (name, kind) in enumerate(names)
            if kind is WorkerKind.GENERATOR
        }
        rng = random.Random(0)
        self._outcomes = [simulated.packed_outcome(rng) for _ in range(_OUTCOMES)]

    def close(self) -> None:
        """End the generators."""
        for generator in self._generators.values():
            generator.close()

    def now(self) -> float:
        return time.monotonic()

    def send(self, worker: str, order: Order) -> None:
        if isinstance(order, MeasureOrder):
            pack_order(order)  # for what it costs
            begin = max(self.now(), self._free[worker])
            self._free[worker] = end = begin + simulated.CANDIDATE_S * len(order.inputs)
            heapq.heappush(self._timers, (end, next(self._count), worker, order))
        elif isinstance(order, WriteOrder):
            self._generators[worker].orders.put((order, pack_order(order)))
        else:
            raise ValueError(f"there is no simulated worker for {order}")

    def wait(self, seconds: float) -> list[Event]:
        events, self._joining = self._joining, []
        until = self._timers[0][0] if self._timers else self.now() + seconds
        timeout = min(until - self.now(), seconds)
        while not events or timeout <= 0:
            try:
                answer = self._answers.get(timeout > 0, max(timeout, 0.0))
            except queue.Empty:
                break
            name, order, data = answer
            events.append(OrderDone(name, order, unpack_answer(order, data)))
            timeout = 0.0
        return events + self._timed(self.now())

    def _timed(self, now: float) -> list[Event]:
        """The answers of slots that are due."""
        events: list[Event] = []
        while self._timers and self._timers[0][0] <= now:
            _, number, name, order = heapq.heappop(self._timers)
            first = number % (_OUTCOMES - len(order.inputs))
            data = self._outcomes[first : first + len(order.inputs)]
            events.append(OrderDone(name, order, unpack_answer(order, data)))
        return events

    def replace(self, worker: str) -> None:
        raise SystemExit(f"{worker} takes too long")

    def interrupt_training(self, at_once: bool) -> None:
        """Nothing is trained."""


class _GeneratorProcess:
    """A `SimulatedGenerator` in a process, and the thread that talks to it."""

    def __init__(
        self, name: str, seed: int, answers: queue.Queue[tuple[str, WriteOrder, bytes]]
    ) -> None:
        self.orders: queue.Queue[tuple[WriteOrder, bytes] | None] = queue.Queue()
        self._name, self._answers = name, answers
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_generate, args=(theirs, seed), daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._talk, daemon=True).start()

    def close(self) -> None:
        self.orders.put(None)
        self._connection.close()
        self._process.join(5.0)

    def _talk(self) -> None:
        while (item := self.orders.get()) is not None:
            order, data = item
            self._connection.send_bytes(data)
            self._answers.put((self._name, order, self._connection.recv_bytes()))


def _generate(connection: Connection, seed: int) -> None:
    generator = simulated.SimulatedGenerator(None, {}, seed)
    while True:
        try:
            connection.send_bytes(generator.write(connection.recv_bytes()))
        except (EOFError, OSError):
            return
