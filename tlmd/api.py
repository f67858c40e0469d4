"""The Python interface: `tune`, and the daemon by `start` and `connect`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd import config as configuration

if TYPE_CHECKING:
    from tlmd.daemon.client import Daemon
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
    from tlmd.daemon.client import as_shapes

    request = tuning.Request(
        str(model),
        as_shapes(input_shape),
        target,
        time_budget,
        Path(out) if out else None,
        _state_dir(state_dir),
        Path(config) if config else None,
        flags,
    )
    return tuning.run(request, loaded)


def start(state_dir: Path_ | None = None, config: Path_ | None = None, **settings: Any) -> Daemon:
    """Start a daemon in the background; it ends with `stop`, the ``with`` block or this process.

    `config` is a TOML file, `settings` are dotted keys of it. The daemon is another process, so
    this works in a script, in a notebook and in a thread. Raises `tlmd.errors.BadInput` and
    `tlmd.errors.Failed`, also where a daemon runs on the state directory already (`connect` to it).

        with tlmd.start() as daemon:
            job = daemon.submit("resnet18", trials=16)
            job.wait()
            result = job.export("out")
    """
    configuration.load(Path(config) if config else None, settings)
    from tlmd.daemon import lifecycle

    return lifecycle.start(
        _state_dir(state_dir), Path(config) if config else None, settings, bond="owned"
    )


def connect(state_dir: Path_ | None = None) -> Daemon:
    """The daemon that runs on a state directory. Raises `tlmd.errors.NoDaemon`."""
    from tlmd.daemon import lifecycle

    return lifecycle.connect(_state_dir(state_dir))


def _state_dir(given: Path_ | None) -> Path:
    from tlmd.daemon.state import default_state_dir

    return Path(given) if given else default_state_dir()
