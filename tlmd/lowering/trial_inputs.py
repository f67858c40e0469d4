"""The inputs with which a compiled model is compared with its original, and the right outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tlmd.models.sources import SourceModel, first_line

Expected = list[tuple[list[np.ndarray], list[np.ndarray]]]
"""Inputs, each set with the outputs of the original."""


def expected(source: SourceModel) -> tuple[Expected, str]:
    """Inputs with the outputs of the original; or none of them, and a note why not.

    The example, random values if it shows little, and masks that hide all.
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
    return found + _hidden(source, found[0][0]), ""


def _hidden(source: SourceModel, usual: Sequence[np.ndarray]) -> Expected:
    """Masks that hide all, if the model has masks and its outputs are then finite."""
    inputs = [np.zeros_like(a) if a.dtype == np.bool_ else a for a in usual]
    if all(a is b for a, b in zip(inputs, usual, strict=True)):
        return []
    try:
        outputs = _outputs(source, inputs)
    except Exception:  # they are not valid for it
        return []
    finite = all(np.isfinite(o).all() for o in outputs if o.dtype.kind == "f")
    return [(inputs, outputs)] if finite else []


def _outputs(source: SourceModel, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    assert source.reference is not None
    return [np.asarray(output) for output in source.reference(*inputs)]


def _shows_little(array: np.ndarray) -> bool:
    """Whether it is an array of floats of one value, such as zeros."""
    return is_float(array) and array.size > 1 and bool((array == array.reshape(-1)[0]).all())


def is_float(array: np.ndarray) -> bool:
    """Whether an array holds floats; numpy's kind of bfloat16 is another one."""
    return "float" in array.dtype.name
