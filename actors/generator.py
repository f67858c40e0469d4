"""The generator as an actor: writes candidates with the checkpoint that is in force."""

from __future__ import annotations

from typing import Any

import ray
from ray.actor import ActorHandle

from tlmd.data import wire
from tlmd.data.config import GenerateConfig
from tlmd.generate.history import WrittenHistory
from tlmd.pipeline.orders import WriteOrder, Written
from tlmd.processes.stage_times import stage
from tlmd.space import tvm_alone
from tlmd.tlm import checkpoint as checkpoints


class GeneratorActor:
    """`Generator` behind orders; a fresh one asks the registry for the current version."""

    def __init__(
        self,
        registry: ActorHandle[Any],
        config: dict[str, Any],
        seed: int,
    ) -> None:
        tvm_alone.import_tvm()  # before torch, beside which it takes half a second longer
        from tlmd.generate.generator import Generator
        from tlmd.tlm.torch_settings import best_device, use_threads

        use_threads(1)
        blob = ray.get(registry.control.remote("blob", -1))
        generate = GenerateConfig.model_validate(config)
        self._history = WrittenHistory()
        self._device = best_device()
        self._generator = Generator(self._read(blob), generate, seed)

    def describe(self) -> dict[str, Any]:
        """The version that it uses."""
        return {"version": self._generator.version}

    def write(self, data: bytes) -> bytes:
        """Carry out a `WriteOrder`."""
        order = wire.unpack(WriteOrder, data)
        avoid = self._history.add(order.task.key, order.known, order.avoid)
        with stage("write"):
            written, refused = self._generator.write(
                order.task, order.count, list(order.records), avoid, order.oversample, order.earlier
            )
        return wire.pack(Written(tuple(written), tuple(refused), self._generator.version))

    def swap(self, blob: Any) -> int:
        """Use another checkpoint from the next order on; the version now in use."""
        return self._generator.swap(self._read(blob))

    def _read(self, blob: Any) -> checkpoints.Checkpoint:
        """A checkpoint, with its network where it writes: on the card that Ray gives to us."""
        checkpoint = checkpoints.from_bytes(blob.tobytes())
        checkpoint.model.to(self._device)
        return checkpoint
