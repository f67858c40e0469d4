"""Rewriting of an ONNX model so that TVM's importer reads it rightly.

With static shapes, ONNX Runtime computes what depends on shapes and weights only; exporters write
long chains of `Shape`, `Gather` and `Concat` that TVM cannot follow. Operators that TVM lacks are
replaced by their definitions in ONNX.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tlmd.models.onnx import (
    arithmetic,
    attention,
    fused,
    loops,
    quantised,
    recurrent,
    resize,
    rewriting,
    rotary,
    sequences,
    windows,
)

if TYPE_CHECKING:
    import onnx

_REWRITTEN = (resize, windows, arithmetic, quantised, fused, attention, rotary, sequences, loops)
_MISREAD = {"Attention"}  # TVM's converter expects another operator of the same name


def simplify(model: onnx.ModelProto, shapes: Mapping[str, list[int]]) -> onnx.ModelProto:
    """An equal model with these shapes of its inputs; `model` itself where that is not possible."""
    try:
        simpler = _with_shapes(model, shapes)
        _rewritten(simpler)
        simpler = _spelled_out(simpler)
        # Before, because ONNX Runtime refuses some; after, because it finds more shapes.
        recurrent.unroll(simpler)
        simpler = _folded(simpler)
        recurrent.unroll(simpler)
        _rewritten(simpler)
        return _with_full_expands(simpler)
    except Exception:  # the importer then says what it cannot read
        return model


def fixed(model: onnx.ModelProto, shapes: Mapping[str, list[int]]) -> onnx.ModelProto:
    """An equal model with these shapes of its inputs, and what depends on them alone computed."""
    shaped = _with_shapes(model, shapes)
    try:
        return _folded(shaped)
    except Exception:  # ONNX Runtime cannot run a part of it
        return shaped


def misread(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes that TVM imports wrongly for some values, which random inputs may not show."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    return [node for node in model.graph.node if _is_misread(node, weights)]


def _is_misread(node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> bool:
    from onnx import numpy_helper

    if node.op_type == "RoiAlign":
        return any(a.name == "mode" and a.s == b"max" for a in node.attribute)
    if node.op_type == "IsInf":  # the importer leaves the attributes out
        return any(a.name.startswith("detect_") and a.i == 0 for a in node.attribute)
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        training = weights.get(node.input[2])
        return training is None or bool(numpy_helper.to_array(training).any())
    return str(node.op_type) == "NonMaxSuppression"  # of limits that are given at run time


def importable() -> set[tuple[str, str]]:
    """Domain and name of the operators that TVM may import, after `simplify`."""
    from onnx import defs
    from tvm.relax.frontend.onnx import onnx_frontend

    names = set(onnx_frontend._get_convert_map()) | {"LSTM", "GRU", "RNN"}
    names |= {s.name for s in defs.get_all_schemas() if s.domain == "" and _is_function(s.name)}
    rules = {key for module in _REWRITTEN for key in module.rewriters()}
    return {("", name) for name in names} | rules


def _rewritten(model: onnx.ModelProto) -> None:
    """Replace operators that TVM lacks or imports wrongly, each by nodes with the same results."""
    rules: rewriting.Rewriters = {}
    for module in _REWRITTEN:
        rules |= module.rewriters()
    rewriting.rewrite(model, rules)


def _with_shapes(model: onnx.ModelProto, shapes: Mapping[str, list[int]]) -> onnx.ModelProto:
    fixed = copy.deepcopy(model)
    for value in fixed.graph.input:
        for dim, extent in zip(
            value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
        ):
            dim.dim_value = extent
    return fixed


def _spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with operators that TVM lacks replaced by functions of ONNX, where it has one."""
    from onnx import defs, inliner, shape_inference
    from tvm.relax.frontend.onnx import onnx_frontend

    supported = onnx_frontend._get_convert_map().keys() - _MISREAD
    names = {node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")}
    names -= supported
    wanted = [("", name) for name in sorted(names) if defs.has(name) and _is_function(name)]
    if not wanted:
        return model
    typed = shape_inference.infer_shapes(_with_constant_nodes(model, {n for _, n in wanted}))
    return inliner.inline_selected_functions(typed, wanted, inline_schema_functions=True)


def _with_constant_nodes(model: onnx.ModelProto, operators: set[str]) -> onnx.ModelProto:
    """Give the weights of these operators as nodes: the inliner knows no types of weights."""
    from onnx import helper

    used = {name for node in model.graph.node if node.op_type in operators for name in node.input}
    moved = [tensor for tensor in model.graph.initializer if tensor.name in used]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in moved]
    for tensor in moved:
        model.graph.initializer.remove(tensor)
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *kept])
    return model


def _is_function(name: str) -> bool:
    from onnx import defs

    schema = defs.get_schema(name)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the optimisations of ONNX Runtime that keep to standard operators."""
    if importlib.util.find_spec("onnxruntime") is None:
        return model
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="tlmd-") as folder:
        path = Path(folder) / "folded.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        # They merge quantised operators into ones of ONNX Runtime's own.
        off = ["QDQFinalCleanupTransformer", "QDQPropagationTransformer"]
        onnxruntime.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=off,
        )
        folded = onnx.load(str(path))
    if any(node.domain not in ("", "ai.onnx") for node in folded.graph.node):
        return model
    # It writes functions out after it has folded, such as GroupNormalization of opset 21.
    return _folded(folded) if _operators(folded) - _operators(model) else folded


def _operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def _with_full_expands(model: onnx.ModelProto) -> onnx.ModelProto:
    """`Expand` to the shape of its result. ONNX broadcasts both ways, TVM's converter does not."""
    import onnx
    from onnx import numpy_helper, shape_inference

    inferred = shape_inference.infer_shapes(model, data_prop=True)
    shapes = {}
    for value in [*inferred.graph.value_info, *inferred.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = [dim.dim_value for dim in dims]
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Expand" and node.output[0] in shapes:
            name = f"{node.output[0]}_full_shape_{index}"
            full = np.asarray(shapes[node.output[0]], np.int64)
            model.graph.initializer.append(numpy_helper.from_array(full, name))
            node.input[1] = name
    onnx.checker.check_model(model)
    return model
