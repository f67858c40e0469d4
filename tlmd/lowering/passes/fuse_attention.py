"""Makes one function of each attention of a graph, which becomes one task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.attention_pattern import AttentionPattern, FoundAttention
from tlmd.lowering.passes.columns import View
from tlmd.lowering.passes.reshapes import static_shape

_OPAQUE = 8  # op_pattern: nothing is fused with it
ORIGIN = "tlmd.attention"
"""The attribute with the `Attention` that a function was made from, as JSON."""


@mutator
class FuseAttention(PyExprMutator):  # type: ignore[misc]
    """Replaces the second matmul of attention by a call that computes all of it.

    The replaced operators have no other use and are removed as dead code afterwards.
    """

    def prepare(self, func: relax.Function) -> None:
        self.pattern = AttentionPattern(func)

    def visit_call_(self, call: relax.Call) -> Any:
        matched = self.pattern.find(call)
        return super().visit_call_(call) if matched is None else self._fused(call, matched)

    def _fused(self, call: relax.Call, matched: FoundAttention) -> Any:
        """The call of the attention, whose result has the shape of `call`."""
        tensors: list[View] = []
        places = []
        for view in matched.views:  # several may be parts of one tensor
            place = next((i for i, one in enumerate(tensors) if _is_same(one, view)), len(tensors))
            if place == len(tensors):
                tensors.append(view)
            places.append(place)
        query, key, value = places
        attention = replace(matched.attention, tensors=(query, key, value))
        reshaped = [relax.op.reshape(one.variable, one.operand.shape) for one in tensors]
        given = [
            view.variable if static_shape(view.variable) == view.operand.shape else other
            for view, other in zip(tensors, reshaped, strict=True)
        ]
        arguments = [
            self.builder_.normalize(self.visit_expr(one)) for one in (*given, *matched.bias)
        ]
        called = self.builder_.call_te(
            attention,
            *arguments,
            primfunc_name_hint="attention",
            primfunc_attrs={"op_pattern": _OPAQUE, ORIGIN: attention.to_json()},
        )
        context = relax.op.permute_dims(self.builder_.emit(called), [0, 2, 1, 3])
        return relax.op.reshape(self.builder_.emit(context), static_shape(call))


def _is_same(one: View, other: View) -> bool:
    """Whether both are of the same tensor."""
    is_same: bool = one.variable.same_as(other.variable)
    return is_same and one.operand.shape == other.operand.shape
