"""Loading of models from ONNX files."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import BadInput, NotImportable
from tlmd.data.model_spec import Shapes
from tlmd.models.call_structure import CallStructure
from tlmd.models.onnx import onnx_runtime, open_dimensions, simplify
from tlmd.models.output_dtypes import with_output_dtypes
from tlmd.models.sources import (
    InputInfo,
    ReferenceFunction,
    SourceModel,
    WrongNumberOfShapes,
    first_line,
    import_failure,
    input_infos,
    tensor_info,
)
from tlmd.models.structure import Node

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file that was read."""

    path: Path
    proto: onnx.ModelProto
    shapes: dict[str, list[int]]
    """The shapes of its inputs, by their names."""

    def imported(self) -> SourceModel:
        """The model imported into TVM. Raises `NotImportable`."""
        module = import_proto(str(self.path), self.proto, self.shapes)
        infos = input_infos(str(self.path), module, ())
        return self._source(module, infos)

    def unimported(self) -> SourceModel:
        """The model without a Relax module. Raises `BadInput` if nothing here can run it."""
        if self._reference is None:
            raise BadInput(f"ONNX Runtime cannot run {self.path}{onnx_runtime.obstacle(self.path)}")
        infos = tuple(
            tensor_info(value.name, _dtype(value), self.shapes[value.name])
            for value in onnx_runtime.inputs(self.proto)
        )
        return self._source(None, infos)

    @cached_property
    def _reference(self) -> ReferenceFunction | None:
        return onnx_runtime.reference(self.path, self.proto)

    def _source(self, module: Any, infos: tuple[InputInfo, ...]) -> SourceModel:
        source = flat_source(
            self.path.stem, module, infos, len(self.proto.graph.output), self._reference
        )
        return source if _runs(source) else _without_zeros(source)


def flat_source(
    name: str,
    module: Any,
    infos: tuple[InputInfo, ...],
    outputs: int,
    reference: ReferenceFunction | None = None,
) -> SourceModel:
    """A model whose inputs are called by their names, and whose outputs are a list of tensors."""

    def tensors(count: int) -> tuple[Node, ...]:
        return tuple(Node("tensor", value=index) for index in range(count))

    call = CallStructure(tuple(info.name for info in infos), tensors(len(infos)))
    return SourceModel(name, module, infos, reference, call, Node("list", tensors(outputs)))


def read(path: Path, shapes: Shapes | None) -> OnnxModel:
    """Read an ONNX file. `shapes` replace open dimensions of the inputs. Raises `BadInput`."""
    model = _read(path)
    return OnnxModel(path, model, _onnx_shapes(path, model, shapes))


def import_proto(name: str, model: onnx.ModelProto, shapes: Mapping[str, list[int]]) -> Any:
    """The Relax module of a model with these shapes of its inputs. Raises `NotImportable`."""
    from tvm.relax.frontend.onnx import from_onnx

    try:
        simple = simplify.simplify(model, shapes)
        if wrong := simplify.misread(simple):
            raise NotImportable(f"TVM imports {wrong[0].op_type} of {name} wrongly")
        module = from_onnx(simple, shape_dict=dict(shapes), keep_params_in_input=False)
        return with_output_dtypes(module, _output_dtypes(model))
    except NotImportable:
        raise
    except Exception as error:
        raise NotImportable(import_failure(name, error)) from error


def load_reference(path: Path) -> ReferenceFunction | None:
    """`SourceModel.reference` of an ONNX file. Raises `BadInput`."""
    return onnx_runtime.reference(path, _read(path))


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
        if onnx_runtime.reference(path, model) is None:
            reason = first_line(error)
            raise BadInput(
                f"{path} is not a valid ONNX model ({reason}); export it again"
            ) from error
    return model


def _onnx_shapes(path: Path, model: onnx.ModelProto, shapes: Shapes | None) -> dict[str, list[int]]:
    inputs = onnx_runtime.inputs(model)
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


def _runs(source: SourceModel) -> bool:
    """Whether the original takes random inputs."""
    if source.reference is None or not any("int" in info.dtype for info in source.inputs):
        return True
    try:
        source.reference(*source.random_inputs(0))
    except Exception:
        return False
    return True


def _without_zeros(source: SourceModel) -> SourceModel:
    """The model with random integers from 1 on, if it takes these: it may divide by them."""
    infos = tuple(replace(info, low=1) for info in source.inputs)
    other = replace(source, inputs=infos)
    return other if _runs(other) else source


def _dtype(value: Any) -> str:
    """The dtype of an input; that of texts is ``object``."""
    from onnx import helper

    kind = value.type.tensor_type.elem_type
    return helper.tensor_dtype_to_np_dtype(kind).name if kind else "object"
