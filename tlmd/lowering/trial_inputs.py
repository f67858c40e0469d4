"""The inputs with which a compiled model is compared with its original, and the right outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.ir import Op

from tlmd.models.sources import SourceModel, first_line

if TYPE_CHECKING:
    from tvm.ir import IRModule

Expected = list[tuple[list[np.ndarray], list[np.ndarray]]]
"""Inputs, each set with the outputs of the original."""

_INSPECTING = {"relax.isnan", "relax.isinf", "relax.isfinite"}
_SPECIAL = (np.nan, np.inf, -np.inf)


def expected(source: SourceModel, special: bool = False) -> tuple[Expected, str]:
    """Inputs with the outputs of the original; or none of them, and a note why not.

    The example, random values if it shows little, and masks that hide all. With `special`, for
    models that look for them, also inputs with NaN and infinities.
    """
    if source.reference is None:
        return [], "the original cannot be run here: outputs were not compared"
    sets = [list(source.example)] if source.example else []
    if not sets or any(map(_shows_little, sets[0])):
        sets.append(source.random_inputs(0))
    found: Expected = []
    for inputs in sets:
        try:
            found.append((inputs, _outputs(source, inputs)))
        except Exception as error:
            if not found:
                reason = first_line(error)
                return [], f"the original cannot be run ({reason}): outputs were not compared"
            # The example works; random values need not be valid for the model.
    return found + _unusual(source, found[0][0], special), ""


def _unusual(source: SourceModel, usual: Sequence[np.ndarray], special: bool) -> Expected:
    """Inputs that the original takes and that programs may treat in another way."""
    found: Expected = []
    sets = [[_nothing(array) for array in usual]]
    if special:
        sets.append([_with_special(array) for array in usual])
    for inputs in sets:
        if all(a is b for a, b in zip(inputs, usual, strict=True)):
            continue
        try:
            outputs = _outputs(source, inputs)
        except Exception:  # they are not valid for it
            continue
        # A result that is not a number is nobody's wish, unless the model looks for such values.
        if special or all(np.isfinite(o).all() for o in outputs if o.dtype.kind == "f"):
            found.append((inputs, outputs))
    return found


def _outputs(source: SourceModel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert source.reference is not None
    return [np.asarray(output) for output in source.reference(*inputs)]


def _nothing(array: np.ndarray) -> np.ndarray:
    """A mask that hides all, instead of a mask."""
    return np.zeros_like(array) if array.dtype == np.bool_ else array


def _with_special(array: np.ndarray) -> np.ndarray:
    """The array with NaN and infinities, if it is one of floats."""
    if not is_float(array) or not array.size:
        return array
    other = array.copy()
    flat = other.reshape(-1)
    for place, value in zip(range(flat.size), _SPECIAL, strict=False):
        flat[place] = value
    return other


def inspects(module: IRModule) -> bool:
    """Whether a model looks for NaN or infinity."""
    found: list[bool] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
            found.append(str(expr.op.name) in _INSPECTING)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return any(found)


def _shows_little(array: np.ndarray) -> bool:
    """Whether it is an array of floats of one value, such as zeros."""
    return is_float(array) and array.size > 1 and bool((array == array.reshape(-1)[0]).all())


def is_float(array: np.ndarray) -> bool:
    """Whether an array holds floats; numpy's kind of bfloat16 is another one."""
    return "float" in array.dtype.name
