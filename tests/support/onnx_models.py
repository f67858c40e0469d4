"""Small ONNX models for tests of their import: made of nodes, run by ONNX Runtime and by TVM."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from tlmd.lowering import lowering
from tlmd.models.onnx import simplify
from tlmd.models.onnx.onnx_frontend import read
from tlmd.space.hardware.target import resolve, tvm_target

TARGET = tvm_target(resolve("native"))
MICROSOFT = "com.microsoft"
Arrays = Mapping[str, Any]


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """A node; names are separated by spaces, and `_` is one that is not given."""
    ends = [["" if name == "_" else name for name in n.split()] for n in (inputs, outputs)]
    return helper.make_node(operator, *ends, **attributes)


def onnx_model(
    nodes: Any,
    inputs: Arrays,
    constants: Arrays | None = None,
    outputs: str = "y",
    opset: int = 17,
) -> Any:
    """A model of one node or several; the types of its outputs are those of ONNX Runtime."""
    nodes = list(nodes) if isinstance(nodes, Sequence) else [nodes]
    tensors = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
        for name, value in (constants or {}).items()
    ]
    values = {name: np.asarray(value) for name, value in inputs.items()}
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]

    def with_outputs(found: list[Any]) -> Any:
        graph = helper.make_graph(nodes, "small", infos(values), found, tensors)
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    names = outputs.split()
    draft = with_outputs([helper.make_empty_tensor_value_info(name) for name in names])
    found = run_in_onnx_runtime(draft, values)
    return with_outputs(infos(dict(zip(names, found, strict=True))))


def infos(values: Arrays) -> list[Any]:
    """The descriptions of inputs or outputs."""
    return [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in values.items()
    ]


def run_in_onnx_runtime(model: Any, inputs: Arrays) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(value) for value in session.run(None, dict(inputs))]


def rewritten(model: Any) -> Any:
    """The model after the rewriting of single operators."""
    changed = copy.deepcopy(model)
    simplify._rewritten(changed)
    return changed


def operators(model: Any) -> set[str]:
    return {node.op_type for node in model.graph.node}


def run_in_tvm(model: Any, inputs: Arrays) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.onnx"
        onnx.save(model, path)
        source = read(path, None).imported()
    compiled = lowering.compile_model(lowering.lower(source.module, TARGET), TARGET)
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    given = [tvm.runtime.tensor(np.asarray(inputs[value.name])) for value in model.graph.input]
    outputs = machine["main"](*given)
    single = hasattr(outputs, "numpy")
    return [output.numpy() for output in ([outputs] if single else outputs)]


def check_import(
    model: Any, inputs: Arrays, relative: float = 1e-4, absolute: float = 1e-5, steps: int = 0
) -> None:
    """Compiled by TVM, the model gives the outputs of ONNX Runtime.

    Integers may differ by `steps`.
    """
    wanted = run_in_onnx_runtime(model, inputs)
    for got, want in zip(run_in_tvm(model, inputs), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if np.issubdtype(want.dtype, np.integer):
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max(initial=0) <= steps
        else:
            np.testing.assert_allclose(got, want, relative, absolute)
