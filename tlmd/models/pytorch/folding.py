"""Constants of exported PyTorch programs: values that depend on nothing else, computed once."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

# Folded values that are larger than this stay computations.
_LARGEST_CONSTANT = 2**26
# Constants of at most this many elements are shared if they are equal.
_SHARED = 2**16
# Operators that repeat one number or one row; a constant would hold all the repetitions.
_KEPT = {
    *("full.default", "zeros.default", "ones.default", "scalar_tensor.default"),
    *("expand.default", "repeat.default"),
}


def fold_constants(program: ExportedProgram) -> None:
    """Replace values that depend only on weights and other constants by constants."""
    folding = _Folding(program)
    # From the last one to the first: a kept node needs the nodes before it.
    for node in reversed(list(program.graph.nodes)):
        if folding.is_needed(node):
            folding.keep_or_replace(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


class _Folding:
    """The constants of a program."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._values = _weights(program)
        self._constant = set(self._values)
        self._kept: set[Any] = set()
        self._shared: dict[Any, Any] = {}
        self._count = 0
        for node in program.graph.nodes:
            if node.op == "get_attr" and isinstance(_attribute(program, node), torch.Tensor):
                self._values[node] = _attribute(program, node)
                self._constant.add(node)
            elif self._foldable(node):
                self._constant.add(node)
            elif is_empty(node.meta.get("val")):
                # It holds no data, so values that are computed from it alone are constants.
                value = node.meta["val"]
                self._values[node] = torch.zeros(value.shape, dtype=value.dtype)
                self._constant.add(node)

    def _foldable(self, node: torch.fx.Node) -> bool:
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        if node.op != "call_function" or not (is_operator or node.target is operator.getitem):
            return False
        if is_operator and (mutates(node.target) or is_random(node.target)):
            return False
        if not _is_plain(node.meta.get("val")):
            return False
        return all(source in self._constant for source in node.all_input_nodes)

    def is_needed(self, node: torch.fx.Node) -> bool:
        """Whether a node that is kept, or that is no constant, uses this computed constant."""
        if node not in self._constant or node.op == "placeholder":
            return False
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or is_empty(value):
            return False
        return any(user not in self._constant or user in self._kept for user in node.users)

    def keep_or_replace(self, node: torch.fx.Node) -> None:
        """Replace the node by a constant, unless that would only be a larger one."""
        if getattr(node.target, "__name__", "") in _KEPT:
            self._kept.add(node)
            return
        value = self._compute(node).detach().contiguous().clone()
        node.replace_all_uses_with(self._placeholder(value, node))

    def _compute(self, node: torch.fx.Node) -> Any:
        if node not in self._values:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._compute)
            with torch.no_grad():
                target: Any = node.target
                self._values[node] = target(*args, **kwargs)
        return self._values[node]

    def _placeholder(self, value: Tensor, node: torch.fx.Node) -> Any:
        key = None
        if value.numel() <= _SHARED:
            raw = value.reshape(-1).view(torch.uint8) if value.numel() else value
            key = (value.dtype, value.shape, raw.numpy().tobytes())
            if key in self._shared:
                return self._shared[key]
        program, name = self._program, f"folded_{self._count}"
        self._count += 1
        first = next(n for n in program.graph.nodes if n.op != "get_attr")
        with program.graph.inserting_before(first):
            placeholder = program.graph.placeholder(name)
        placeholder.meta["val"] = node.meta["val"]
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name, None)
        program.graph_signature.input_specs.insert(0, spec)
        program.constants[name] = value
        self._values[placeholder] = value
        self._constant.add(placeholder)
        if key is not None:
            self._shared[key] = placeholder
        return placeholder


def is_empty(value: Any) -> bool:
    """Whether a node's value is a tensor without elements."""
    return (
        isinstance(value, torch.Tensor)
        and all(isinstance(extent, int) for extent in value.shape)
        and 0 in value.shape
    )


def is_random(op: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


def mutates(op: Any) -> bool:
    """Whether an operator changes its inputs."""
    return bool(op._schema.is_mutable)


def _is_plain(value: Any) -> bool:
    """Whether a node's value is a tensor, or several, of known and moderate size."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return all(
        isinstance(v, torch.Tensor)
        and all(isinstance(extent, int) for extent in v.shape)
        and v.numel() <= _LARGEST_CONSTANT
        for v in values
    )


def _attribute(program: ExportedProgram, node: torch.fx.Node) -> Any:
    value = program.graph_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _weights(program: ExportedProgram) -> dict[torch.fx.Node, Tensor]:
    """The placeholders of parameters, buffers and constants, and their values."""
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    targets = {
        spec.arg.name: spec.target
        for spec in signature.input_specs
        if spec.kind in kinds and spec.target not in changed
    }
    weights = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in targets:
            target = targets[node.name]
            stored = program.state_dict.get(target, program.constants.get(target))
            if isinstance(stored, torch.Tensor):
                weights[node] = stored
    return weights
