"""Rewriting of an exported PyTorch program so that TVM's importer reads it rightly.

The program stays one of PyTorch: it can still be run, and gives the same outputs. Operators are
replaced by decompositions (`torch_promotion`, `torch_indexing`, `torch_functions`,
`torch_reductions`, `torch_pools`,
and those of PyTorch for operators that TVM lacks). What depends on weights only is computed here,
because TVM would compile a kernel for each step of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export.exported_program import default_decompositions
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils._pytree import tree_leaves

from tlmd.workloads import (
    torch_functions,
    torch_indexing,
    torch_pools,
    torch_promotion,
    torch_reductions,
)

Table = dict[Any, Callable[..., Any]]

# TVM computes these with the running statistics, or with those of another dimension.
_PREFERRED = {
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.no_stats",
}
_OWN = (torch_promotion, torch_indexing, torch_functions, torch_reductions, torch_pools)
_CUSTOM = {"transformers.grouped_mm_fallback.default": torch_pools.grouped_product}
# Folded values that are larger than this stay computations.
_LARGEST_CONSTANT = 2**26
# Constants of at most this many elements are shared if they are equal.
_SHARED = 2**16
# These say in one number, or one row, what a constant would spell out.
_KEPT = {
    *("full.default", "zeros.default", "ones.default", "scalar_tensor.default"),
    *("expand.default", "repeat.default"),
}
_FIRST_OUTPUT_ONLY = (
    *("native_layer_norm.default", "native_group_norm.default"),
    *("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_no_training.default"),
)


def normalise(program: Any, known: Iterable[str]) -> Any:
    """The program in operators that TVM imports rightly. `known`: names that have a converter."""
    if has_open_inputs(program):
        return program.run_decompositions()
    table = _table(frozenset(known))
    # A copy, because PyTorch takes entries out.
    program = program.run_decompositions({**table, **_custom(program)})
    further = _indexed_pools(program) | _statistics(program)
    if further:
        program = program.run_decompositions({**table, **further})
    fold_constants(program)
    return program


def has_open_inputs(program: Any) -> bool:
    """Whether a dimension of an input is not a number."""
    names = set(program.graph_signature.user_inputs)
    return any(
        isinstance(extent, torch.SymInt)
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names
        for extent in getattr(node.meta.get("val"), "shape", ())
    )


@functools.cache
def _table(known: frozenset[str]) -> Table:
    stock: Any = default_decompositions()
    table: Table = dict(stock.items())
    for op, function in decomposition_table.items():
        name = getattr(op, "__name__", "")
        new = isinstance(op, torch._ops.OpOverload) and op not in table
        if (
            new
            and (name not in known or name in _PREFERRED)
            and not _is_random(op)
            and not _mutates(op)
        ):
            table[op] = function
    for own in _OWN:
        table |= {
            op: _after(function, table.get(op)) for op, function in own.decompositions().items()
        }
    return table


def _after(first: Callable[..., Any], second: Callable[..., Any] | None) -> Callable[..., Any]:
    """`first`, and `second` where that leaves the operator as it is.

    `first` is for real numbers only, because TVM has no complex ones.
    """

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        result = NotImplemented
        if not any(map(_is_complex, tree_leaves((args, kwargs)))):
            result = first(*args, **kwargs)
        if result is NotImplemented and second is not None:
            return second(*args, **kwargs)
        return result

    return decomposition


def _is_complex(value: Any) -> bool:
    dtype = getattr(value, "dtype", value)
    return isinstance(value, complex) or (isinstance(dtype, torch.dtype) and dtype.is_complex)


def _used_outputs(node: Any) -> set[int]:
    return {user.args[1] for user in node.users if user.target is operator.getitem}


def _custom(program: Any) -> Table:
    """Decompositions of operators of other packages that the program uses."""
    return {
        node.target: _CUSTOM[str(node.target)]
        for node in program.graph.nodes
        if str(node.target) in _CUSTOM
    }


def _indexed_pools(program: Any) -> Table:
    """Decompositions of pools, if the program uses the indices of one."""
    pools = torch_pools.indexed_pools()
    used = any(node.target in pools and 1 in _used_outputs(node) for node in program.graph.nodes)
    return pools if used else {}


def _statistics(program: Any) -> Table:
    """Decompositions of normalisations of which the program uses more than the first output."""
    return {
        node.target: decomposition_table[node.target]
        for node in program.graph.nodes
        if getattr(node.target, "__name__", "") in _FIRST_OUTPUT_ONLY and _used_outputs(node) - {0}
    }


def fold_constants(program: Any) -> None:
    """Compute what depends on weights and other constants only, and make constants of it."""
    folding = _Folding(program)
    # The last ones first, because what stands before a kept one is then known to be needed.
    for node in reversed(list(program.graph.nodes)):
        if folding.is_needed(node):
            folding.keep_or_replace(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


class _Folding:
    """The constants of a program."""

    def __init__(self, program: Any) -> None:
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

    def _foldable(self, node: Any) -> bool:
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        if node.op != "call_function" or not (is_operator or node.target is operator.getitem):
            return False
        if is_operator and (_mutates(node.target) or _is_random(node.target)):
            return False
        if not _is_plain(node.meta.get("val")):
            return False
        return all(source in self._constant for source in node.all_input_nodes)

    def is_needed(self, node: Any) -> bool:
        """Whether what is not constant, or is kept, uses this computed constant."""
        if node not in self._constant or node.op == "placeholder":
            return False
        if not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        return any(user not in self._constant or user in self._kept for user in node.users)

    def keep_or_replace(self, node: Any) -> None:
        """Replace the node by a constant, unless that would only be a larger one."""
        if getattr(node.target, "__name__", "") in _KEPT:
            self._kept.add(node)
            return
        value = self._compute(node).detach().contiguous().clone()
        node.replace_all_uses_with(self._placeholder(value, node))

    def _compute(self, node: Any) -> Any:
        if node not in self._values:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._compute)
            with torch.no_grad():
                self._values[node] = node.target(*args, **kwargs)
        return self._values[node]

    def _placeholder(self, value: Any, node: Any) -> Any:
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


def _is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _mutates(op: Any) -> bool:
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


def _attribute(program: Any, node: Any) -> Any:
    found = program.graph_module
    for part in node.target.split("."):
        found = getattr(found, part)
    return found


def _weights(program: Any) -> dict[Any, Any]:
    """The placeholders of parameters, buffers and constants, and their values."""
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    targets = {
        spec.arg.name: spec.target
        for spec in signature.input_specs
        if spec.kind in kinds and spec.target not in changed
    }
    found = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in targets:
            target = targets[node.name]
            stored = program.state_dict.get(target, program.constants.get(target))
            if isinstance(stored, torch.Tensor):
                found[node] = stored
    return found
