"""The graph of a model, by the kind of the model; and a model that has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tlmd.data.errors import NotImportable
from tlmd.data.model_spec import ModelSpec
from tlmd.models.onnx import onnx_runtime
from tlmd.models.onnx.onnx_frontend import OnnxModel
from tlmd.models.parts.flow import Flow, FrameworkProgram, Part
from tlmd.models.parts.graph import Graph
from tlmd.models.pytorch.torch_frontend import FlatModel
from tlmd.models.sources import Original


def graph_of(original: Original, examples: Sequence[Sequence[np.ndarray]]) -> Graph:
    """The graph of a loaded model, which runs on `examples` when its values are asked for.

    Raises `NotImportable` for one that cannot be taken apart.
    """
    if isinstance(original, OnnxModel):
        from tlmd.models.parts.onnx_graph import OnnxGraph

        if not onnx_runtime.is_installed():
            raise NotImportable("parts of a model need ONNX Runtime; pip install 'tlmd[onnx]'")
        return OnnxGraph(original, examples)
    from tlmd.models.parts.torch_graph import TorchGraph

    assert isinstance(original, FlatModel)
    return TorchGraph(original, examples)


def original_alone(spec: ModelSpec, original: Original) -> Flow:
    """A model of which the framework runs all, as it is."""
    program: FrameworkProgram
    if isinstance(original, OnnxModel):
        from tlmd.models.parts.onnx_program import OnnxProgram

        program, framework = OnnxProgram(original.proto), "ONNX Runtime"
        inputs, outputs = len(original.shapes), len(original.proto.graph.output)
    else:
        from tlmd.models.parts.original_program import OriginalProgram

        assert isinstance(original, FlatModel)
        program, framework = OriginalProgram(spec, original), "PyTorch"
        inputs, outputs = len(original.tensors), len(original.outputs()[1])
    takes, gives = tuple(range(inputs)), tuple(range(inputs, inputs + outputs))
    part = Part(takes, gives, program)
    return Flow((part,), gives, tuned_share=0.0, framework=framework)
