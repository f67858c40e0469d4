"""The Ray actor around every class here: it builds the class in its own process and calls it.

The daemon's process never imports what its actors need (TVM, torch), and the classes do not know
how they are called.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
from pathlib import Path
from typing import Any

import ray

from tlmd.measure.cores import suspension
from tlmd.processes.stage_times import stage


class Host:
    """Runs an object of the class at ``package.module:Class`` made with `arguments`.

    `order` and `control` run in concurrency groups of their own, so that `control` answers while
    an order runs. `hold` is a call that stays open: when it ends, the actor has died. The process
    stands still while a slot of the folder `turns_with` times on its cores.
    """

    def __init__(self, path: str, arguments: tuple[Any, ...], turns_with: str = "") -> None:
        if turns_with:
            with contextlib.suppress(OSError):  # a full disk: it then goes on beside the timing
                suspension.join(Path(turns_with))
        self._end = threading.Event()
        with stage(f"start {path.rpartition(':')[2]}"):
            self._object = _imported(path)(*arguments)

    def describe(self) -> dict[str, Any]:
        """Node and process, and what the object says about itself."""
        node = ray.get_runtime_context().get_node_id()
        return {"node": node, "pid": os.getpid(), **self._object.describe()}

    def order(self, method: str, *arguments: Any) -> Any:
        """Carry out an order."""
        return getattr(self._object, method)(*arguments)

    def control(self, method: str, *arguments: Any) -> Any:
        """Answer at any time."""
        return getattr(self._object, method)(*arguments)

    def hold(self) -> None:
        """Return when the actor closes; raises in the caller as soon as it dies."""
        self._end.wait()

    def close(self) -> None:
        """End what the object has started. It must not be used afterwards."""
        if hasattr(self._object, "close"):
            self._object.close()
        self._end.set()


def _imported(path: str) -> Any:
    """The class at ``package.module:Class``."""
    module, _, name = path.partition(":")
    # torch and TVM make a million objects that stay. To search them for garbage again and again
    # takes a sixth of the import, and would slow down each later search.
    gc.disable()
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        gc.freeze()
        gc.enable()


for _name, _group in {
    "describe": "control",
    "order": "orders",
    "control": "control",
    "hold": "control",
    "close": "control",
}.items():
    ray.method(concurrency_group=_group)(getattr(Host, _name))


def actor_class(orders: int) -> Any:
    """`Host` as a Ray actor class with `orders` orders at a time.

    Only `Cluster` restarts it, and Ray retries none of its calls.
    """
    return ray.remote(
        num_cpus=0,
        max_restarts=0,
        max_task_retries=0,
        concurrency_groups={"orders": orders, "control": 4},
    )(Host)
