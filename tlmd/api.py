"""The Python interface: plain functions around what the command line does."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd import config as configuration

if TYPE_CHECKING:
    from tlmd.daemon.tune import TuneResult

Path_ = str | PathLike[str]


def tune(
    model: str,
    *,
    input_shape: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = None,
    target: str = "native",
    trials: int = 16,
    time_budget: float | None = None,
    out: Path_ | None = None,
    seed: int = 0,
    state_dir: Path_ | None = None,
    config: Path_ | None = None,
    **settings: Any,
) -> TuneResult:
    """Tune `model` and return what ``tlmd tune`` writes.

    `model` is a file (``.onnx``, ``.pt2``), ``package.module:factory`` or a zoo name;
    `input_shape` one shape or one per input; `trials` are measurements per task; `time_budget`
    bounds the measuring in seconds; `settings` are dotted keys of the configuration, such as
    ``**{"measure.builders": 1}``. Raises `tlmd.errors.BadInput` and `tlmd.errors.Failed`.
    """
    flags = {"tune.trials": trials, "tune.seed": seed, **settings}
    loaded = configuration.load(Path(config) if config else None, flags)
    from tlmd.daemon import tune as tuning
    from tlmd.daemon.state import default_state_dir

    shapes = _shapes(input_shape)
    state = Path(state_dir) if state_dir else default_state_dir()
    request = tuning.Request(
        str(model), shapes, target, time_budget, Path(out) if out else None, state
    )
    return tuning.run(request, loaded)


def _shapes(shape: Any) -> tuple[tuple[int, ...], ...] | None:
    if shape is None:
        return None
    if shape and isinstance(shape[0], int):
        return (tuple(shape),)
    return tuple(tuple(one) for one in shape)
