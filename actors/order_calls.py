"""Orders as calls of actors: the method that carries out each, and how its answer is read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from tlmd.data import wire
from tlmd.data.errors import Failed
from tlmd.data.types import Baseline, Outcome, Published, Task
from tlmd.pipeline.orders import (
    BaselineOrder,
    CompareOrder,
    MeasureOrder,
    Order,
    PublishOrder,
    SlotOrder,
    SwapOrder,
    Trained,
    TrainOrder,
    WriteOrder,
    Written,
)


def _outcomes(data: Any) -> tuple[Outcome, ...]:
    return tuple(wire.unpack(Outcome, one) for one in data)


def pack_order(order: WriteOrder | SlotOrder) -> bytes:
    """The arguments, packed. The task is most of them, and the same in many orders."""
    return wire.pack_with(order, "task", _packed_task(order.task))


@functools.lru_cache(4096)
def _packed_task(task: Task) -> bytes:
    return wire.pack(task)


METHODS: dict[type[Any], str] = {
    WriteOrder: "write",
    MeasureOrder: "measure",
    BaselineOrder: "baseline",
    CompareOrder: "compare",
}
_UNPACK: dict[type[Any], Callable[[Any], Any]] = {
    WriteOrder: lambda data: wire.unpack(Written, data),
    MeasureOrder: _outcomes,
    BaselineOrder: lambda data: wire.unpack(Baseline, data),
    CompareOrder: _outcomes,
    TrainOrder: lambda data: wire.unpack(Trained, data),
    PublishOrder: lambda data: wire.unpack(Published, data),
    SwapOrder: int,
}


def unpack_answer(order: Order, data: Any) -> Any:
    """The answer that an actor packed."""
    return _UNPACK[type(order)](data)


def ask_registry(handle: Any, method: str, *arguments: Any) -> Any:
    """Call a method of the registry's actor; raises what it raises, or `Failed`."""
    try:
        call = handle.control if method == "versions" else handle.order
        return ray.get(call.remote(method, *arguments), timeout=60)
    except RayTaskError as error:
        raise error.as_instanceof_cause() from None
    except RayError as error:
        raise Failed(f"the registry does not answer ({error}); try again") from error


def reason_of(error: BaseException | None) -> str:
    """The informative line of an error that came through Ray."""
    cause = getattr(error, "cause", None)
    text = str(cause if cause is not None else error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
