"""Makes one matmul of the projections of attention that have the same input.

Query, key and value are products of one tensor with three constant weights. One product with the
columns of all three reads the data once, and the more columns a product has, the more Strassen's
algorithm gains. Attention reads its operands from these columns (`columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.lowering.passes.attention_pattern import AttentionPattern
from tlmd.lowering.passes.reshapes import static_shape
from tlmd.lowering.passes.rewrites import dtype_of, op_name

_MOST_OPERATORS = 24  # between a projection and its attention; rotary embedding has ten


@dataclass(eq=False)
class _Combined:
    """Projections of one tensor, and the variable of their common product once there is one."""

    data: Any
    members: list[_Projection]
    product: Any = None


@dataclass(frozen=True)
class _Projection:
    """``data weights + bias``."""

    matmul: Any
    result: Any
    """The call of the sum; without a bias the matmul itself."""

    weights: Any
    """``[K, N]``, an array."""

    bias: Any | None
    """``[N]``, an array."""


@mutator
class CombineProjections(PyExprMutator):  # type: ignore[misc]
    """Replaces projections of attention with the same input by columns of one product."""

    def prepare(self, func: relax.Function) -> None:
        self.pattern = AttentionPattern(func)
        self.users: dict[Any, Any] = {
            argument: call
            for call in self.pattern.values.values()
            for argument in getattr(call, "args", ())
            if isinstance(argument, relax.Var)
        }
        self.columns: dict[Any, tuple[_Combined, int]] = {}
        for call in self.pattern.values.values():
            matched = self.pattern.find(call)
            if matched is not None:
                self._plan([view.variable for view in matched.views])

    def visit_call_(self, call: relax.Call) -> Any:
        if call not in self.columns:
            return super().visit_call_(call)
        group, first = self.columns[call]
        if group.product is None:
            group.product = self._product(group)
        shape = static_shape(call) or ()
        return relax.op.strided_slice(group.product, [len(shape) - 1], [first], [first + shape[-1]])

    def _plan(self, operands: list[Any]) -> None:
        """Group the projections that lead to the operands of one attention."""
        groups: list[_Combined] = []
        for matmul in self._matmuls(operands):
            projection = self._projection(matmul)
            if projection is None or projection.result in self.columns:
                continue
            data = matmul.args[0]
            group = next((one for one in groups if one.data.same_as(data)), None)
            if group is None:
                groups.append(group := _Combined(data, []))
            group.members.append(projection)
        for group in groups:
            first = 0
            for one in group.members if len(group.members) > 1 else ():
                self.columns[one.result] = group, first
                first += one.weights.shape[1]

    def _matmuls(self, operands: list[Any]) -> list[Any]:
        """The nearest matmuls that the operands are computed from, each once."""
        matmuls: list[Any] = []
        for operand in operands:
            waiting, seen = [operand], 0
            while waiting and seen < _MOST_OPERATORS:
                value = self.pattern.value(waiting.pop(0))
                seen += 1
                if op_name(value) == "relax.matmul":
                    if not any(value.same_as(one) for one in matmuls):
                        matmuls.append(value)
                elif isinstance(value, relax.TupleGetItem):
                    waiting.append(value.tuple_value)
                elif isinstance(value, relax.Call):
                    listed = [getattr(argument, "fields", [argument]) for argument in value.args]
                    waiting += [v for some in listed for v in some if isinstance(v, relax.Var)]
        return matmuls

    def _projection(self, matmul: relax.Call) -> _Projection | None:
        """None if the weights are no constant matrix, or the product is used more than once."""
        data, weights = matmul.args
        is_matrix = isinstance(weights, GenericConst) and len(static_shape(weights) or ()) == 2
        if not is_matrix or not isinstance(data, relax.Var) or static_shape(data) is None:
            return None
        if {dtype_of(one) for one in (data, weights, matmul)} != {"float32"}:
            return None
        values = weights.value.numpy()
        user = self._only_user(matmul)
        if user is None:
            return None
        if op_name(user) == "relax.add":
            other = user.args[1] if isinstance(user.args[0], relax.Var) else user.args[0]
            if isinstance(other, GenericConst) and static_shape(other) == values.shape[1:]:
                return _Projection(matmul, user, values, other.value.numpy())
        return _Projection(matmul, matmul, values, None)

    def _only_user(self, matmul: relax.Call) -> Any | None:
        """The only call that uses a call's result; None if something else does, too."""
        variables = [v for v, call in self.pattern.values.items() if call.same_as(matmul)]
        if len(variables) != 1 or self.pattern.uses[variables[0]] != 1:
            return None
        return self.users.get(variables[0])

    def _product(self, group: _Combined) -> Any:
        """The variable of the product with all weights, with all biases if there are any."""
        weights = np.concatenate([one.weights for one in group.members], 1)
        data = self.visit_expr(group.data)
        product = self.builder_.emit(relax.op.matmul(data, relax.const(weights, "float32")))
        if all(one.bias is None for one in group.members):
            return product
        biases = [
            np.zeros(one.weights.shape[1], "float32") if one.bias is None else one.bias
            for one in group.members
        ]
        return self.builder_.emit(relax.op.add(product, relax.const(np.concatenate(biases))))
