"""An expansion and the depthwise convolution after it become one function.

An expansion is a convolution that makes few channels many, of 1 x 1 or the first one of a network.
TVM's fusion ends at the second sum. But the result of a large expansion (MobileNet: 112 x 112 x 96,
4.8 MB) would be written to memory and read again, though only the depthwise convolution needs it.
`tlmd.space.rules.expansion_sketches` is the sketch of such functions.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes import rewrites

_LEAST_BYTES = 1 << 20
"""Bytes of the expansion's result. Smaller ones stay in the caches of a core."""

_MOST_PRODUCTS = 64
"""Operations of an element in a window of several pixels. With more, packed weights are faster."""

_MOST_ROW_BYTES = 40 << 10
"""Bytes of a row of data. With longer rows a strip has few; most are computed twice."""

_PRIMITIVE = "Primitive"


def join_expansions() -> Any:
    """A module pass between the fusion of operators and `FuseTIR`."""
    return tvm.transform.module_pass(_join, opt_level=0, name="TlmdJoinExpansions")


def _join(module: IRModule, _context: Any) -> IRModule:
    groups = {var: func for var, func in module.functions.items() if _is_group(func)}
    made: dict[Any, Any] = {}

    @mutator
    class Join(PyExprMutator):  # type: ignore[misc]
        """Calls one function instead of two."""

        def prepare(self, func: Any) -> None:
            self.values = relax.analysis.get_var2val(func)
            self.uses = rewrites.uses_of(func)

        def visit_call_(self, call: relax.Call) -> Any:
            first = self.expansion(call)
            if first is None:
                return super().visit_call_(call)
            key = (first.op, call.op)
            if key not in made:
                name = f"{first.op.name_hint}_{str(call.op.name_hint).removeprefix('fused_')}"
                joined = _joined(groups[first.op], groups[call.op])
                made[key] = self.builder_.add_func(joined, name)
            arguments = [self.visit_expr(one) for one in (*first.args, *call.args[1:])]
            return relax.Call(made[key], arguments)

        def expansion(self, call: relax.Call) -> Any:
            """The call of the large expansion that only this call of a depthwise one reads."""
            if call.op not in groups or not call.args or self.uses[call.args[0]] != 1:
                return None
            first = self.values.get(call.args[0])
            if getattr(first, "op", None) not in groups or not _is_depthwise(groups[call.op]):
                return None
            return first if _is_large_expansion(groups[first.op]) else None

    joined_module = rewrites.apply([Join])(module)
    return relax.transform.DeadCodeElimination()(joined_module) if made else module


def _is_group(func: Any) -> bool:
    return bool(isinstance(func, relax.Function) and func.attrs and _PRIMITIVE in func.attrs)


def _bindings(group: relax.Function) -> list[Any]:
    return [binding for block in group.body.blocks for binding in block.bindings]


def _shapes(group: relax.Function) -> tuple[list[int], list[int], list[int]] | None:
    """Shapes of data, weights and result of the sum that a group begins with, in float32."""
    first = _bindings(group)[0]
    if rewrites.op_name(first.value) != "relax.call_tir" or len(first.value.args[1].fields) != 2:
        return None
    data, weights = first.value.args[1].fields
    tensors = (data, weights, first.var)
    is_first = group.params and data.same_as(group.params[0])
    is_single = isinstance(group.body.body, relax.Var)
    dtypes = {rewrites.dtype_of(tensor) for tensor in tensors}
    if not (is_first and is_single) or dtypes != {"float32"}:
        return None
    shapes = [[int(extent) for extent in tensor.ty.shape] for tensor in tensors]
    return (shapes[0], shapes[1], shapes[2]) if all(len(s) == 4 for s in shapes) else None


def _is_large_expansion(group: relax.Function) -> bool:
    """Whether each element is a sum over all channels of few pixels, and the result is large."""
    shapes = _shapes(group)
    if shapes is None:
        return False
    data, weights, made = shapes
    window = math.prod(weights[:2])
    is_short = window == 1 or window * data[-1] <= _MOST_PRODUCTS
    is_narrow = 4 * math.prod(data[2:]) <= _MOST_ROW_BYTES
    written = [int(extent) for extent in group.ret_ty.shape]
    is_expansion = weights[2:] == [data[-1], made[-1]] and written == made
    is_suitable = is_expansion and is_short and is_narrow
    return is_suitable and 4 * math.prod(made[1:]) >= _LEAST_BYTES


def _is_depthwise(group: relax.Function) -> bool:
    shapes = _shapes(group)
    if shapes is None:
        return False
    data, weights, _ = shapes
    is_used_once = rewrites.uses_of(group)[group.params[0]] == 1
    return is_used_once and weights[2] == 1 and weights[3] == data[3] > 1


def _joined(expansion: relax.Function, depthwise: relax.Function) -> Any:
    """One group that does what the two do."""
    builder = relax.BlockBuilder()
    first = [relax.Var(f"a{i}", param.ty) for i, param in enumerate(expansion.params)]
    others = [relax.Var(f"b{i}", param.ty) for i, param in enumerate(depthwise.params[1:])]
    with builder.function("main", [*first, *others], attrs={_PRIMITIVE: True}):
        with builder.dataflow():
            made = _emit(builder, expansion, first)
            result = builder.emit_output(_emit(builder, depthwise, [made, *others]))
        builder.emit_func_output(result)
    return builder.get()["main"].without_attr("global_symbol")


def _emit(builder: relax.BlockBuilder, group: relax.Function, arguments: list[Any]) -> Any:
    """Emit the bindings of a group with these arguments; its result."""
    values = dict(zip(group.params, arguments, strict=True))
    for binding in _bindings(group):
        call = binding.value
        fields = [values.get(field, field) for field in call.args[1].fields]
        copied = relax.Call(call.op, [call.args[0], relax.Tuple(fields)], call.attrs, call.ty_args)
        values[binding.var] = builder.emit(copied)
    return values[group.body.body]
