"""A daemon with a real slot and two simulated ones: ``python -m tests.chaos.simulated_daemon DIR``.

Ray, its actors, HTTP, the store, the registry, the trainer and the real slot with its measuring
server are real. The two other slots have hardware of two other kinds and cost no CPU; neither do
the candidates that are written for them.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.daemon import simulated
from tlmd.data import wire
from tlmd.data.errors import TlmdError
from tlmd.data.types import TargetInfo
from tlmd.pipeline.orders import TrainOrder, WriteOrder

SLOTS = 3
HARDWARE = [replace(simulated.TARGET, fingerprint=name) for name in ("fast", "slow")]
"""The two kinds of simulated hardware: those of the slots 1 and 2."""
_NAMES = {target.fingerprint for target in HARDWARE}
_PLACE = "tests.chaos.simulated_daemon"
_SETTINGS = {
    "train.steps": 1,
    "train.seconds": 60,  # before that no round is interrupted
    "train.rounds": 1,
    "train.window": 200,
    "pipeline.batch": 8,
    "pipeline.per_task": 4,
    "pipeline.chunk": 2,
    "generate.oversample": 1,
    "generate.oversample_min": 1,
    "generate.oversample_max": 1,
    "generate.wide": 1,
    "generate.generations": 0,
    "generate.timeout": 30.0,
    "daemon.generators": 1,
    "daemon.niceness": 0,
    "measure.background_share": 1.0,
    "measure.repeats": 2,
    "measure.budget": 0.05,
}


def is_simulated(target: TargetInfo) -> bool:
    """Whether nothing real has this hardware."""
    return target.fingerprint in _NAMES


class SlotOfOtherHardware(simulated.SimulatedSlot):
    """A simulated slot of its own kind of hardware."""

    def __init__(self, target: TargetInfo) -> None:
        super().__init__()
        self._target = target
        self.candidate_s = 0.4 if target is HARDWARE[0] else 0.8

    def describe(self) -> dict[str, Any]:
        return {"target": wire.pack(self._target), "cores": ()}


class MixedSlot:
    """Slot 0 measures; each of the others stands for another kind of hardware."""

    def __init__(self, config: dict[str, Any], index: int, *_others: Any) -> None:
        self._slot: Any
        if index:
            self._slot = SlotOfOtherHardware(HARDWARE[index - 1])
            return
        from actors.measurer import MeasurerActor

        references = Path(os.environ["TLMD_STATE_DIR"]) / "references"
        self._slot = MeasurerActor(config, 0, 1, str(references))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slot, name)


class FreshGenerator(simulated.SimulatedGenerator):
    """Never writes again what an earlier one of its place wrote."""

    def __init__(self) -> None:
        super().__init__(None, {}, 0)
        self._random = random.Random(os.urandom(8))


class MixedGenerator:
    """Writes candidates of real tasks with the TLM, and makes up those of simulated hardware."""

    def __init__(self, registry: Any, config: dict[str, Any], _seed: int) -> None:
        from actors.generator import GeneratorActor

        seed = int.from_bytes(os.urandom(4), "little")
        self._real = GeneratorActor(registry, config, seed)
        self._simulated = FreshGenerator()

    def write(self, data: bytes) -> bytes:
        target = wire.unpack(WriteOrder, data).task.target
        return (self._simulated if is_simulated(target) else self._real).write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class RealTrainer:
    """`TrainerActor`, which sees only what was really measured."""

    def __init__(self, *arguments: Any) -> None:
        from actors.trainer import TrainerActor

        self._trainer = TrainerActor(*arguments)

    def train(self, data: bytes, registry: Any) -> Any:
        from tlmd.data.types import Record

        order = wire.unpack(TrainOrder, data)
        stored = [r for r in (wire.unpack(Record, p) for p in order.packed) if _is_real(r)]
        return self._trainer.train(
            wire.pack(
                replace(
                    order,
                    tasks=tuple(t for t in order.tasks if not is_simulated(t.target)),
                    records=(*stored, *filter(_is_real, order.records)),
                    packed=(),
                )
            ),
            registry,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def _is_real(record: Any) -> bool:
    return record.fingerprint not in _NAMES


def _use_own_actors() -> None:
    """This daemon's slots have unlike hardware, and its trainer skips what is simulated."""
    from actors import session

    prepare = session.prepare

    def prepare_all(settings: Any) -> None:
        prepare(settings)  # before anything imports Ray
        _place_own_actors()

    session.prepare = prepare_all
    session.Settings = functools.partial(  # type: ignore[misc, assignment]
        session.Settings,
        slot_class=f"{_PLACE}:MixedSlot",
        slot_count=SLOTS,
        generator_class=f"{_PLACE}:MixedGenerator",
    )


def _place_own_actors() -> None:
    from actors import placement
    from tlmd.pipeline.orders import WorkerKind

    all_specs, class_of = placement.actor_specs, placement._class_and_arguments

    def specs(settings: Any) -> list[placement.ActorSpec]:
        # Slots of the daemon's own machine have its hardware; these are as on other machines.
        return [
            replace(spec, local=spec.local and spec.kind is not WorkerKind.MEASURER)
            for spec in all_specs(settings)
        ]

    def own_class(spec: placement.ActorSpec, *others: Any) -> tuple[str, tuple[Any, ...]]:
        path, arguments = class_of(spec, *others)
        return f"{_PLACE}:RealTrainer" if spec.kind is WorkerKind.TRAINER else path, arguments

    replaced: dict[str, Callable[..., Any]] = {
        "actor_specs": specs,
        "_class_and_arguments": own_class,
    }
    for name, function in replaced.items():
        setattr(placement, name, function)


def main(state_dir: Path) -> int:
    """Run until the daemon ends; its exit code."""
    _use_own_actors()
    from tlmd.daemon.serve import serve
    from tlmd.data import config

    try:
        return serve(state_dir, config.load(None, _SETTINGS))
    except TlmdError as error:
        print(f"tlmd: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
