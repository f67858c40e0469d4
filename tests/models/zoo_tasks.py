"""Write the fixture of `test_zoo.py`: `python -m tests.models.zoo_tasks` (takes a few minutes)."""

from __future__ import annotations

import dataclasses
import zlib

from tlmd.data import wire
from tlmd.data.types import Task
from tlmd.lowering import lowering
from tlmd.models import frontends
from tlmd.models.zoo.catalogue import zoo
from tlmd.space.hardware import target as targets

from tests.models.test_zoo import FIXTURE  # isort: skip


def main() -> None:
    """Lower every network of the zoo at its default shape."""
    target = targets.resolve('{"kind":"llvm","mcpu":"znver4"}', 1)
    tasks: dict[str, Task] = {}
    for name in zoo():
        lowered = lowering.lower(frontends.load_model(name).module, targets.tvm_target(target))
        for task in lowering.extract(lowered, target):
            tasks.setdefault(task.id, dataclasses.replace(task, name=f"{name}/{task.name}"))
        print(name, len(tasks), flush=True)
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_bytes(zlib.compress(wire.pack(list(tasks.values())), 9))


if __name__ == "__main__":
    main()
