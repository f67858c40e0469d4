"""Does a model work? Load it, lower it, compile it, and compare its outputs with the original's.

Nothing of a model is measured before it has passed here. TVM's importers are wrong for some
operators without saying so; only the comparison with the original shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from tlmd.data.errors import BadInput, Failed, TlmdError
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering import lowering, quick_schedule
from tlmd.lowering.passes import quantisation
from tlmd.lowering.preparation import LoweredModel, lower_source, merged_tasks
from tlmd.models import frontends
from tlmd.models.sources import SourceModel, first_line
from tlmd.space.hardware import host_cpu
from tlmd.space.hardware import target as targets

if TYPE_CHECKING:
    from tvm.ir import IRModule

_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}
_COARSE = 0.3  # of the formats with fewer bits
_QUANTISED = 0.15  # another order of rounding shifts some activations by a step; seen: 0.024
_STEPS = 1  # by which quantised integers may differ after another order of rounding


@dataclass(frozen=True)
class Accepted:
    """A model that works."""

    models: tuple[LoweredModel, ...]
    """The model, lowered once for each set of input shapes."""

    error: float | None
    """Largest error of an output, relative to its largest value. None: nothing was compared."""

    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took."""

    notes: tuple[str, ...] = ()
    """Notes for the user, one line each."""

    @property
    def tasks(self) -> list[Task]:
        """The tasks of all sets of input shapes."""
        return merged_tasks(self.models)


def accept(
    spec: ModelSpec, target: TargetInfo, on_stage: Callable[[str], None] = lambda _: None
) -> Accepted:
    """Check that tlmd can tune a model. Raises `BadInput` and `Failed` with the cause.

    `on_stage` is called with the name of each stage when it begins.
    """
    seconds: dict[str, float] = {}

    def stage(text: str, work: Callable[[], Any]) -> Any:
        on_stage(text)
        started_at = time.monotonic()
        try:
            return work()
        except TlmdError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise BadInput(f"{text}: TVM cannot compile {spec.name} ({reason})") from error
        finally:
            seconds[text.split(" ")[0]] = round(time.monotonic() - started_at, 2)

    sources = stage("loading the model", lambda: frontends.load_sets(spec))
    functions: dict[str, Any] = {}
    models = stage(
        "lowering it to tasks",
        lambda: tuple(lower_source(one, source, target, functions) for one, source in sources),
    )
    notes = [*_on_tasks(models), *(note for _, source in sources for note in source.notes)]
    if not _runs_here(target):
        notes.append("the target is not this machine's CPU: outputs were not compared")
        return Accepted(models, None, seconds, tuple(dict.fromkeys(notes)))
    comparisons = stage(
        "comparing its outputs", lambda: [_compare(model, target) for model in models]
    )
    errors = [error for error, _ in comparisons if error is not None]
    told = dict.fromkeys([*notes, *(note for _, some in comparisons for note in some)])
    return Accepted(models, max(errors, default=None), seconds, tuple(told))


def _on_tasks(models: Sequence[LoweredModel]) -> tuple[str, ...]:
    """A note on a model without tasks."""
    if any(model.tasks for model in models):
        return ()
    return ("no part of it can be tuned: TVM compiles it as it is",)


def _runs_here(target: TargetInfo) -> bool:
    return not host_cpu.missing_for(target)


def _compare(model: LoweredModel, target: TargetInfo) -> tuple[float | None, tuple[str, ...]]:
    """The largest relative error, and notes. Raises `BadInput` if outputs are wrong."""
    expected, note = _expected(model.source)
    if not expected:
        return None, (note,)
    tvm_target = targets.tvm_target(target)
    scheduled = lowering.compile_model(
        model.lowered, tvm_target, quick_schedule.database(model.tasks, tvm_target)
    )
    try:
        return _largest_error(model.source, scheduled.executable, expected), ()
    except BadInput:
        # Whether the model is at fault or a schedule, the program without any schedule shows.
        plain = lowering.compile_model(model.lowered, tvm_target)
        return _largest_error(model.source, plain.executable, expected), ()


Expected = list[tuple[list[np.ndarray], list[np.ndarray]]]


def _expected(source: SourceModel) -> tuple[Expected, str]:
    """Inputs with the outputs of the original; or none of them, and a note why not."""
    if source.reference is None:
        return [], "the original cannot be run here: outputs were not compared"
    expected: Expected = []
    sets = [list(source.example)] if source.example else []
    if not sets or any(map(_shows_little, sets[0])):
        sets.append(source.random_inputs(0))
    for inputs in sets:
        try:
            expected.append((inputs, [np.asarray(o) for o in source.reference(*inputs)]))
        except Exception as error:
            if not expected:
                reason = first_line(error)
                return [], f"the original cannot be run ({reason}): outputs were not compared"
            # The example works; random values need not be valid for the model.
    return expected, ""


def _shows_little(array: np.ndarray) -> bool:
    """Whether it is an array of floats of one value, such as zeros."""
    return _is_float(array) and array.size > 1 and bool((array == array.reshape(-1)[0]).all())


def _is_float(array: np.ndarray) -> bool:
    return "float" in array.dtype.name  # the kind of bfloat16 is not that of floats in numpy


def _largest_error(
    source: SourceModel, executable: relax.VMExecutable, expected: Expected
) -> float:
    """The largest relative error of any output. Raises `BadInput` if one is wrong."""
    run = _runner(executable)
    names = [path or "the output" for path, _ in source.outputs.tensors()]
    least = _QUANTISED if quantisation.is_quantised(source.module) else _coarsest(source.module)
    worst = 0.0
    for inputs, outputs in expected:
        actual = run(inputs)
        if len(actual) != len(outputs):
            raise BadInput(f"{source.name} has {len(outputs)} outputs, TVM's {len(actual)}")
        for name, a, e in zip(names, actual, outputs, strict=True):
            worst = max(worst, check_output(source.name, name, a, e, least))
    return worst


def _coarsest(module: IRModule) -> float:
    """What an output may be off because values on its way have 16 bits, whatever its own dtype."""
    allowed = 0.0

    def visit(expr: relax.Expr) -> None:
        nonlocal allowed
        kind = getattr(expr, "ty", None)
        if isinstance(expr, relax.Call) and isinstance(kind, relax.TensorType):
            half = str(kind.dtype) in ("float16", "bfloat16")
            allowed = max(allowed, _TOLERANCE[str(kind.dtype)] if half else 0.0)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return allowed


def _runner(executable: relax.VMExecutable) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """A function that runs an executable of this process."""
    machine = relax.VirtualMachine(executable.jit(), tvm.cpu())

    def run(inputs: list[np.ndarray]) -> list[np.ndarray]:
        try:
            outputs = machine["main"](*(tvm.runtime.tensor(a) for a in inputs))
        except Exception as error:
            raise Failed(f"the compiled model cannot be run ({first_line(error)})") from error
        listed = [outputs] if hasattr(outputs, "numpy") else list(outputs)
        return [output.numpy() for output in listed]

    return run


def check_output(
    model: str, name: str, actual: np.ndarray, expected: np.ndarray, least: float = 0.0
) -> float:
    """The error of one output relative to its largest value. Raises `BadInput` if it is wrong.

    An error of a float up to `least` is allowed in any case.
    """
    if actual.shape != expected.shape:
        raise BadInput(
            f"TVM imports an operator of {model} wrongly: {name} has shape {actual.shape} "
            f"instead of {expected.shape}; rewrite that part of the model"
        )
    if actual.dtype != expected.dtype:
        raise BadInput(
            f"TVM imports an operator of {model} wrongly: {name} has dtype {actual.dtype} "
            f"instead of {expected.dtype}; rewrite that part of the model"
        )
    error, allowed = output_error(actual, expected)
    if not error <= (max(allowed, least) if _is_float(expected) else allowed):
        raise BadInput(
            f"TVM imports an operator of {model} wrongly: {name} differs from the original "
            f"(relative error {error:.1e}); nothing is tuned, rewrite that part of the model"
        )
    return error


def output_error(actual: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The error relative to the largest expected value, and how large it may be."""
    kind = expected.dtype.name
    if expected.size == 0:
        return 0.0, 0.0
    if expected.dtype.kind in "biu":
        steps = _STEPS if kind in ("int8", "uint8") else 0
        distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        return float(max(distance.max() - steps, 0.0)), 0.0
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(a - e))
    finite = np.abs(e[np.isfinite(e)])
    scale = max(float(finite.max(initial=0.0)), 1e-30)
    relative = float(np.nan_to_num(distance, nan=np.inf).max() / scale)
    return relative, _TOLERANCE.get(kind, _COARSE)
