"""Fusion of operators, except where TVM would copy a costly expression many times.

TVM writes an element-wise operator into each place that reads its result. A pixel of a transposed
convolution is a sum of terms with conditions; a polynomial (tanh, sigmoid) reads its argument some
twenty times. Together they are an expression with hundreds of conditions, on which TVM's simplifier
spends minutes. Then the sum stays a function of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax import transform
from tvm.s_tir import SBlockRealize
from tvm_ffi import structural_walk

from tlmd.lowering.passes.rewrites import op_name

_MOST_CONDITIONS = 64
"""Operations of one element. TVM applies a candidate with 88 in 0.8 s, one with 198 in 9 s."""
_OPAQUE = 8  # TVM's pattern of an operator that is never fused


@dataclass
class _Copies:
    """Copies in one element of a result, when everything element-wise is written into it."""

    conditions: int = 0
    reads: Counter[Any] = field(default_factory=Counter)
    """How often each argument of the function is read."""

    def add(self, other: _Copies) -> None:
        self.conditions += other.conditions
        self.reads.update(other.reads)


def fuse() -> Any:
    """A module pass like `FuseOps`."""
    return tvm.transform.module_pass(_fuse, opt_level=0, name="TlmdFuse")


def _fuse(module: IRModule, _context: Any) -> IRModule:
    fused = transform.FuseOps()(module)
    functions = {str(var.name_hint): func for var, func in fused.functions.items()}
    apart: set[str] = set()
    for func in functions.values():
        if isinstance(func, relax.Function) and func.attrs and "Primitive" in func.attrs:
            apart |= _copied(functions, func)
    if not apart:
        return fused
    marked = {
        var: func.with_attr("op_pattern", _OPAQUE) if str(var.name_hint) in apart else func
        for var, func in module.functions.items()
    }
    return transform.FuseOps()(IRModule(marked, attrs=module.attrs))


def _copied(functions: Mapping[str, Any], group: relax.Function) -> set[str]:
    """Names of the functions with the most conditions, if too many are copied in this group."""
    of_result: dict[Any, int] = {}
    own: dict[str, int] = {}
    for binding in (binding for block in group.body.blocks for binding in block.bindings):
        if op_name(binding.value) != "relax.call_tir":
            continue
        function, arguments = binding.value.args[:2]
        name = str(function.name_hint)
        copies = _copies(functions[name])
        own[name] = copies.conditions
        of_result[binding.var] = copies.conditions + sum(
            copies.reads[index] * of_result.get(argument, 0)
            for index, argument in enumerate(arguments)
        )
    if max(of_result.values(), default=0) <= _MOST_CONDITIONS:
        return set()
    most = max(own.values())
    return {name for name, conditions in own.items() if conditions == most}


def _copies(function: tvm.tirx.PrimFunc) -> _Copies:
    """Copies in one element of the result of a function; `reads` by parameter."""
    made = {
        parameter: _Copies(reads=Counter([index]))
        for index, parameter in enumerate(function.params)
    }
    copies = _Copies()

    def visit(realize: SBlockRealize) -> None:
        nonlocal copies
        block = realize.block
        if block.name_hint == "root":
            return
        copies = _Copies()
        if block.init is None:  # a sum is computed once
            _add_body(block.body, made, copies)
        for write in block.writes:
            made[write.source] = copies

    structural_walk(function.body, (SBlockRealize, visit))
    return copies


def _add_body(body: Any, made: dict[Any, _Copies], copies: _Copies) -> None:
    def visit_read(read: tvm.ir.expr.TensorLoad) -> None:
        copies.add(made.get(read.source, _Copies()))

    def visit_call(call: tvm.ir.Call) -> None:
        if str(call.op.name).endswith("if_then_else"):
            copies.conditions += 1

    structural_walk(body, [(tvm.ir.expr.TensorLoad, visit_read), (tvm.ir.Call, visit_call)])
