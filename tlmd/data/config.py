"""Configuration: one tree; TOML file < environment < flags. An unknown key is an error.

The environment variable ``TLMD_MEASURE__BUILDERS=1`` sets ``measure.builders``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from tlmd.data.config_file import explain, put, read, rename
from tlmd.data.errors import BadInput
from tlmd.data.job_request import Priority, Weight
from tlmd.data.measure_config import MeasureConfig as MeasureConfig
from tlmd.data.measure_config import Section

SHIPPED = Path(__file__).parents[1] / "pretrained"
"""TLM-base, the checkpoint that ships."""

_PREFIX = "TLMD_"
# Set by other parts of tlmd for their own processes; not configuration.
_RESERVED = {"TLMD_STATE_DIR"}


class GenerateConfig(Section):
    """Writing candidates."""

    checkpoint: str = ""
    """Folder of TLM-base. Empty: the checkpoint that ships with tlmd."""

    oversample: int = Field(3, ge=1)
    """Candidates that are applied for each one that is measured; the cost model picks. It falls to
    `oversample_min` while slots wait for candidates, and otherwise rises to `oversample_max`."""

    oversample_min: int = Field(2, ge=1)
    """`oversample` at least."""

    oversample_max: int = Field(16, ge=1)
    """`oversample` at most."""

    wide: int = Field(6, ge=1)
    """Candidates that are written for each one that is applied; its decisions alone are ranked."""

    drawn: float = Field(0.9, ge=0, le=1)
    """Share of these that are drawn at random, where they do not refine a program; the TLM writes
    the rest. 1: the TLM writes none."""

    generations: int = Field(6, ge=0)
    """How often the best of these are changed a little and ranked again."""

    refined: float = Field(0.5, ge=0, le=1)
    """Share of the written candidates that are small changes of the best programs so far."""

    incumbents: int = Field(3, ge=1)
    """How many of the best programs are changed in this way."""

    uniform: float = Field(0.2, ge=0, le=1)
    """Share of the applied candidates that are drawn at random. The TLM writes the rest."""

    explore: float = Field(0.12, ge=0, le=1)
    """Share of the measured candidates that are drawn at random from those that were written."""

    timeout: float = Field(600.0, gt=0)
    """Seconds for one order of a generator; then the generator is replaced."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the TLM."""


class TuneConfig(Section):
    """One job."""

    trials: int = Field(16, ge=1)
    """Measurements per task."""

    priority: Priority = 0
    """While a job of a higher priority wants candidates, this one gets none."""

    weight: Weight = 1.0
    """Jobs of one priority share the measuring in proportion to their weights."""

    seed: int = 0
    """Seed of all random choices of the generators and the trainer."""


class PipelineConfig(Section):
    """The i+2 pipeline."""

    batch: int = Field(32, ge=1)
    """Candidates per batch and slot."""

    per_task: int = Field(8, ge=1)
    """Candidates of one task in a batch, at most."""

    chunk: int = Field(4, ge=1)
    """Candidates that are sent to a slot in one order."""

    depth: int = Field(2, ge=1)
    """Orders that a slot holds at the same time, so that it never waits for the daemon."""

    strict: bool = False
    """Follow the table of the paper exactly: measuring waits for training."""

    window: int = Field(20_000, ge=1)
    """Measured candidates over which the gain of a campaign is taken."""

    gain: float = Field(0.01, gt=0, lt=1)
    """A campaign ends when the last `window` candidates improved the weighted sum of the best times
    by less than this share."""


class TrainConfig(Section):
    """Fine-tuning on what was measured, in every step of the pipeline."""

    enabled: bool = True
    """Whether there is a trainer at all."""

    policy: Literal["best", "top", "quality"] = "quality"
    """Which records become demonstrations (`tlmd.learn.demonstrations`)."""

    start: Literal["base", "latest"] = "base"
    """``base``: each round starts from TLM-base, as in the paper. ``latest``: from the newest."""

    steps: int = Field(60, ge=0)
    """Optimiser steps of one round."""

    seconds: float = Field(20.0, ge=0)
    """A round may be stopped early for the next batch, but not before this many seconds."""

    learning_rate: float = Field(3e-5, gt=0)
    """Larger ones forget what TLM-base knows of other tasks (`benchmarks/learning/learning.md`)."""

    rounds: int = Field(20, ge=0)
    """New trees of the cost model in one round."""

    window: int = Field(20_000, ge=1)
    """The newest records that the trainer knows; older ones stay in the store. 20,000 need about
    300 MB of its memory."""

    timeout: float = Field(3600.0, gt=0)
    """Seconds for one round; then the trainer is replaced."""

    threads: int = Field(0, ge=0)
    """0: all cores that it may use, but one."""

    niceness: int = Field(5, ge=0, le=19)
    """Niceness of the trainer's process, on top of the daemon's."""


class RegistryConfig(Section):
    """Checkpoints: which are kept, and when a new one is refused."""

    keep: int = Field(5, ge=1)
    """The newest versions that are kept. Promoted versions are always kept."""

    tolerated_nats: float = Field(0.5, ge=0)
    """How much higher the loss of good held-out candidates may be, in nats per choice."""

    timeout: float = Field(600.0, gt=0)
    """Seconds for the evaluation of a new version; then the registry is replaced."""

    tolerated_order: float = Field(0.05, ge=0)
    """The share by which fewer pairs of held-out candidates may be in the right order."""


class DaemonConfig(Section):
    """The service."""

    port: int = Field(0, ge=0, le=65535)
    """Port on loopback. 0: any free one."""

    generators: int = Field(0, ge=0)
    """Generator actors. 0: as many as the cores allow."""

    niceness: int = Field(15, ge=0, le=19)
    """Niceness of a daemon that stays and of its processes: the user's programs come first. The
    daemon of `tlmd tune`, and those on a cluster, have the normal priority."""

    keep_jobs: int = Field(1000, ge=0)
    """Finished jobs that are kept, with the files of their tasks; older ones are removed, their
    records are not. 0: all."""

    log_bytes: int = Field(16 << 20, ge=1 << 16)
    """Size at which a log or the trace of events is put aside and begun anew."""

    keep_logs: int = Field(3, ge=0)
    """How many of each that were put aside are kept (``daemon.log.1`` is the newest)."""


class CheckConfig(Section):
    """The limits of the process that loads, lowers and compiles a user's model."""

    stage_seconds: float = Field(900.0, gt=0)
    """Longest time of one stage, such as lowering the model."""

    memory_share: float = Field(0.9, gt=0, le=1)
    """Share of the memory that is free when the process starts."""


class Config(Section):
    """The whole tree; `Config()` holds the defaults."""

    measure: MeasureConfig = MeasureConfig()
    generate: GenerateConfig = GenerateConfig()
    tune: TuneConfig = TuneConfig()
    pipeline: PipelineConfig = PipelineConfig()
    train: TrainConfig = TrainConfig()
    registry: RegistryConfig = RegistryConfig()
    daemon: DaemonConfig = DaemonConfig()
    check: CheckConfig = CheckConfig()


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Read the configuration; `flags` are dotted keys such as ``tune.trials``, None is not set.

    Raises `BadInput` with the key, the reason and, for an unknown key, the nearest known one.
    """
    tree: dict[str, Any] = read(path) if path else {}
    for name, value in environment.items():
        if name.startswith(_PREFIX) and "__" in name and name not in _RESERVED:
            put(tree, name[len(_PREFIX) :].lower().split("__"), value)
    for key, value in (flags or {}).items():
        if value is not None:
            put(tree, key.split("."), value)
    rename(tree)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise BadInput(explain(error, path, known_keys())) from error


def known_keys() -> list[str]:
    """Every dotted key, sections included."""
    keys: list[str] = []
    for section, info in Config.model_fields.items():
        keys.append(section)
        keys += [f"{section}.{name}" for name in info.default.__class__.model_fields]
    return keys
