"""Rewriting of an exported PyTorch program so that TVM's importer reads it rightly.

The program stays one of PyTorch: it can still be run, and gives the same outputs. Operators are
replaced by decompositions (`promotion`, `indexing`, `index_writes`, `functions`, `reductions`,
`pools`, those of `lacking`, and those of PyTorch for operators that TVM lacks). Values that depend
on weights only are computed here, because TVM would compile a kernel for each step of their
computation.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from torch.export.exported_program import default_decompositions
from torch.utils._pytree import tree_leaves

from tlmd.models.pytorch import functions, index_writes, indexing, promotion, reductions
from tlmd.models.pytorch import pools as torch_pools
from tlmd.models.pytorch.folding import fold_constants, is_random, mutates
from tlmd.models.pytorch.lacking import products, resizing, scattering, special

Table = dict[Any, Callable[..., Any]]

# TVM computes these with the running statistics, or with those of another dimension.
_PREFERRED = {
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.no_stats",
}
_OWN = (
    *(promotion, indexing, index_writes, functions, reductions, torch_pools, resizing, products),
    *(scattering, special),
)
_CUSTOM = {"transformers.grouped_mm_fallback.default": products.grouped_product}
_CHECKS = (
    *(torch.ops.aten._assert_scalar, torch.ops.aten._assert_async),
    *(torch.ops.aten._assert_tensor_metadata, torch.ops.aten.sym_constrain_range),
    torch.ops.aten.sym_constrain_range_for_size,
)
_FIRST_OUTPUT_ONLY = (
    *("native_layer_norm.default", "native_group_norm.default"),
    *("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_no_training.default"),
)


def normalise(program: ExportedProgram, convertible: Iterable[str]) -> Any:
    """The program in operators that TVM imports rightly.

    `convertible` holds the names of the operators with a converter.
    """
    if has_open_inputs(program):
        return program.run_decompositions()
    table = _table(frozenset(convertible))
    allow_all_strides(program.graph)
    scattering.tell_repeated_sizes(program)
    # A copy, because PyTorch takes entries out.
    program = program.run_decompositions({**table, **_custom(program)})
    further = _indexed_pools(program) | _statistics(program)
    if further:
        program = program.run_decompositions({**table, **further})
    _drop_checks(program)
    fold_constants(program)
    return program


def allow_all_strides(graph: torch.fx.Graph) -> None:
    """Let views accept all strides: decompositions and libraries give others than the operator.

    The attention of a batch of two is an example: its decomposition has other strides.
    """
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def has_open_inputs(program: ExportedProgram) -> bool:
    """Whether a dimension of an input is not a number."""
    names = set(program.graph_signature.user_inputs)
    return any(
        isinstance(extent, torch.SymInt)
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in names
        for extent in getattr(node.meta.get("val"), "shape", ())
    )


@functools.cache
def _table(convertible: frozenset[str]) -> Table:
    stock: Any = default_decompositions()
    table: Table = dict(stock.items())
    for op, function in decomposition_table.items():
        name = getattr(op, "__name__", "")
        new = isinstance(op, torch._ops.OpOverload) and op not in table
        if (
            new
            and (name not in convertible or name in _PREFERRED)
            and not is_random(op)
            and not mutates(op)
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


def _custom(program: ExportedProgram) -> Table:
    """Decompositions of operators of other packages that the program uses."""
    return {
        node.target: _CUSTOM[str(node.target)]
        for node in program.graph.nodes
        if str(node.target) in _CUSTOM
    }


def _indexed_pools(program: ExportedProgram) -> Table:
    """Decompositions of pools, if the program uses the indices of one."""
    pools = torch_pools.indexed_pools()
    used = any(node.target in pools and 1 in _used_outputs(node) for node in program.graph.nodes)
    return pools if used else {}


def _statistics(program: ExportedProgram) -> Table:
    """Decompositions of normalisations of which the program uses more than the first output."""
    return {
        node.target: decomposition_table[node.target]
        for node in program.graph.nodes
        if getattr(node.target, "__name__", "") in _FIRST_OUTPUT_ONLY and _used_outputs(node) - {0}
    }


def _drop_checks(program: ExportedProgram) -> None:
    """Remove checks of data. They have no result, and their operands may have no other use."""
    for node in list(program.graph.nodes):
        packet = getattr(node.target, "overloadpacket", None)
        if packet in _CHECKS and not node.users:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
