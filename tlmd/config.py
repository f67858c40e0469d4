"""Configuration: one tree; TOML file < environment < flags. An unknown key is an error.

Environment variables are named after the path: ``TLMD_MEASURE__BUILDERS=1`` sets
``measure.builders``.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tlmd.errors import BadInput

SHIPPED = Path(__file__).parent / "pretrained"
"""TLM-base, the checkpoint that ships."""

_PREFIX = "TLMD_"
# Set by other parts of tlmd for their own processes; not configuration.
_RESERVED = {"TLMD_STATE_DIR"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class MeasureConfig(_Section):
    """Building and timing. Times are seconds, sizes bytes.

    This machine has `slots` of `run_cores` cores each (0: half of the machine, shared among them).
    With `lend`, candidates are built on the run cores too while nothing is timed there. `cache` is
    ``cold`` where the model's weights are evicted before every timed run, as the other layers do
    it in a model, or ``hot`` where they stay (``python -m benchmarks.prediction`` compares them).
    """

    slots: int = Field(1, ge=1)
    run_cores: int = Field(0, ge=0)
    builders: int = Field(3, ge=1)
    repeats: int = Field(7, ge=1)
    build_timeout: float = Field(30.0, gt=0)
    run_timeout: float = Field(20.0, gt=0)
    baseline_timeout: float = Field(120.0, gt=0)
    budget: float = Field(1.5, gt=0)
    memory_bytes: int = Field(4 << 30, ge=0)
    lend: bool = True
    cache: Literal["cold", "hot"] = "cold"


class GenerateConfig(_Section):
    """Writing candidates. An empty checkpoint is the one that ships.

    For each candidate that is measured `over` are written and ranked; between `least` and `most`
    when the generators have too little or too much time. Of them `refined` (a share) are neighbours
    of the best `incumbents`, `uniform` are random, the rest is the TLM's; of those that are kept
    `explore` are not the ranker's choice.
    """

    checkpoint: str = ""
    over: int = Field(8, ge=1)
    least: int = Field(3, ge=1)
    most: int = Field(16, ge=1)
    refined: float = Field(0.5, ge=0, le=1)
    uniform: float = Field(0.2, ge=0, le=1)
    explore: float = Field(0.12, ge=0, le=1)
    incumbents: int = Field(3, ge=1)
    temperature: float = Field(1.0, gt=0)


class TuneConfig(_Section):
    """One job: measurements per task."""

    trials: int = Field(16, ge=1)
    seed: int = 0


class PipelineConfig(_Section):
    """The i+2 pipeline: `batch` candidates per step and slot, in turns of `turn` per task.

    `strict` follows the paper's table to the letter: measuring waits for training. A campaign has
    converged when it gains less than `gain` (a share) over `window` measured candidates.
    """

    batch: int = Field(32, ge=1)
    turn: int = Field(8, ge=1)
    chunk: int = Field(4, ge=1)
    depth: int = Field(2, ge=1)
    strict: bool = False
    window: int = Field(20_000, ge=1)
    gain: float = Field(0.01, gt=0, lt=1)


class TrainConfig(_Section):
    """Fine-tuning on what was measured, every step of the pipeline.

    `policy` chooses the demonstrations (best, top, quality), `start` where each round begins
    (base: TLM-base, as in the paper; latest). A round takes `steps` optimiser steps; it may be cut
    short for the next batch after `seconds`. 0 threads: all cores that no slot owns but one.
    """

    enabled: bool = True
    policy: Literal["best", "top", "quality"] = "quality"
    start: Literal["base", "latest"] = "base"
    steps: int = Field(60, ge=0)
    learning_rate: float = Field(3e-4, gt=0)
    rounds: int = Field(20, ge=0)
    seconds: float = Field(20.0, ge=0)
    threads: int = Field(0, ge=0)
    niceness: int = Field(5, ge=0, le=19)


class RegistryConfig(_Section):
    """Checkpoints: the last `keep` and all promoted ones stay; what the gate tolerates.

    A new checkpoint may be worse on held-out demonstrations by `tolerated_nats` per decision, and
    by `tolerated_legal` (a share) in how often it would stay legal without a mask.
    """

    keep: int = Field(5, ge=1)
    tolerated_nats: float = Field(0.1, ge=0)
    tolerated_legal: float = Field(0.02, ge=0)


class DaemonConfig(_Section):
    """The service: a port on loopback (0: any free one), generators (0: by the cores there are)."""

    port: int = Field(0, ge=0, le=65535)
    generators: int = Field(0, ge=0)


class Config(_Section):
    """The whole tree; `Config()` holds the defaults."""

    measure: MeasureConfig = MeasureConfig()
    generate: GenerateConfig = GenerateConfig()
    tune: TuneConfig = TuneConfig()
    pipeline: PipelineConfig = PipelineConfig()
    train: TrainConfig = TrainConfig()
    registry: RegistryConfig = RegistryConfig()
    daemon: DaemonConfig = DaemonConfig()


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Read the configuration; `flags` are dotted keys such as ``tune.trials``, None is not set.

    Raises `BadInput` with the key, the reason and, for an unknown key, the nearest known one.
    """
    tree: dict[str, Any] = _read(path) if path else {}
    for name, value in environment.items():
        if name.startswith(_PREFIX) and "__" in name and name not in _RESERVED:
            _put(tree, name[len(_PREFIX) :].lower().split("__"), value)
    for key, value in (flags or {}).items():
        if value is not None:
            _put(tree, key.split("."), value)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise BadInput(_explain(error, path)) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}") from error


def _put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise BadInput(f"configuration key {'.'.join(keys)!r} is not a section")
    tree[keys[-1]] = value


def _explain(error: ValidationError, path: Path | None) -> str:
    """One line about the first thing that is wrong."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    where = f"in {path}" if path else "in the configuration"
    if first["type"] != "extra_forbidden":
        return f"configuration key {key!r} {where}: {first['msg'].lower()} (got {first['input']!r})"
    near = difflib.get_close_matches(key, known_keys(), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown configuration key {key!r} {where}{hint}"


def known_keys() -> list[str]:
    """Every dotted key, sections included."""
    keys: list[str] = []
    for section, info in Config.model_fields.items():
        keys.append(section)
        keys += [f"{section}.{name}" for name in info.default.__class__.model_fields]
    return keys
