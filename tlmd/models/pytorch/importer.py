"""The import of exported PyTorch programs into TVM, and what is said when it fails."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from tlmd.data.errors import NotImportable
from tlmd.models.pytorch.folding import is_empty
from tlmd.models.pytorch.normalise import has_open_inputs, normalise
from tlmd.models.pytorch.operators import NotConvertible, converters
from tlmd.models.pytorch.tensors import to_numpy
from tlmd.models.sources import first_line, import_failure


def import_program(name: str, program: ExportedProgram) -> Any:
    """The Relax module of an exported program. Raises `NotImportable`."""
    convert_map = converters()
    try:
        program = normalise(program, convert_map)
    except Exception as error:
        raise NotImportable(import_failure(name, error)) from error
    check_effects(name, program)
    if not has_open_inputs(program):
        _check(name, program, convert_map)
    try:
        return _importer().from_exported_program(program, False, False, False, convert_map)
    except NotConvertible as error:
        operator = operator_name(error.node)
        place = where(error.node)
        raise NotImportable(
            f"TVM cannot import {operator} of {name}{place} ({first_line(error)}); "
            "rewrite that part of it"
        ) from error
    except Exception as error:
        raise NotImportable(import_failure(name, error)) from error


def _importer() -> Any:
    """TVM's importer, which reads weights of bfloat16 wherever they lie in memory.

    It takes the memory of a tensor if that is aligned, which the weights in a mapped file are not.
    Otherwise it goes through numpy, which has no bfloat16 of its own.
    """
    import tvm
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    class Importer(ExportedProgramImporter):  # type: ignore[misc]
        @staticmethod
        def _convert_pytorch_tensor_to_tvm(tensor_value: torch.Tensor) -> Any:
            if tensor_value.dtype is torch.bfloat16:
                return tvm.runtime.tensor(to_numpy(tensor_value.to_dense()))
            return ExportedProgramImporter._convert_pytorch_tensor_to_tvm(tensor_value)

        @staticmethod
        def _convert_torch_tensor_to_relax(tensor: torch.Tensor) -> Any:
            from tvm import relax

            return relax.const(to_numpy(tensor), str(tensor.dtype).removeprefix("torch."))

    return Importer()


def check_effects(name: str, program: ExportedProgram) -> None:
    """Refuse a normalised program that does more than compute outputs: no library does that."""
    for spec in program.graph_signature.output_specs:
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.TOKEN):
            raise NotImportable(
                f"{name} changes its {'buffer' if 'BUFFER' in spec.kind.name else 'input'} "
                f"{str(spec.target).removeprefix('model.')}; take that out of its forward"
            )


def _check(name: str, program: ExportedProgram, convertible: Iterable[str]) -> None:
    """Refuse operators without a converter, random numbers, and shapes that depend on data."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    missing = {n.target.__name__ for n in calls if n.target.__name__ not in convertible}
    for node in calls:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotImportable(
                f"{name} draws random numbers ({operator_name(node)}){where(node)}; "
                "make them an input of the model"
            )
    if missing:
        uses = unsupported(program, missing)
        raise NotImportable(f"{name} uses {uses}, which TVM lacks; rewrite the model without it")
    for node in program.graph.nodes:
        if node.op in ("call_function", "placeholder") and is_empty(node.meta.get("val")):
            if node.op == "placeholder" and node.name in program.graph_signature.user_inputs:
                raise NotImportable(f"{name} has an empty input, {node.name}; give it elements")
            if node.op == "placeholder" and not node.users:
                continue  # a weight that was only part of a larger tensor, for example
            origin = (
                "" if node.op == "placeholder" else f", from {operator_name(node)}{where(node)}"
            )
            raise NotImportable(f"{name} has an empty tensor{origin}; rewrite the model without it")
    for node in calls:
        if _depends_on_data(node.meta.get("val")):
            origin = f"from {operator_name(node)}{where(node)}"
            raise NotImportable(
                f"{name} has a shape that depends on data, {origin}; rewrite that part of it"
            )


def _depends_on_data(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else [value]
    return any(
        isinstance(extent, torch.SymInt)
        for v in values
        if isinstance(v, torch.Tensor)
        for extent in v.shape
    )


def is_supported(node: Any, convertible: Iterable[str]) -> bool:
    """Whether TVM may compile a node of a normalised program.

    `convertible` holds the names of the operators with a converter.
    """
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_supported(node.args[0], convertible) and _is_plain(node.meta.get("val"))
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if node.target.__name__ not in convertible:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or node.target._schema.is_mutable:
        return False
    result = node.meta.get("val")
    several = isinstance(result, (tuple, list))  # the node that takes one out is looked at
    sources = [source.meta.get("val") for source in node.all_input_nodes]
    return all(map(_is_plain, sources if several else [result, *sources]))


def _is_plain(value: Any) -> bool:
    """Whether a value is a dense real tensor of known size with elements."""
    if not isinstance(value, torch.Tensor) or is_empty(value) or _depends_on_data(value):
        return False
    return value.layout == torch.strided and not (value.is_complex() or value.is_quantized)


def unsupported(program: ExportedProgram, names: Iterable[str]) -> str:
    """The operators of the program that TVM lacks, each with its place in the user's model.

    Example: ``aten.histc in encoder.layer.0 (model.py:123)``.
    """
    names = set(names)
    places: dict[str, str] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target.__name__ in names:
            places.setdefault(operator_name(node), where(node))
    return " and ".join([f"{name}{place}" for name, place in places.items()][:3])


def operator_name(node: Any) -> str:
    """The name of a node's operator, such as ``aten.histc``."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet) if packet is not None else str(node.target.__name__)


def where(node: torch.fx.Node) -> str:
    """Where a node stands in the user's model: the module, and the line of its source.

    Example: `` in encoder.layer.0 (model.py:123)``; empty if it is not known.
    """
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(path) for path, _ in stack.values() if path]
    # The exported module holds the user's as ``model`` (`torch_frontend`).
    module = paths[-1].removeprefix("L['self'].").removeprefix("model").lstrip(".") if paths else ""
    lines = [
        line.strip()
        for line in str(node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith('File "')
    ]
    source = ""
    if lines:
        file, _, rest = lines[-1].removeprefix('File "').partition('", line ')
        source = f" ({Path(file).name}:{rest.partition(',')[0]})"
    return (f" in {module}" if module else "") + source
