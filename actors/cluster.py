"""The crew on Ray: starts or joins a cluster, places the actors, replaces those that die."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors import placement, session
from actors.placement import Place
from tlmd import wire
from tlmd.errors import Failed as Failure
from tlmd.pipeline.orders import (
    BaselineOrder,
    Done,
    Event,
    Failed,
    Joined,
    Kind,
    Left,
    Lost,
    MeasureOrder,
    Order,
    Published,
    PublishOrder,
    RaceOrder,
    SlotOrder,
    SwapOrder,
    Trained,
    TrainOrder,
    Worker,
    WriteOrder,
    Written,
)
from tlmd.types import Baseline, Outcome, TargetInfo

_log = logging.getLogger("tlmd.cluster")

_LOOK_S = 3.0  # between two looks at which nodes there are
_PATIENCE_S = 20.0  # for actors to close
_ESSENTIAL = {Kind.REGISTRY, Kind.GENERATOR, Kind.MEASURER}
_CALM_S = 12.0  # of nothing to measure, then the trainer starts without it
_ATTEMPTS = 3  # starts of one worker in a row that may fail


@dataclass
class _Member:
    """An actor: `life` tells its successors apart, `flying` are the orders it has."""

    place: Place
    life: int
    handle: Any
    since: float
    joined: bool = False
    flying: list[Order] = field(default_factory=list)


class Cluster:
    """The pipeline's crew; one thread uses it, answers of actors come in on others.

    `start` it first and `close` it in the end. `now` is the monotonic clock. `start` and `wait`
    raise `Failed` when Ray or a worker cannot be started.
    """

    def __init__(self, settings: session.Settings) -> None:
        self._settings = settings
        self._members: dict[str, _Member] = {}
        self._inbox: queue.Queue[tuple[str, int, Order | None, Any]] = queue.Queue()
        self._lives = 0
        self._failures: dict[str, int] = {}
        self._looked = 0.0
        self._trained: tuple[int, Any, Any] | None = None  # version, checkpoint, questions
        self._settled_at = math.inf  # when all that measuring needs had joined
        self._measured = False

    def start(self) -> None:
        """Start or join Ray (some seconds), and every actor in the background."""
        session.start(self._settings)
        self._look()

    # the crew

    def now(self) -> float:
        return time.monotonic()

    def send(self, worker: str, order: Order) -> None:
        member = self._members.get(worker)
        if member is None:
            self._inbox.put((worker, -1, order, None))
            return
        member.flying.append(order)
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

    def interrupt_training(self) -> None:
        for member in self._members.values():
            if member.place.kind is Kind.TRAINER and self._trained is not None:
                member.handle.control.remote("interrupt", self._trained[0])

    # what the daemon asks of the registry

    def ask_registry(self, method: str, *arguments: Any) -> Any:
        """Call a method of the registry's actor; raises what it raises, or `Failed`."""
        member = next((m for m in self._members.values() if m.place.kind is Kind.REGISTRY), None)
        if member is None or not member.joined:
            raise Failure("the registry is starting; try again in a moment")
        try:
            return ray.get(member.handle.order.remote(method, *arguments), timeout=60)
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayError as error:
            raise Failure(f"the registry does not answer ({error}); try again") from error

    def close(self) -> None:
        """End every actor and, if it was started here, Ray."""
        if not ray.is_initialized():
            return
        closing = [m.handle.close.remote() for m in self._members.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_PATIENCE_S)
        self._members.clear()
        session.stop(self._settings)

    # calls and their answers

    def _call(self, handle: Any, order: Order) -> Any:
        if isinstance(order, WriteOrder | SlotOrder):
            return handle.order.remote(_METHODS[type(order)], wire.pack(order))
        if isinstance(order, SwapOrder):
            # The checkpoint goes from node to node through the object store, not through here.
            return handle.order.remote(
                "swap", self._registry().control.remote("blob", order.version)
            )
        if isinstance(order, TrainOrder):
            train = handle.order.options(num_returns=3)
            answer, blob, questions = train.remote("train", wire.pack(order), self._registry())
            self._trained = (order.version, blob, questions)
            return answer
        if self._trained is None or self._trained[0] != order.version:
            raise ValueError(f"version {order.version} was lost before it was published")
        return handle.order.remote("publish", order.version, *self._trained[1:])

    def _registry(self) -> Any:
        found = next(m for m in self._members.values() if m.place.kind is Kind.REGISTRY)
        return found.handle

    def _listen(self, member: _Member, order: Order | None, ref: Any) -> None:
        name, life = member.place.name, member.life

        def tell(future: Any) -> None:
            error = future.exception()
            answer = error if error is not None else future.result()
            self._inbox.put((name, life, order, answer))

        ref.future().add_done_callback(tell)

    def _take(self, name: str, life: int, order: Order | None, answer: Any) -> list[Event]:
        member = self._members.get(name)
        if member is None or member.life != life:
            return [Lost(name, order)] if order is not None and life < 0 else []
        # An argument that another actor's death has lost comes as an error of the task.
        if isinstance(answer, RayActorError) and not isinstance(answer, RayTaskError):
            return self._bury(member, answer)
        if order is None:
            return self._introduce(member, answer)
        if not any(o is order for o in member.flying):
            return []
        member.flying = [o for o in member.flying if o is not order]
        if isinstance(answer, BaseException):
            return [Failed(name, order, _reason(answer))]
        self._measured |= isinstance(order, MeasureOrder)
        return [Done(name, order, _answer(order, answer))]

    def _introduce(self, member: _Member, answer: Any) -> list[Event]:
        """An actor has said who it is, or its `hold` has returned since it closes."""
        if isinstance(answer, BaseException) or answer is None:
            return self._bury(member, answer) if isinstance(answer, BaseException) else []
        member.joined = True
        if self._settled_at == math.inf and self._joined() >= _ESSENTIAL:
            self._settled_at = time.monotonic()
            session.keep_to_build_cores(self._settings)
        self._failures.pop(member.place.name, None)
        target = answer.pop("target", None)
        worker = Worker(
            member.place.name,
            member.place.kind,
            local=member.place.local and self._settings.is_local,
            resource=member.place.resource,
            target=wire.unpack(TargetInfo, target) if target else None,
            **answer,
        )
        _log.info(
            "%s joined after %.1f s (pid %d)",
            worker.name,
            time.monotonic() - member.since,
            worker.pid,
        )
        return [Joined(worker)]

    # who lives

    def _bury(self, member: _Member, error: BaseException | None) -> list[Event]:
        """Report what a dead actor held, and start its successor at once."""
        name = member.place.name
        _log.warning("%s is gone: %s", name, _reason(error))
        del self._members[name]
        if not member.joined:
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._failures[name] >= _ATTEMPTS and not member.place.optional:
                raise Failure(f"{name} cannot be started: {_reason(error)}")
        events: list[Event] = [Lost(name, order) for order in member.flying]
        self._looked = 0.0
        self._look()
        return [*events, Left(name)]

    def _look(self) -> None:
        """Start an actor for each place that has none; places come and go with the nodes."""
        if time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        for place in placement.places(self._settings):
            if place.name in self._members or self._too_early(place):
                continue
            self._start(place)

    def _too_early(self, place: Place) -> bool:
        """The registry comes first, since others ask it, the trainer when there is something to do.

        Its start would take the cores from the very first batch.
        """
        there = {m.place.kind for m in self._members.values()}
        if place.kind is Kind.GENERATOR:
            return Kind.REGISTRY not in there
        if place.kind is Kind.TRAINER:
            return not self._measured and time.monotonic() < self._settled_at + _CALM_S
        return False

    def _joined(self) -> set[Kind]:
        return {m.place.kind for m in self._members.values() if m.joined}

    def _start(self, place: Place) -> None:
        registry = None if place.kind in (Kind.REGISTRY, Kind.MEASURER) else self._registry()
        handle = placement.create(place, self._settings, registry)
        self._lives += 1
        member = _Member(place, self._lives, handle, time.monotonic())
        self._members[place.name] = member
        self._listen(member, None, handle.describe.remote())
        self._listen(member, None, handle.hold.remote())


def _outcomes(data: Any) -> tuple[Outcome, ...]:
    return tuple(wire.unpack(Outcome, one) for one in data)


_METHODS: dict[type[Any], str] = {
    WriteOrder: "write",
    MeasureOrder: "measure",
    BaselineOrder: "baseline",
    RaceOrder: "race",
}
_UNPACK: dict[type[Any], Callable[[Any], Any]] = {
    WriteOrder: lambda data: wire.unpack(Written, data),
    MeasureOrder: _outcomes,
    BaselineOrder: lambda data: wire.unpack(Baseline, data),
    RaceOrder: _outcomes,
    TrainOrder: lambda data: wire.unpack(Trained, data),
    PublishOrder: lambda data: wire.unpack(Published, data),
    SwapOrder: int,
}


def _answer(order: Order, data: Any) -> Any:
    return _UNPACK[type(order)](data)


def _reason(error: BaseException | None) -> str:
    """The line that tells, of an error that came through Ray."""
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
