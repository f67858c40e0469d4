"""Are the outputs of a compiled model those of the original?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from tlmd.data.errors import Failed, NotImportable
from tlmd.lowering.passes import quantisation
from tlmd.lowering.trial_inputs import Expected, is_float
from tlmd.models.parts import flow as flows
from tlmd.models.parts.flow import Flow, Program
from tlmd.models.pytorch.state import seeded
from tlmd.models.pytorch.tensors import as_array
from tlmd.models.sources import SourceModel, first_line

if TYPE_CHECKING:
    from tvm.ir import IRModule

_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}
_COARSE = 0.3  # of the formats with fewer bits
_QUANTISED = 0.15  # another order of rounding shifts some activations by a step; seen: 0.024
_STEPS = 1  # by which quantised integers may differ after another order of rounding

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def largest_error(source: SourceModel, run: Run, expected: Expected) -> float:
    """The largest relative error of any output. Raises `NotImportable` if one is wrong."""
    return largest_of(source, run, expected, tolerated(source))


def tolerated(source: SourceModel) -> float:
    """What an error of a float may be in any case, in a model that is imported into TVM."""
    if quantisation.is_quantised(source.module):
        return _QUANTISED
    return _coarsest(source.module)


def largest_of(source: SourceModel, run: Run, expected: Expected, least: float) -> float:
    """As `largest_error`, for a function that runs the model; `least` as in `check_output`."""
    names = [path or "the output" for path, _ in source.outputs.tensors()]
    worst = 0.0
    for inputs, outputs in expected:
        actual = run(inputs)
        if len(actual) != len(outputs):
            raise NotImportable(f"{source.name} has {len(outputs)} outputs, TVM's {len(actual)}")
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


def runner(program: relax.VMExecutable | tvm.runtime.Module) -> Run:
    """A function that runs an executable of this process, or a loaded library."""
    loaded = program.jit() if isinstance(program, relax.VMExecutable) else program
    machine = relax.VirtualMachine(loaded, tvm.cpu())

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
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
    """The error of one output relative to its largest value. Raises `NotImportable` if it is wrong.

    An error of a float up to `least` is allowed in any case.
    """
    if actual.shape != expected.shape:
        raise NotImportable(
            f"TVM imports an operator of {model} wrongly: {name} has shape {actual.shape} "
            f"instead of {expected.shape}; rewrite that part of the model"
        )
    if actual.dtype != expected.dtype:
        raise NotImportable(
            f"TVM imports an operator of {model} wrongly: {name} has dtype {actual.dtype} "
            f"instead of {expected.dtype}; rewrite that part of the model"
        )
    error, allowed = output_error(actual, expected)
    if not error <= (max(allowed, least) if is_float(expected) else allowed):
        raise NotImportable(
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


def for_arrays(run: Run) -> Program:
    """`run`, which takes arrays, for arrays and tensors of PyTorch."""
    return lambda values: run(list(map(as_array, values)))


def in_parts(flow: Flow, tuned: Sequence[Program]) -> Run:
    """A function that runs a model in parts once; `tuned` run those that TVM compiles, in order."""
    compiled = iter(tuned)
    programs: list[Any] = [
        next(compiled) if isinstance(part.program, SourceModel) else part.program
        for part in flow.parts
    ]
    return lambda inputs: run_once(flow, programs, inputs)


def run_once(
    flow: Flow, programs: Sequence[Program], inputs: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The outputs of a model in parts from its first state; `inputs` are not written to."""
    with seeded():
        outputs = flows.runner(flow, programs)([value.copy() for value in inputs])
    return [np.asarray(as_array(output)) for output in outputs]
