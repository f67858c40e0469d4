"""TensorIR -> `Computation`: iterators, access patterns and arithmetic, without names.

The prompt is written from this, so that even an unknown operator has a description.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir import IRModule
from tvm.s_tir import SBlockRealize
from tvm_ffi import structural_walk

from tlmd.data.computation import Access, Block, Computation

_ITER_KINDS = {0: "S", 2: "R"}  # IterVar.DataPar, IterVar.CommReduce
_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.Div: "div",
    tirx.Max: "max",
    tirx.Min: "min",
    tirx.Cast: "cast",
    tirx.Select: "select",
    tirx.EQ: "compare",
    tirx.NE: "compare",
    tirx.LT: "compare",
    tirx.LE: "compare",
    tirx.GT: "compare",
    tirx.GE: "compare",
}


def describe(module: IRModule) -> Computation:
    """Describe the function `main` of a TensorIR module."""
    realizes = _blocks(module["main"].body)
    writers = {write.source: index for index, r in enumerate(realizes) for write in r.block.writes}
    return Computation(tuple(_block(r.block, writers) for r in realizes))


def _blocks(body: Any) -> list[Any]:
    """All block realizes in execution order, without the root block, which computes nothing."""
    realizes: list[Any] = []

    def visit(node: Any) -> None:
        if node.block.name_hint != "root":
            realizes.append(node)

    structural_walk(body, (SBlockRealize, visit))
    return realizes


def _block(block: tvm.s_tir.SBlock, writers: dict[Any, int]) -> Block:
    iters = {iv.var: index for index, iv in enumerate(block.iter_vars)}
    kinds = tuple(
        (_ITER_KINDS.get(int(iv.iter_type), "O"), _constant(iv.dom.extent))
        for iv in block.iter_vars
    )
    reads = tuple(_access(r, iters, writers) for r in block.reads)
    writes = tuple(_access(w, iters, writers) for w in block.writes)
    return Block(kinds, reads, writes, _ops(block.body))


def _access(region: Any, iters: dict[Any, int], writers: dict[Any, int]) -> Access:
    packed = _packed(region, iters)
    dims = tuple(
        packed[i] if i in packed else _index(r.min, iters) for i, r in enumerate(region.region)
    )
    return Access(writers.get(region.source, -1), str(region.source.ty.dtype), dims)


def _packed(region: Any, iters: dict[Any, int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """The dimensions indexed by ``v // c`` and ``v % c``: together they are as large as ``v``.

    The second one stands for both, and the first one for none, so that a packed operand is
    described like one that is not packed.
    """
    parts: dict[tuple[Any, int], dict[type, int]] = {}
    for place, side in enumerate(region.region):
        if isinstance(side.min, tirx.FloorDiv | tirx.FloorMod) and side.min.a in iters:
            key = iters[side.min.a], _constant(side.min.b)
            parts.setdefault(key, {})[type(side.min)] = place
    terms: dict[int, tuple[tuple[int, int], ...]] = {}
    for (iterator, _), places in parts.items():
        if len(places) == 2:
            terms |= {places[tirx.FloorDiv]: (), places[tirx.FloorMod]: ((iterator, 1),)}
    return terms


def _index(expr: tvm.ir.Expr, iters: dict[Any, int]) -> tuple[tuple[int, int], ...]:
    """The terms of an index. If it is not affine, its iterators have stride 0.

    ``min(index, constant)``, an index of a padded program, is described like the index.
    """
    if isinstance(expr, tirx.Min) and isinstance(expr.b, tirx.IntImm):
        expr = expr.a
    used: list[Any] = []

    def visit(node: Any) -> None:
        if node in iters and not any(node.same_as(v) for v in used):
            used.append(node)

    structural_walk(expr, (tirx.Var, visit))
    if not used:
        return ()
    # The result has one coefficient per variable and then the constant. Not affine: it is empty.
    linear = sym.detect_linear_equation(expr, used)
    strides = [_constant(c) for c in list(linear)[: len(used)]] if len(linear) else []
    if not strides or any(s == 0 for s in strides):
        return tuple((iters[v], 0) for v in used)
    return tuple((iters[v], s) for v, s in zip(used, strides, strict=True))


def _ops(body: Any) -> tuple[str, ...]:
    """The arithmetic operations of a block, each once, in order of first appearance."""
    names: dict[str, None] = {}

    def visit(node: Any) -> None:
        # Skip index arithmetic (int64): the accesses describe it.
        if str(node.ty.dtype) != "int64":
            names.setdefault(_BINARY[type(node)])

    def visit_call(node: Any) -> None:
        names.setdefault(str(node.op.name).rpartition(".")[2])

    structural_walk(body, [(tuple(_BINARY), visit), (tvm.ir.Call, visit_call)])
    return tuple(names)


def _constant(expr: tvm.ir.Expr) -> int:
    """The value of a constant expression; 0 for any other expression."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tvm.tirx.IntImm) else 0


def block_names(module: IRModule) -> list[str]:
    """The names of the blocks of `main`, in the order of its `Computation`."""
    return [str(realize.block.name_hint) for realize in _blocks(module["main"].body)]
