"""The Python interface: `tune` runs one job, `load` its result, `start` returns a daemon."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data import config as configuration
from tlmd.data.model_spec import FP32

if TYPE_CHECKING:
    from tlmd.client.connection import Daemon
    from tlmd.export.compiled_model import CompiledModel
    from tlmd.export.tune_result import TuneResult

Path_ = str | PathLike[str]


def tune(
    model: str,
    *,
    input_shape: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = None,
    task: str = "",
    weights: Path_ = "",
    strict_numerics: bool = False,
    precision: str = FP32,
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

    `model` is a file (``.onnx``, ``.pt2``), a directory of transformers (``config.json``),
    ``package.module:factory``, ``torchvision:NAME``, ``timm:NAME``, ``hf:MODEL_TYPE`` or a name
    from the zoo. `input_shape` is one shape, or one shape per input. `task` says what a model of
    transformers is used for, if its configuration does not. `weights` is a .safetensors file for
    the model of a factory. `strict_numerics` allows only programs that compute as the model says,
    without Winograd's and Strassen's algorithms. `precision`: ``bf16`` also allows GEMMs,
    convolutions and attention that round what they multiply to bfloat16; with ``int8`` quantised
    models (QDQ) multiply integers. `trials` is the number of measurements per
    task. Measuring ends after `time_budget` seconds. `settings` are dotted keys of the
    configuration, such as ``**{"measure.builders": 1}``.

    Raises `tlmd.data.errors.BadInput` and `tlmd.data.errors.Failed`.
    """
    flags = {"tune.trials": trials, "tune.seed": seed, **settings}
    loaded = configuration.load(Path(config) if config else None, flags)
    from tlmd.client import tune as tuning
    from tlmd.client.connection import as_shapes
    from tlmd.client.tune_request import TuneRequest
    from tlmd.data.model_spec import ModelSpec

    request = TuneRequest(
        ModelSpec(
            str(model), as_shapes(input_shape), task, str(weights), strict_numerics, precision
        ),
        target=target,
        time_budget=time_budget,
        out=Path(out) if out else None,
        state_dir=_state_dir(state_dir),
        config=Path(config) if config else None,
        flags=flags,
    )
    return tuning.run(request, loaded)


def check(
    model: str,
    *,
    input_shape: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = None,
    task: str = "",
    weights: Path_ = "",
    target: str = "native",
    state_dir: Path_ | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Check that tlmd can tune `model`, and return what is known of it. Nothing is measured.

    The arguments are those of `tune`. The result has the model's inputs and outputs, the number of
    its tasks, and the error of its compiled outputs. Raises `tlmd.data.errors.BadInput` with the
    cause if the model cannot be tuned.
    """
    loaded = configuration.load(None, settings)
    from tlmd.client import check as checking
    from tlmd.client.connection import as_shapes
    from tlmd.data.model_spec import ModelSpec
    from tlmd.data.state_dir import make_state_dir

    spec = ModelSpec(str(model), as_shapes(input_shape), task, str(weights))
    log = make_state_dir(_state_dir(state_dir)) / "logs" / "check.log"
    return checking.check(spec, target, loaded, log, lambda _stage: None)


def load(out: Path_) -> CompiledModel:
    """Return the tuned model in the folder `out` as a function.

    It takes numpy arrays or torch tensors as the original model takes its inputs, by position or by
    name, and returns what the original returns: the same nesting of tuples, dicts and dataclasses.

    Raises `tlmd.data.errors.BadInput` if the folder holds no tuned model.

        model = tlmd.load("out")
        logits = model(input_ids=ids, attention_mask=mask).logits
    """
    from tlmd.export.compiled_model import CompiledModel

    return CompiledModel(Path(out))


def start(state_dir: Path_ | None = None, config: Path_ | None = None, **settings: Any) -> Daemon:
    """Start a daemon in the background. It ends with `stop`, the ``with`` block or this process.

    `config` is a TOML file; `settings` are dotted keys of it. The daemon is a separate process, so
    `start` works in a script, in a notebook and in a thread.

    Raises `tlmd.data.errors.BadInput` and `tlmd.data.errors.Failed`. `Failed` is also raised if
    a daemon already runs on the state directory; use `connect` then.

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
    """Return the daemon that runs on a state directory. Raises `tlmd.data.errors.NoDaemon`."""
    from tlmd.client import lifecycle

    return lifecycle.connect(_state_dir(state_dir))


def _state_dir(given: Path_ | None) -> Path:
    from tlmd.data.state_dir import default_state_dir

    return Path(given) if given else default_state_dir()
