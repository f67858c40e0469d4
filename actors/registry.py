"""The model registry as an actor: checkpoints on the daemon's disk, and which one is in force."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tlmd.data import wire
from tlmd.data.config import RegistryConfig
from tlmd.processes.stage_times import stage
from tlmd.tlm.checkpoint_registry import Registry


class RegistryActor:
    """`Registry` behind orders, with the gate that a new checkpoint has to pass."""

    def __init__(self, directory: str, base: str, config: dict[str, Any]) -> None:
        c = RegistryConfig.model_validate(config)
        self._config = c
        self._registry = Registry(Path(directory), Path(base), c.keep)

    def describe(self) -> dict[str, Any]:
        """The version in force."""
        registry = self._registry
        return {"version": registry.current, "next_version": registry.next_version()}

    def blob(self, version: int) -> Any:
        """A checkpoint as bytes ``[n] uint8``; -1 is the one in force, 0 TLM-base."""
        data = self._registry.blob(None if version < 0 else version)
        return np.frombuffer(data, np.uint8)

    def publish(self, version: int, blob: Any, examples: bytes) -> bytes:
        """Carry out a `PublishOrder`."""
        from tlmd.learn import gate  # torch, which nothing else here needs

        held_out = wire.unpack(tuple[gate.HeldOut, ...], examples)  # type: ignore[arg-type]

        def check(new: Any, rivals: Any) -> Any:
            return gate.judge(new, rivals, held_out, self._config)

        with stage("publish"):
            return wire.pack(self._registry.publish(blob.tobytes(), version, check))

    def promote(self, version: int) -> int:
        """Pin a version and keep it for good. Raises `BadInput`."""
        self._registry.promote(version)
        return self._registry.current

    def rollback(self, version: int) -> int:
        """Pin an older version. Raises `BadInput`."""
        self._registry.rollback(version)
        return self._registry.current

    def unpin(self) -> int:
        """Let newer versions come into force again."""
        self._registry.unpin()
        return self._registry.current

    def versions(self) -> list[dict[str, Any]]:
        """Every version there is."""
        return [asdict(entry) for entry in self._registry.versions()]
