"""The worker pool on Ray: starts or joins a cluster, places the actors, replaces the dead ones."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import ray
from prometheus_client.metrics_core import Metric
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors import placement, session
from actors.order_calls import METHODS, ask_registry, pack_order, reason_of, unpack_answer
from actors.placement import ActorSpec, Member
from actors.ray_metrics import RayMetrics
from actors.start_failures import StartFailures
from tlmd.data import wire
from tlmd.data.errors import Failed
from tlmd.data.types import TargetInfo
from tlmd.pipeline.orders import (
    Event,
    MeasureOrder,
    Order,
    OrderDone,
    OrderFailed,
    OrderLost,
    SlotOrder,
    StartFailed,
    SwapOrder,
    TrainOrder,
    Worker,
    WorkerJoined,
    WorkerKind,
    WorkerLeft,
    WriteOrder,
)
from tlmd.processes.stage_times import stage

_log = logging.getLogger("tlmd.cluster")

_LOOK_S = 3.0  # between two looks at the nodes of the cluster
_CLOSE_S = 20.0  # for actors to close
_ESSENTIAL = {WorkerKind.REGISTRY, WorkerKind.GENERATOR, WorkerKind.MEASURER}
_TRAINER_DELAY_S = 40.0  # then the trainer starts, whatever was measured
_TRAINER_AFTER = 32  # measured candidates; a job of less ends before the trainer has started
_TRAINER_AFTER_STRICT = 1  # batches wait for the trainer


class Cluster:
    """The worker pool of the pipeline. For one thread; answers of actors arrive in others.

    Call `start` first and `close` in the end. `now` is the monotonic clock. `start` and `wait`
    raise `Failed` when Ray or a worker that measuring needs cannot be started, and `ClusterLost`
    when Ray has died.
    """

    def __init__(self, settings: session.Settings) -> None:
        self._settings = settings
        self._members: dict[str, Member] = {}
        self._inbox: queue.Queue[tuple[str, int, Order | None, Any]] = queue.Queue()
        self._lives = 0
        self._failures = StartFailures()
        self._looked = 0.0
        self._trained: tuple[int, Any, Any] | None = None  # version, checkpoint, examples
        self._ready_at = math.inf  # when all workers that measuring needs had joined
        self._measured = 0  # candidates
        strict = settings.config.pipeline.strict
        self._trainer_after = _TRAINER_AFTER_STRICT if strict else _TRAINER_AFTER
        self._metrics: RayMetrics | None = None
        self.offered: frozenset[str] = frozenset()
        """Resources of the slots that nodes offer, have offered since the start, or will offer."""

    def start(self) -> None:
        """Start or join Ray (some seconds), and every actor in the background."""
        with stage("start Ray"):
            session.start(self._settings)
        self.offered = placement.described()
        self._look()

    def export(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Have a cluster export the figures that `families` returns, until `close`."""
        if not self._settings.is_local:
            self._metrics = RayMetrics(families)

    # the worker pool

    def now(self) -> float:
        return time.monotonic()

    def send(self, worker: str, order: Order) -> None:
        member = self._members.get(worker)
        if member is None:
            self._inbox.put((worker, -1, order, None))
            return
        member.in_flight.append(order)
        try:
            self._listen(member, order, self._call(member.handle, order))
        except (RayError, ValueError) as error:
            self._inbox.put((worker, member.life, order, error))

    def wait(self, seconds: float) -> list[Event]:
        self._look()
        events: list[Event] = []
        timeout = seconds
        while True:
            try:
                item = self._inbox.get(timeout=timeout) if timeout else self._inbox.get_nowait()
            except queue.Empty:
                return events
            events += self._take(*item)
            timeout = 0.0

    def replace(self, worker: str) -> None:
        member = self._members.get(worker)
        if member is None:
            return
        ray.kill(member.handle)
        if member.spec.local and member.pid:
            with contextlib.suppress(OSError):  # Ray asks a process to end; a stopped one cannot
                os.kill(member.pid, signal.SIGKILL)
        self._inbox.put((worker, member.life, None, Failed("it took too long for an order")))

    def interrupt_training(self, at_once: bool) -> None:
        for member in self._members.values():
            if member.spec.kind is WorkerKind.TRAINER and self._trained is not None:
                member.handle.control.remote("interrupt", self._trained[0], at_once)

    # what the daemon asks of the registry

    def ask_registry(self, method: str, *arguments: Any) -> Any:
        """Call a method of the registry's actor; raises what it raises, or `Failed`.

        Any thread may call it. ``versions`` is answered also while the registry publishes.
        """
        members = list(self._members.values())
        member = next((m for m in members if m.spec.kind is WorkerKind.REGISTRY), None)
        if member is None or not member.joined:
            raise Failed("the registry is starting; try again in a moment")
        return ask_registry(member.handle, method, *arguments)

    def close(self) -> None:
        """End every actor and, if it was started here, Ray."""
        if not ray.is_initialized():
            return
        if self._metrics is not None:
            self._metrics.close()
        for member in self._members.values():
            if not member.joined:  # it would answer only after its start, which takes seconds
                ray.kill(member.handle)
        closing = [m.handle.close.remote() for m in self._members.values() if m.joined]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        self._members.clear()
        session.stop(self._settings)

    # calls and their answers

    def _call(self, handle: Any, order: Order) -> Any:
        if isinstance(order, WriteOrder | SlotOrder):
            return handle.order.remote(METHODS[type(order)], pack_order(order))
        if isinstance(order, SwapOrder):
            # The checkpoint goes from node to node through the object store, not through here.
            return handle.order.remote(
                "swap", self._registry().control.remote("blob", order.version)
            )
        if isinstance(order, TrainOrder):
            train = handle.order.options(num_returns=3)
            answer, blob, examples = train.remote("train", wire.pack(order), self._registry())
            self._trained = (order.version, blob, examples)
            return answer
        if self._trained is None or self._trained[0] != order.version:
            raise ValueError(f"version {order.version} was lost before it was published")
        return handle.order.remote("publish", order.version, *self._trained[1:])

    def _registry(self) -> Any:
        registry = next(m for m in self._members.values() if m.spec.kind is WorkerKind.REGISTRY)
        return registry.handle

    def _listen(self, member: Member, order: Order | None, ref: Any) -> None:
        name, life = member.spec.name, member.life

        def report(future: Any) -> None:
            error = future.exception()
            answer = error if error is not None else future.result()
            self._inbox.put((name, life, order, answer))

        ref.future().add_done_callback(report)

    def _take(self, name: str, life: int, order: Order | None, answer: Any) -> list[Event]:
        member = self._members.get(name)
        if member is None or member.life != life:
            return [OrderLost(name, order)] if order is not None and life < 0 else []
        # Where another actor died with an argument of the call, the task itself has an error.
        if isinstance(answer, RayActorError) and not isinstance(answer, RayTaskError):
            return self._replace(member, answer)
        if order is None:
            return self._on_described(member, answer)
        if not any(o is order for o in member.in_flight):
            return []
        member.in_flight = [o for o in member.in_flight if o is not order]
        if isinstance(answer, BaseException):
            return [OrderFailed(name, order, reason_of(answer))]
        if isinstance(order, MeasureOrder):
            self._measured += len(order.inputs)
        return [OrderDone(name, order, unpack_answer(order, answer))]

    def _on_described(self, member: Member, answer: Any) -> list[Event]:
        """An actor has described itself, or its `hold` has returned because it closes."""
        if isinstance(answer, BaseException) or answer is None:
            return self._replace(member, answer) if isinstance(answer, BaseException) else []
        member.joined = True
        joined = {m.spec.kind for m in self._members.values() if m.joined}
        if self._ready_at == math.inf and joined >= _ESSENTIAL:
            self._ready_at = time.monotonic()
            session.keep_to_build_cores(self._settings)
        self._failures.forget(member.spec.name)
        member.pid = int(answer["pid"])
        target = answer.pop("target", None)
        worker = Worker(
            member.spec.name,
            member.spec.kind,
            local=member.spec.local and self._settings.is_local,
            resource=member.spec.resource,
            target=wire.unpack(TargetInfo, target) if target else None,
            **answer,
        )
        _log.info(
            "%s joined after %.1f s (pid %d)",
            worker.name,
            time.monotonic() - member.since,
            worker.pid,
        )
        return [WorkerJoined(worker)]

    # which actors live

    def _replace(self, member: Member, error: BaseException | None) -> list[Event]:
        """Report the orders of a dead actor as lost, and start its successor at once."""
        name = member.spec.name
        _log.warning("%s is gone: %s", name, reason_of(error))
        del self._members[name]
        events: list[Event] = []
        if not member.joined:
            pause = self._failures.add(member.spec, reason_of(error))
            if pause:
                events.append(StartFailed(name, member.spec.kind, reason_of(error), pause))
        else:
            events += [OrderLost(name, order) for order in member.in_flight] + [WorkerLeft(name)]
        self._looked = 0.0
        self._look()
        return events

    def _look(self) -> None:
        """Start an actor for each place that has none; places come and go with the nodes."""
        if time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        if not session.check(self._settings):
            return  # whatever is asked of it waits
        specs = placement.actor_specs(self._settings)
        self.offered |= {spec.resource for spec in specs if spec.resource}
        for spec in specs:
            if spec.name not in self._members and not self._too_early(spec):
                self._start(spec)

    def _too_early(self, spec: ActorSpec) -> bool:
        """The registry starts first, because others call it. The trainer starts last.

        Its start would take the cores from the first batch. A failed start has a pause after it.
        """
        if not self._failures.may_start(spec.name):
            return True
        there = {m.spec.kind for m in self._members.values()}
        if spec.kind is WorkerKind.GENERATOR:
            return WorkerKind.REGISTRY not in there
        if spec.kind is WorkerKind.TRAINER:
            late = time.monotonic() > self._ready_at + _TRAINER_DELAY_S
            return self._measured < self._trainer_after and not late
        return False

    def _start(self, spec: ActorSpec) -> None:
        registry = (
            None if spec.kind in (WorkerKind.REGISTRY, WorkerKind.MEASURER) else self._registry()
        )
        try:
            handle = placement.create(spec, self._settings, registry)
        except ValueError:  # its predecessor has not ended yet; the next look tries again
            return
        self._lives += 1
        member = Member(spec, self._lives, handle, time.monotonic())
        self._members[spec.name] = member
        self._listen(member, None, handle.describe.remote())
        self._listen(member, None, handle.hold.remote())
