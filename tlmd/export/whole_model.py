"""The whole model after tuning: export it with a program that runs it, and time it.

`python -m tlmd.export.whole_model PLAN.json` is the process that times. It is pinned to the run
cores, runs the untuned model, the tuned model and PyTorch alternately, and prints one line of JSON:
an empty object where it cannot run the original, and was given no untuned model instead.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmd.data import wire
from tlmd.data.errors import Failed
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo
from tlmd.export import compiled_model, model_in_parts, run_scripts, timing_process
from tlmd.export.library import CPU, Entry, load_machine
from tlmd.models.pytorch.state import seeded
from tlmd.models.sources import SourceModel

if TYPE_CHECKING:
    import torch
    from tvm import relax

_FULL_BYTES = 1 << 20  # if less disk is free, linking failed because the disk is full


@dataclass(frozen=True)
class WholeModelTimes:
    """Times of the best of the interleaved runs in milliseconds, and the error of the outputs."""

    untuned_ms: float | None
    """None: it was not to be timed."""

    tuned_ms: float

    pytorch_ms: float | None
    """None: not a PyTorch model."""

    max_abs_err: float | None
    """Largest difference between the outputs of the tuned model and of the original (of the untuned
    model, if the original cannot be run). None: the original gives other outputs each time."""


def link(executable: relax.VMExecutable, library: Path) -> Path:
    """Write a compiled model as a shared library; its path. Raises `Failed`."""
    try:
        executable.export_library(str(library))
    except OSError as error:
        raise Failed(f"cannot write {library}: {error.strerror or error}") from error
    except RuntimeError as error:
        if "No space left" in str(error) or shutil.disk_usage(library.parent).free < _FULL_BYTES:
            raise Failed(f"no space left to write {library}; free some disk") from error
        reason = str(error).strip().splitlines()[-1][:200]
        raise Failed(f"linking {library} failed: {reason}; is gcc installed?") from error
    return library


def write_runners(
    directory: Path,
    source: SourceModel,
    entries: Sequence[Entry],
    target: TargetInfo,
    framework: str = "",
) -> None:
    """Write ``run.py``, which runs the first entry, and ``model.json`` for `tlmd.load`.

    The libraries were compiled for `target`. Of a model in parts, `framework` runs the others.
    Raises `Failed` if writing fails.
    """
    try:
        text = run_scripts.run_py(source.inputs, target.cores, target.device, framework)
        (directory / "run.py").write_text(text)
        compiled_model.write(directory, source, entries, target.cores, target.device)
    except OSError as error:
        raise Failed(f"cannot write to {directory}: {error.strerror or error}") from error


def measure(
    untuned: Callable[[], Entry],
    tuned: Entry,
    spec: ModelSpec,
    inputs: list[np.ndarray],
    run_cores: tuple[int, ...],
    scratch: Path,
    device: str = CPU,
    times_untuned: bool = True,
    repeatable: bool = True,
) -> WholeModelTimes:
    """Time both models and the original in one process that is pinned to `run_cores`.

    All run on `device`, with their inputs there; the paths in entries are absolute. `spec` is the
    model, which the process loads again to run the original. `untuned` gives the untuned model.
    Without `times_untuned` it is called, and that is run, only where the original cannot be run.
    Outputs are not compared if the original is not `repeatable`. Raises `Failed` if the process
    fails, or if outputs of the tuned model are wrong (not finite).
    """
    plan: dict[str, Any] = {
        "tuned": tuned,
        "spec": wire.pack(spec).hex(),
        "device": device,
        "times_untuned": times_untuned,
        "repeatable": repeatable,
    }

    def run(entry: Entry | None) -> Any:
        plan["untuned"] = entry
        module, doing = "tlmd.export.whole_model", "timing the whole model"
        return timing_process.run(module, plan, inputs, run_cores, scratch, doing)

    measured = run(untuned() if times_untuned else None)
    if not measured:  # the original cannot be run
        measured = run(untuned())
    times = WholeModelTimes(**measured)
    if times.max_abs_err is not None and not math.isfinite(times.max_abs_err):
        raise Failed(
            "the tuned model's outputs differ from those of the original; nothing is exported"
        )
    return times


def _main(plan_path: str) -> None:
    plan, inputs = timing_process.begin(plan_path)
    spec = wire.unpack(ModelSpec, bytes.fromhex(plan["spec"]))
    device = plan["device"]
    original, torch_run = _original(spec, inputs, len(plan["cores"]), device)
    if original is None and not plan["untuned"]:
        print("{}")  # nothing says what the outputs are
        return
    runs: dict[str, Callable[[], Any]] = {
        name: partial(_compiled(plan[name], device, len(plan["cores"])), inputs)
        for name in ("tuned", "untuned")
        if plan[name]
    }
    error = None
    with _same_random_numbers():
        outputs = runs["tuned"]()
    if plan["repeatable"]:
        error = _largest_error(outputs, runs["untuned"]() if original is None else original)
    if not plan["times_untuned"]:
        runs.pop("untuned", None)
    if torch_run is not None:
        runs["pytorch"] = torch_run
    best = _interleave(runs)
    times = WholeModelTimes(best.get("untuned"), best["tuned"], best.get("pytorch"), error)
    print(json.dumps(asdict(times)))


def _same_random_numbers() -> AbstractContextManager[None]:
    """The context in which the original ran, if it is of PyTorch."""
    return seeded() if "torch" in sys.modules else nullcontext()


def _interleave(runs: dict[str, Callable[[], Any]], budget_s: float = 4.0) -> dict[str, float]:
    """Run all alternately, and return the best time of each in milliseconds.

    One that has used its share of the budget is not run again: unscheduled programs of large
    models take minutes.
    """
    best = dict.fromkeys(runs, float("inf"))
    spent = dict.fromkeys(runs, 0.0)
    for number in range(60):
        for name, run in runs.items():
            if number and spent[name] > budget_s / len(runs):
                continue
            started_at = time.perf_counter()
            run()
            seconds = time.perf_counter() - started_at
            spent[name] += seconds
            best[name] = min(best[name], seconds * 1e3)
    return best


def _compiled(entry: Entry, device: str, threads: int) -> Callable[[Any], list[np.ndarray]]:
    """A function that runs a model whose inputs stay on the device."""
    import tvm

    if "parts" in entry:
        return model_in_parts.load(entry, Path(), device, threads)
    machine = load_machine(Path(entry["file"]), device)
    placed, tensors = tvm.device(device), dict[int, Any]()

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        if not tensors:
            tensors.update(enumerate(tvm.runtime.tensor(a, placed) for a in inputs))
        outputs = machine["main"](*tensors.values())
        listed = [outputs] if hasattr(outputs, "numpy") else list(outputs)
        return [o.numpy() for o in listed]

    return run


def _original(
    spec: ModelSpec, inputs: list[np.ndarray], threads: int, device: str
) -> tuple[list[np.ndarray] | None, Callable[[], Any] | None]:
    """The outputs of the original, and a function that runs it in PyTorch eager mode on `device`.

    The outputs are None if the original cannot be run, the function also if it is not of PyTorch,
    or if this PyTorch has no such device.
    """
    from tlmd.models import frontends

    reference, module = frontends.original(spec)
    if reference is None:
        return None, None
    import torch

    torch.set_num_threads(threads)
    try:
        outputs = [np.asarray(o) for o in reference(*inputs)]
    except Exception:  # random inputs need not be valid for it; that was told at the start
        return None, None
    return outputs, None if module is None else _in_eager_mode(module, inputs, device)


def _in_eager_mode(
    module: torch.nn.Module, inputs: list[np.ndarray], device: str
) -> Callable[[], list[np.ndarray]] | None:
    """A function that runs a PyTorch module on a device, where its weights and inputs stay."""
    import torch

    from tlmd.models.pytorch.tensors import to_numpy, to_torch

    if device != CPU and not torch.cuda.is_available():
        return None
    tensors = [to_torch(array).to(device) for array in inputs]
    module.to(device)

    def run() -> list[np.ndarray]:
        with torch.no_grad():
            return [to_numpy(output) for output in module(*tensors)]

    return run


def _largest_error(actual: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest absolute error; infinite if values differ and one of them is not finite."""
    pairs = zip(actual, expected, strict=True)
    return max((_error(a.astype(np.float64), e.astype(np.float64)) for a, e in pairs), default=0.0)


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        distance = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
    return float(distance.max(initial=0.0))


if __name__ == "__main__":
    _main(sys.argv[1])
