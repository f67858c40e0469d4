"""The Python interface: `tune` runs one job, `start` and `connect` return a daemon."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd import config as configuration

if TYPE_CHECKING:
    from tlmd.client.connection import Daemon
    from tlmd.client.tune_result import TuneResult

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
    """Tune `model` and return the results that ``tlmd tune`` writes.

    `model` is a file (``.onnx``, ``.pt2``), ``package.module:factory`` or a name from the zoo.
    `input_shape` is one shape, or one shape per input. `trials` is the number of measurements per
    task. Measuring ends after `time_budget` seconds. `settings` are dotted keys of the
    configuration, such as ``**{"measure.builders": 1}``.

    Raises `tlmd.errors.BadInput` and `tlmd.errors.Failed`.
    """
    flags = {"tune.trials": trials, "tune.seed": seed, **settings}
    loaded = configuration.load(Path(config) if config else None, flags)
    from tlmd.client import tune as tuning
    from tlmd.client.connection import as_shapes
    from tlmd.client.tune_request import TuneRequest
    from tlmd.model_spec import ModelSpec

    request = TuneRequest(
        ModelSpec(str(model), as_shapes(input_shape)),
        target=target,
        time_budget=time_budget,
        out=Path(out) if out else None,
        state_dir=_state_dir(state_dir),
        config=Path(config) if config else None,
        flags=flags,
    )
    return tuning.run(request, loaded)


def start(state_dir: Path_ | None = None, config: Path_ | None = None, **settings: Any) -> Daemon:
    """Start a daemon in the background. It ends with `stop`, the ``with`` block or this process.

    `config` is a TOML file; `settings` are dotted keys of it. The daemon is a separate process, so
    `start` works in a script, in a notebook and in a thread.

    Raises `tlmd.errors.BadInput` and `tlmd.errors.Failed`. `Failed` is also raised if a daemon
    already runs on the state directory; use `connect` then.

        with tlmd.start() as daemon:
            job = daemon.submit("resnet18", trials=16)
            job.wait()
            result = job.export("out")
    """
    configuration.load(Path(config) if config else None, settings)
    from tlmd.client import lifecycle

    return lifecycle.start(
        _state_dir(state_dir), Path(config) if config else None, settings, ownership="owned"
    )


def connect(state_dir: Path_ | None = None) -> Daemon:
    """Return the daemon that runs on a state directory. Raises `tlmd.errors.NoDaemon`."""
    from tlmd.client import lifecycle

    return lifecycle.connect(_state_dir(state_dir))


def _state_dir(given: Path_ | None) -> Path:
    from tlmd.state_dir import default_state_dir

    return Path(given) if given else default_state_dir()
