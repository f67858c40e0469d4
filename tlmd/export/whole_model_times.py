"""The times of a whole model: tuned, untuned and in PyTorch, which run alternately.

`python -m tlmd.export.whole_model_times PLAN.json` is the process that times. It loads the original
while the model is compiled.
"""

from __future__ import annotations

import math
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
from tlmd.export import model_in_parts, timing_process
from tlmd.export.library import CPU, Entry, load_machine
from tlmd.export.timing_process import TimingProcess
from tlmd.measure.timing import peak
from tlmd.measure.timing.peak import Roofline
from tlmd.models.pytorch.state import seeded

if TYPE_CHECKING:
    import torch


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


class WholeModelTimer(TimingProcess):
    """A process that times one model and the original on `run_cores`.

    All run on `device`, with their inputs there. `spec` is the model, which the process loads again
    to run the original. `scratch` is for its files. It begins at once, on the cores of this
    process, and uses the run cores when it is asked to time.
    """

    def __init__(
        self,
        spec: ModelSpec,
        inputs: Sequence[np.ndarray],
        run_cores: tuple[int, ...],
        scratch: Path,
        device: str = CPU,
    ) -> None:
        plan = {"spec": wire.pack(spec).hex(), "device": device}
        module, doing = "tlmd.export.whole_model_times", "timing the whole model"
        super().__init__(module, plan, inputs, run_cores, scratch, doing)

    def roofline(self, target: TargetInfo) -> Roofline:
        """What the run cores can do. Raises `Failed`."""
        return Roofline.from_plain(self.ask({"roofline": target.spec}))

    def measure(
        self,
        untuned: Callable[[], Entry],
        tuned: Entry,
        times_untuned: bool = True,
        repeatable: bool = True,
    ) -> WholeModelTimes:
        """Time both models and the original; the paths in entries are absolute.

        `untuned` gives the untuned model. Without `times_untuned` it is called, and that is run,
        only where the original cannot be run. Outputs are not compared if the original is not
        `repeatable`. Raises `Failed` if the process fails, or if outputs of the tuned model are
        wrong (not finite).
        """
        request = {"tuned": tuned, "times_untuned": times_untuned, "repeatable": repeatable}
        measured = self.ask(request | {"untuned": untuned() if times_untuned else None})
        if not measured:  # the original cannot be run
            measured = self.ask(request | {"untuned": untuned()})
        times = WholeModelTimes(**measured)
        if times.max_abs_err is not None and not math.isfinite(times.max_abs_err):
            raise Failed(
                "the tuned model's outputs differ from those of the original; nothing is exported"
            )
        return times


def _main(plan_path: str) -> None:
    plan, inputs = timing_process.begin(plan_path)
    spec = wire.unpack(ModelSpec, bytes.fromhex(plan["spec"]))
    original = _Original(spec, inputs, len(plan["cores"]), plan["device"])
    for request in timing_process.requests(plan):
        if "roofline" in request:
            timing_process.answer(peak.roofline(request["roofline"], tuple(plan["cores"])))
        else:
            times = _times(original, inputs, plan, request)
            timing_process.answer(asdict(times) if times else {})


def _times(
    original: _Original, inputs: list[np.ndarray], plan: dict[str, Any], request: dict[str, Any]
) -> WholeModelTimes | None:
    """None if nothing says what the outputs are."""
    outputs, torch_run = original.run()
    if outputs is None and not request["untuned"]:
        return None
    runs: dict[str, Callable[[], Any]] = {
        name: partial(_compiled(request[name], plan["device"], len(plan["cores"])), inputs)
        for name in ("tuned", "untuned")
        if request[name]
    }
    error = None
    with _same_random_numbers():
        found = runs["tuned"]()
    if request["repeatable"]:
        error = _largest_error(found, runs["untuned"]() if outputs is None else outputs)
    if not request["times_untuned"]:
        runs.pop("untuned", None)
    if torch_run is not None:
        runs["pytorch"] = torch_run
    best = _interleave(runs)
    return WholeModelTimes(best.get("untuned"), best["tuned"], best.get("pytorch"), error)


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


class _Original:
    """The model as the user has written it."""

    def __init__(
        self, spec: ModelSpec, inputs: list[np.ndarray], threads: int, device: str
    ) -> None:
        from tlmd.models import frontends

        self._inputs, self._threads, self._device = inputs, threads, device
        self._reference, self._module = frontends.original(spec)

    def run(self) -> tuple[list[np.ndarray] | None, Callable[[], Any] | None]:
        """Its outputs, and a function that runs it in PyTorch eager mode on the device.

        The outputs are None if it cannot be run, the function also if it is not of PyTorch, or if
        this PyTorch has no such device.
        """
        if self._reference is None:
            return None, None
        import torch

        torch.set_num_threads(self._threads)
        try:
            outputs = [np.asarray(output) for output in self._reference(*self._inputs)]
        except Exception:  # random inputs need not be valid for it; that was told at the start
            return None, None
        if self._module is None:
            return outputs, None
        return outputs, _in_eager_mode(self._module, self._inputs, self._device)


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
