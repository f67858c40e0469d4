"""Loading of models from ONNX files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import Shapes
from tlmd.models.call_structure import CallStructure
from tlmd.models.onnx import open_dimensions, simplify
from tlmd.models.output_dtypes import with_output_dtypes
from tlmd.models.sources import (
    ReferenceFunction,
    SourceModel,
    WrongNumberOfShapes,
    first_line,
    import_failure,
    input_infos,
)
from tlmd.models.structure import Node

if TYPE_CHECKING:
    import onnx


def load_onnx(path: Path, shapes: Shapes | None) -> SourceModel:
    """Load an ONNX file. `shapes` replace open dimensions of the inputs. Raises `BadInput`."""
    from tvm.relax.frontend.onnx import from_onnx

    model = _read(path)
    shape_dict = _onnx_shapes(path, model, shapes)
    try:
        simple = simplify.simplify(model, shape_dict)
        module = from_onnx(simple, shape_dict=shape_dict, keep_params_in_input=False)
        module = with_output_dtypes(module, _output_dtypes(model))
    except Exception as error:
        raise BadInput(import_failure(str(path), error)) from error
    infos = input_infos(str(path), module, ())
    call = CallStructure(
        tuple(info.name for info in infos),
        tuple(Node("tensor", value=index) for index in range(len(infos))),
    )
    count = len(model.graph.output)
    outputs = Node("list", tuple(Node("tensor", value=index) for index in range(count)))
    reference = _onnx_reference(path, model)
    return SourceModel(path.stem, module, infos, reference, call, outputs)


def load_reference(path: Path) -> ReferenceFunction | None:
    """`SourceModel.reference` of an ONNX file. Raises `BadInput`."""
    return _onnx_reference(path, _read(path))


def _read(path: Path) -> Any:
    if importlib.util.find_spec("onnx") is None:
        raise BadInput("reading .onnx files needs the package onnx; pip install 'tlmd[onnx]'")
    import onnx

    try:
        model = onnx.load(str(path))
    except Exception as error:
        reason = first_line(error)
        raise BadInput(f"{path} is not a valid ONNX model ({reason}); export it again") from error
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        # The checker is stricter than those who run models: what ONNX Runtime loads is valid.
        if _onnx_reference(path, model) is None:
            reason = first_line(error)
            raise BadInput(
                f"{path} is not a valid ONNX model ({reason}); export it again"
            ) from error
    return model


def _onnx_shapes(path: Path, model: onnx.ModelProto, shapes: Shapes | None) -> dict[str, list[int]]:
    inputs = _inputs(model)
    if shapes is not None and len(shapes) != len(inputs):
        raise WrongNumberOfShapes(str(path), len(inputs), len(shapes))
    by_name: dict[str, list[int]] = {}
    for index, value in enumerate(inputs):
        dims = open_dimensions.dimensions(value)
        given = list(shapes[index]) if shapes is not None else dims
        text = ",".join(map(str, dims))
        if not all(isinstance(dim, int) for dim in given):
            shape = ",".join(map(str, open_dimensions.proposed(dims)))
            raise BadInput(
                f"{path}: input {value.name} has open dimensions ({text}); "
                f"give --input-shape with numbers, such as {shape}, or --yes"
            )
        fits = len(given) == len(dims) and all(
            not isinstance(dim, int) or dim == got for dim, got in zip(dims, given, strict=True)
        )
        if not fits:
            shape = ",".join(map(str, given))
            raise BadInput(f"{path}: shape {shape} does not fit input {value.name} ({text})")
        by_name[value.name] = [int(dim) for dim in given]
    return by_name


def _output_dtypes(model: onnx.ModelProto) -> list[str]:
    """The dtypes of the outputs; empty where the file does not say one."""
    from onnx import helper

    types = [value.type.tensor_type.elem_type for value in model.graph.output]
    return [helper.tensor_dtype_to_np_dtype(kind).name if kind else "" for kind in types]


def _onnx_reference(path: Path, model: onnx.ModelProto) -> ReferenceFunction | None:
    """Runs the model in ONNX Runtime where it is installed, else in onnx's own evaluator."""
    names = [value.name for value in _inputs(model)]
    try:
        if importlib.util.find_spec("onnxruntime") is not None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            # Its programs for quantised models overflow on CPUs without VNNI: sums of 16 bits.
            options.add_session_config_entry("session.disable_quant_qdq", "1")
            options.add_session_config_entry("session.x64quantprecision", "1")
            run_model = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            ).run
        else:
            from onnx.reference import ReferenceEvaluator

            run_model = ReferenceEvaluator(model).run
    except Exception:  # it lacks an operator of the model: there is no reference
        return None

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        outputs = run_model(None, dict(zip(names, inputs, strict=True)))
        return [np.asarray(output) for output in outputs]

    return run


def _inputs(model: onnx.ModelProto) -> list[Any]:
    """The inputs that a user gives: those that are not weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]
