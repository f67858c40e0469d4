"""The loops around the products of a scheduled program, and the weights that they read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from tlmd.alternatives.expressions import REDUCTION, flattened, substituted, unflattened, uses

LOOPS = (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
"""Kinds of loops that are loops in the built program, too."""
IMPORT = "pragma_import_llvm"
"""The annotation of a loop whose value is LLVM that the program imports."""


@dataclass(frozen=True)
class Products:
    """The products of a program."""

    around: list[Any]
    """The loops around them, the outermost one first."""

    block: Any
    read: Any
    """The region of the weights that is read."""

    at: list[Any]
    """Its first indices, of the variables of the loops."""


def find(function: Any, names: Sequence[str]) -> Products | None:
    """The products in a block whose name begins with one of these; None without any."""
    *around, products = _path(function.body, tuple(names)) or [None]
    if products is None or not products.block.reads:
        return None
    block = products.block
    read = block.reads[-1]
    bound = zip(block.iter_vars, products.iter_values, strict=True)
    values = [(one.var, value) for one, value in bound]
    # A loop of one turn may be inside of the loop that fetches.
    single = [(loop.loop_var, loop.min) for loop in around if extent(loop) == 1]
    at = [substituted(substituted(side.min, values), single) for side in read.region]
    return Products(around, block, read, at)


def built_loops(around: Sequence[Any]) -> list[Any]:
    """The loops around products that have several iterations in the built program."""
    return [loop for loop in around if loop.kind in LOOPS and extent(loop) > 1]


def following(loops: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The values of a nest of loops in the iteration after this one; after the last one its own."""
    variables, extents = [loop.loop_var for loop in loops], list(map(extent, loops))
    place = tirx.min(flattened(variables, extents) + 1, math.prod(extents) - 1)
    return list(zip(variables, unflattened(place, extents), strict=True))


def changes(at: Sequence[Any], loop: Any) -> bool:
    """Whether an index depends on the loop."""
    return any(uses(index, loop.loop_var) for index in at)


def extent(loop: Any) -> int:
    return int(loop.extent)


def replaced(loop: Any, body: Any, annotations: Any, kind: Any = None) -> Any:
    """A loop with another body and other annotations, and perhaps of another kind."""
    head = loop.loop_var, loop.min, loop.extent, loop.kind if kind is None else kind, body
    return tirx.For(*head, loop.thread_binding, annotations, loop.step)


def _path(body: Any, names: tuple[str, ...]) -> list[Any] | None:
    """The loops around the products, the outermost one first, and their block; None without any."""
    if isinstance(body, SBlockRealize):
        block = body.block
        sums = any(int(one.iter_type) == REDUCTION for one in block.iter_vars)
        is_it = sums and block.name_hint.startswith(names)
        return [body] if is_it else _path(block.body, names)
    if isinstance(body, tirx.SeqStmt):
        return next(filter(None, (_path(one, names) for one in body.seq)), None)
    inner = _path(body.body, names) if hasattr(body, "body") else None
    return [body, *inner] if inner and isinstance(body, tirx.For) else inner
