"""Recognises attention in a graph.

Models spell it out: a matmul of query and transposed key, a scale, a mask, a softmax and a matmul
with the value, with moves between them. Query, key and value may be columns of one tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tlmd.alternatives.attention.attention import Attention
from tlmd.alternatives.attention.attention_operand import Operand
from tlmd.lowering.passes.columns import View, columns_of
from tlmd.lowering.passes.reshapes import order_of, static_shape
from tlmd.lowering.passes.rewrites import dtype_of, factor_of, op_name, uses_of
from tlmd.space.hardware.target import vector_unit

_RANK = 4  # images, heads, rows, elements of a head
_WITHOUT_KEYS = (
    *("relax.logical_not", "relax.astype", "relax.max", "relax.astype", "relax.logical_not"),
    "relax.equal",
)
"""How PyTorch finds rows whose scores are all minus infinity, from the last step to the first."""


@dataclass(frozen=True)
class _Scores:
    """``query key^T * scale + bias`` of a softmax."""

    query: Any
    key: Any
    """Transposed."""

    scale: float
    bias: Any | None


@dataclass(frozen=True)
class FoundAttention:
    """Attention in a graph."""

    attention: Attention
    views: tuple[View, View, View]
    """Query, key and value."""

    bias: list[Any]
    """As `Attention` reads it; empty if it is 0 everywhere."""


class AttentionPattern:
    """Recognises attention in one Relax function."""

    def __init__(self, func: relax.Function) -> None:
        self.values = relax.analysis.get_var2val(func)
        self.uses = uses_of(func)

    def find(self, call: relax.Call) -> FoundAttention | None:
        """The attention that ends with `call`, a matmul of weights and value; None if none does."""
        if op_name(call) != "relax.matmul":
            return None
        softmax, is_safe = self._softmax(call.args[0])
        if op_name(softmax) != "relax.nn.softmax" or dtype_of(call) != "float32":
            return None
        if int(softmax.attrs.axis) not in (-1, int(softmax.ty.ndim) - 1):
            return None
        scores = self._scores(softmax.args[0], 2 if is_safe else 1)
        if scores is None or dtype_of(scores.query) != "float32":
            return None
        views = self._views(scores.query, scores.key, call.args[1])
        unit = vector_unit(tvm.target.Target.current())
        if views is None or views[0].operand.size("D") % unit.lanes:
            return None
        query, key, value = (view.operand for view in views)
        scale = scores.scale * math.prod(view.factor for view in views)
        if value.size("D") % unit.lanes or scale <= 0:
            return None
        tables = (static_shape(one) for one in (call.args[0], softmax.args[0]))
        if any(table is None or table[-2:] != (query.size("L"), key.size("L")) for table in tables):
            return None  # a reshape mixes rows and keys
        attention = Attention(
            query, key, value, scale, is_safe, unit.lanes, registers=unit.registers
        )
        bias = self._bias(scores.bias, attention)
        return None if bias is None else FoundAttention(attention, views, bias)

    def value(self, expr: relax.Expr) -> Any:
        """The expression of a variable."""
        while isinstance(expr, relax.Var) and expr in self.values:
            expr = self.values[expr]
        return expr

    def _only(self, expr: relax.Expr, uses: int = 1) -> Any:
        """The expression of a variable, through reshapes; None if anything else uses it."""
        while isinstance(expr, relax.Var) and expr in self.values:
            if self.uses[expr] != uses:
                return None
            expr, uses = self.values[expr], 1
            if op_name(expr) == "relax.reshape":
                expr = expr.args[0]
        return expr

    def _softmax(self, expr: relax.Expr) -> tuple[Any, bool]:
        """A softmax, and whether rows without any key become 0, as PyTorch's functions do."""
        value = self._only(expr)
        if op_name(value) != "relax.where":
            return value, False
        condition, zero, other = value.args
        softmax, zero = self._only(other), self.value(zero)
        is_zero = isinstance(zero, GenericConst) and not zero.value.numpy().any()
        if op_name(softmax) != "relax.nn.softmax" or not is_zero:
            return None, False
        for step in _WITHOUT_KEYS:
            condition = self._only(condition)
            if op_name(condition) != step:
                return None, False
            scores, condition = condition.args, condition.args[0]
        lowest = self.value(scores[1])
        is_lowest = isinstance(lowest, GenericConst) and lowest.value.numpy() == -math.inf
        return (
            (softmax, True) if is_lowest and scores[0].same_as(softmax.args[0]) else (None, False)
        )

    def _scores(self, expr: relax.Expr, uses: int) -> _Scores | None:
        """The input of a softmax, if it is the scaled and biased matmul of two tensors."""
        value, bias = self._only(expr, uses), None
        if op_name(value) == "relax.add":
            sides = [self._only(side) for side in value.args]
            inner = [i for i, side in enumerate(sides) if self._scaled(side) is not None]
            if len(inner) != 1:
                return None
            value, bias = sides[inner[0]], value.args[1 - inner[0]]
            if dtype_of(bias) != "float32" or static_shape(bias) is None:
                return None
        scaled = self._scaled(value)
        if scaled is None:
            return None
        matmul, scale = scaled
        return _Scores(matmul.args[0], matmul.args[1], scale, bias)

    def _scaled(self, value: relax.Expr) -> tuple[Any, float] | None:
        """A matmul and the number that it is multiplied by."""
        scale = 1.0
        while (times := factor_of(value)) is not None:
            scale *= times
            value = self._only(value.args[0])
        return (value, scale) if op_name(value) == "relax.matmul" else None

    def _views(
        self, query: relax.Expr, key: relax.Expr, value: relax.Expr
    ) -> tuple[View, View, View] | None:
        """The operands before their transposes; as they are if these do not fit each other."""
        wanted = (query, "BHLD"), (key, "BHDL"), (value, "BHLD")
        views = [self._view(expr, order) for expr, order in wanted]
        if views[2] is not None and views[2].factor != 1:
            views[2] = None
        if None in views or not _fit(*(view.operand for view in views if view)):
            views = [self._plain(expr, order) for expr, order in wanted]
        first, second, third = views
        if first is None or second is None or third is None:
            return None
        return first, second, third

    def _view(self, expr: relax.Expr, order: str) -> View | None:
        """The tensor that `expr` is a view of."""
        shape, value = static_shape(expr), self.value(expr)
        if shape is None:
            return None
        if order[:2] == "BH" and (repeated := self._repeated(value)) is not None:
            return self._view(repeated, order)
        if order.startswith("BH") and (columns := columns_of(expr, order, self.value)) is not None:
            return columns
        if len(shape) != _RANK:
            before = static_shape(value.args[0]) if op_name(value) == "relax.reshape" else None
            if before is None or len(before) != _RANK or before[2:] != shape[1:]:
                return None
            return self._view(value.args[0], order)
        if op_name(value) == "relax.permute_dims":
            axes = order_of(value, _RANK)
            return self._view(value.args[0], "".join(order[axes.index(i)] for i in range(_RANK)))
        if (times := factor_of(value)) is not None:
            view = self._view(value.args[0], order)
            return view and replace(view, factor=view.factor * times)
        return View(expr, Operand(order, shape))

    def _repeated(self, value: relax.Expr) -> Any | None:
        """The tensor of which `value` has each head several times, as grouped queries need it."""
        steps = ("relax.reshape", "relax.broadcast_to", "relax.reshape")
        shapes = [static_shape(value)]
        for step in steps:
            if op_name(value) != step:
                return None
            expr = value.args[0]
            shapes.append(static_shape(expr))
            value = self.value(expr)
        flat, wide, narrow, source = shapes
        if flat is None or wide is None or source is None or len(source) != _RANK:
            return None
        images, heads, *rest = source
        is_repeat = narrow == (images, heads, 1, *rest) and wide[:2] == (images, heads)
        return expr if is_repeat and wide[3:] == tuple(rest) == flat[-2:] else None

    def _plain(self, expr: relax.Expr, order: str) -> View | None:
        """`expr` as it is, ``[groups, rows, elements]``, with one head for each group."""
        shape = static_shape(expr)
        if shape is None or len(shape) != _RANK - 1:
            return None
        return View(expr, Operand(order, (shape[0], 1, *shape[1:])))

    def _bias(self, bias: Any | None, attention: Attention) -> list[Any] | None:
        """The bias as `Attention` reads it; none if it is 0 everywhere; None if it does not fit."""
        value = self.value(bias)
        while op_name(value) in ("relax.reshape", "relax.broadcast_to"):
            value = self.value(value.args[0])
        if bias is None or (isinstance(value, GenericConst) and not value.value.numpy().any()):
            return []
        images, heads = attention.query.size("B"), attention.query.size("H")
        shape = static_shape(bias) or ()
        *outer, rows, keys = (1,) * (3 - len(shape)) + tuple(shape)
        if rows not in (1, attention.rows) or keys not in (1, attention.keys):
            return None
        groups = math.prod(outer)
        if groups in (1, images * heads):
            return [relax.op.reshape(bias, (groups, rows, keys))]
        if len(outer) != 2 or outer[0] not in (1, images) or outer[1] not in (1, heads):
            return None
        wide = relax.op.broadcast_to(bias, (images, heads, rows, keys))
        return [relax.op.reshape(wide, (images * heads, rows, keys))]


def _fit(query: Operand, key: Operand, value: Operand) -> bool:
    """Whether the operands have the same images, keys and shared heads."""
    images = {operand.size("B") for operand in (query, key, value)}
    same_keys = key.size("L") == value.size("L") and query.size("D") == key.size("D")
    shares = all(query.size("H") % operand.size("H") == 0 for operand in (key, value))
    return len(images) == 1 and same_keys and shares
