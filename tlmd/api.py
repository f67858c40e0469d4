"""The Python interface: `tune` runs one job, `load` its result, `start` returns a daemon."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data import config as configuration

if TYPE_CHECKING:
    from tlmd.client.connection import Daemon
    from tlmd.data.job_request import JobRequest
    from tlmd.export.compiled_model import CompiledModel
    from tlmd.export.tune_result import TuneResult

StrPath = str | PathLike[str]


def tune(
    model: str,
    *,
    out: StrPath | None = None,
    seed: int = 0,
    state_dir: StrPath | None = None,
    config: StrPath | None = None,
    **options: Any,
) -> TuneResult:
    """Tune `model` and return the results that ``tlmd tune`` writes.

    `options` are the fields of `JobRequest` (`tlmd.data.job_request`), which are the flags of
    ``tlmd tune``: ``trials=16`` (measurements per task), ``time_budget=60.0`` (seconds),
    ``precision="bf16"``, ``input_shape=(1, 3, 224, 224)`` (one shape, or one per input) and so on;
    `tlmd help python` lists them. Others are dotted keys of the configuration, such as
    ``**{"measure.builders": 1}``.

    Raises `tlmd.errors.BadInput` and `tlmd.errors.Failed`.
    """
    request, settings = _request(model, options)
    flags = {"tune.seed": seed, **settings}
    loaded = configuration.load(_path(config), flags)
    from tlmd.client import tune as tuning
    from tlmd.client.tune_request import TuneRequest

    call = TuneRequest(
        request.with_defaults(loaded.tune),
        out=_path(out),
        state_dir=_state_dir(state_dir),
        config=_path(config),
        flags=flags,
    )
    return tuning.run(call, loaded)


def check(
    model: str,
    *,
    state_dir: StrPath | None = None,
    config: StrPath | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check that tlmd can tune `model`, and return what is known of it. Nothing is measured.

    The arguments are those of `tune`. The result has the model's inputs and outputs, the number of
    its tasks, and the error of its compiled outputs. Raises `tlmd.errors.BadInput` with the
    cause if the model cannot be tuned.
    """
    request, settings = _request(model, options)
    loaded = configuration.load(_path(config), settings)
    from tlmd.client import check as checking
    from tlmd.data.state_dir import make_state_dir

    log = make_state_dir(_state_dir(state_dir)) / "logs" / "check.log"
    return checking.check(request, loaded, log, lambda _stage: None)


def _request(model: str, options: dict[str, Any]) -> tuple[JobRequest, dict[str, Any]]:
    """The job of a call, and its settings."""
    from tlmd.data.job_request import JobRequest

    return JobRequest.from_keywords(model, options)


def load(out: StrPath) -> CompiledModel:
    """Return the tuned model in the folder `out` as a function.

    It takes numpy arrays or torch tensors as the original model takes its inputs, by position or by
    name, and returns what the original returns: the same nesting of tuples, dicts and dataclasses.

    Raises `tlmd.errors.BadInput` if the folder holds no tuned model.

        model = tlmd.load("out")
        logits = model(input_ids=ids, attention_mask=mask).logits
    """
    from tlmd.export.compiled_model import CompiledModel

    return CompiledModel(Path(out))


def start(
    state_dir: StrPath | None = None, config: StrPath | None = None, **settings: Any
) -> Daemon:
    """Start a daemon in the background. It ends with `stop`, the ``with`` block or this process.

    `config` is a TOML file; `settings` are dotted keys of it. The daemon is a separate process, so
    `start` works in a script, in a notebook and in a thread.

    Raises `tlmd.errors.BadInput` and `tlmd.errors.Failed`. `Failed` is also raised if
    a daemon already runs on the state directory; use `connect` then.

        with tlmd.start() as daemon:
            job = daemon.submit("resnet18", trials=16)
            job.wait()
            result = job.export("out")
    """
    configuration.load(_path(config), settings)
    from tlmd.client import lifecycle

    return lifecycle.start(_state_dir(state_dir), _path(config), settings, ownership="owned")


def connect(state_dir: StrPath | None = None) -> Daemon:
    """Return the daemon that runs on a state directory. Raises `tlmd.errors.NoDaemon`."""
    from tlmd.client import lifecycle

    return lifecycle.connect(_state_dir(state_dir))


def _path(given: StrPath | None) -> Path | None:
    return Path(given) if given else None


def _state_dir(given: StrPath | None) -> Path:
    from tlmd.data.state_dir import default_state_dir

    return Path(given) if given else default_state_dir()
