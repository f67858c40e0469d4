"""ONNX Runtime, or ONNX's own evaluator where it is not installed: what a model computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmd.models.sources import ReferenceFunction, first_line

if TYPE_CHECKING:
    import onnx


def is_installed() -> bool:
    """Whether ONNX Runtime is."""
    return importlib.util.find_spec("onnxruntime") is not None


def session(model: str | bytes, threads: int = 0, optimised: bool = True) -> Any:
    """A session of ONNX Runtime for a file or a serialised model, on `threads` cores (0: all)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Its programs for quantised models overflow on CPUs without VNNI: sums of 16 bits.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def reference(path: Path, model: onnx.ModelProto) -> ReferenceFunction | None:
    """A function that runs the model of a file; None if nothing here can run it."""
    names = [value.name for value in inputs(model)]
    try:
        if is_installed():
            run_model = session(str(path)).run
        else:
            from onnx.reference import ReferenceEvaluator

            run_model = ReferenceEvaluator(model).run
    except Exception:  # it lacks an operator of the model: there is no reference
        return None

    def run(*values: np.ndarray) -> list[np.ndarray]:
        outputs = run_model(None, dict(zip(names, values, strict=True)))
        return [np.asarray(output) for output in outputs]

    return run


def obstacle(path: Path) -> str:
    """Why ONNX Runtime cannot run the model of a file, as the end of a sentence."""
    if not is_installed():
        return "; pip install 'tlmd[onnx]'"
    try:
        session(str(path))
    except Exception as error:
        return f" ({first_line(error)})"
    return ""


def inputs(model: onnx.ModelProto) -> list[Any]:
    """The inputs that a user gives: those that are not weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]
