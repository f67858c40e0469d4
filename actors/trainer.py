"""The trainer as an actor: makes the next checkpoint from the measured records."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.actor import ActorHandle

from tlmd.data import wire
from tlmd.data.config import TrainConfig
from tlmd.data.types import Record
from tlmd.pipeline.orders import Trained, TrainOrder
from tlmd.processes.stage_times import stage
from tlmd.space import tvm_alone
from tlmd.tlm import checkpoint as checkpoints


class TrainerActor:
    """`FineTuner` behind orders; `interrupt` ends a training between two optimiser steps."""

    def __init__(
        self,
        registry: ActorHandle[Any],
        config: dict[str, Any],
        seed: int,
    ) -> None:
        tvm_alone.import_tvm()  # before torch, beside which it takes half a second longer
        from tlmd.learn.demonstrations import read_replay
        from tlmd.learn.finetune import FineTuner
        from tlmd.tlm.torch_settings import best_device, use_threads

        train = self._config = TrainConfig.model_validate(config)
        os.nice(train.niceness)
        use_threads(train.threads or max(1, len(os.sched_getaffinity(0)) - 1))
        self._interrupted = self._ended = 0
        base, replay = _load(registry, 0), read_replay()
        self._new_tuner = partial(FineTuner, base, train, seed, best_device(), replay=replay)
        self._tuner = self._new_tuner()
        self._latest = 0

    def describe(self) -> dict[str, Any]:
        """It has no facts to report."""
        return {}

    def interrupt(self, version: int, at_once: bool) -> None:
        """End the training of a version soon; also if its order has not arrived yet.

        Unless `at_once`, it has its least time for optimiser steps first (``train.seconds``).
        """
        self._interrupted = version
        if at_once:
            self._ended = version

    def train(self, data: bytes, registry: ActorHandle[Any]) -> tuple[bytes, Any, bytes]:
        """Carry out a `TrainOrder`: answer, checkpoint, and held-out examples for the gate."""
        order = wire.unpack(TrainOrder, data)
        if order.fresh:
            self._tuner = self._new_tuner()
        stored = [wire.unpack(Record, data) for data in order.packed]
        self._tuner.add(order.tasks, [*stored, *order.records])
        if self._config.start == "latest" and order.current != self._latest:
            self._tuner.follow(
                _load(registry, order.current)
            )  # our latest was refused or rolled back
        with stage("train"):
            checkpoint, report = self._tuner.train(
                order.version,
                lambda: self._interrupted >= order.version,
                lambda: self._ended >= order.version,
            )
        self._latest = order.version
        answer = Trained(
            order.version, report.demonstrations, report.steps, report.loss, report.seconds
        )
        blob = np.frombuffer(checkpoints.to_bytes(checkpoint), np.uint8)
        return wire.pack(answer), blob, wire.pack(report.held_out)


def _load(registry: ActorHandle[Any], version: int) -> checkpoints.Checkpoint:
    blob = ray.get(registry.control.remote("blob", version))
    return checkpoints.from_bytes(blob.tobytes())
