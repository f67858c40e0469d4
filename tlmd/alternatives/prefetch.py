"""Prefetches of weights: while tiles use one panel, the weights after it are fetched.

In a model the weights of a layer come from memory, because the other layers have evicted them. Many
tiles of rows use a panel of weights; only the first one waits for the memory, which is idle while
the others are computed. So every tile fetches its share of the next panel, by one instruction for
many multiply-adds (software prefetching: Callahan, Kennedy and Porterfield, ASPLOS'91).

Sketches and records do not know of it: it is added to a scheduled program before it is built. The
program computes the same without it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule

from tlmd.alternatives import catalogue
from tlmd.alternatives.amx import amx_calls
from tlmd.alternatives.expressions import flattened, substituted, unflattened
from tlmd.alternatives.product_loops import (
    IMPORT,
    LOOPS,
    Products,
    built_loops,
    changes,
    extent,
    find,
    following,
    replaced,
)

_ELEMENT_BYTES, _MOST_BYTES = 4, 1 << 20
"""Bytes of a weight, and of a panel of weights that stays in the second-level cache."""
_FUNCTION = "tlmd_prefetch"
_LLVM = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr void @{_FUNCTION}(ptr %address) alwaysinline {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 3, i32 1)
    memory(inaccessiblemem: readwrite) nounwind willreturn
  ret void
}}
"""
"""TVM's own prefetch might read the sums, so LLVM would store these in each turn of the loop."""


@dataclass(frozen=True)
class _ProductLoops:
    """The loops around the products of a program, by what they change of the weights."""

    products: Products

    outer: Sequence[Any]
    """Loops outside the tiles, the outermost one first; some of them change what is read."""

    tiles: Sequence[Any]
    """Loops over the tiles that use the same weights."""

    inner: Sequence[Any]
    """Loops of a tile that change what is read; the last one is the innermost loop of all."""

    unrolled: Sequence[Any]

    def vectors(self) -> list[Any]:
        """The unrolled loops over vectors of the weights."""
        loops = (loop for loop in self.unrolled if loop.kind != tirx.ForKind.VECTORIZED)
        return [loop for loop in loops if changes(self.products.at, loop)]

    def panel_bytes(self) -> int:
        """Bytes of the weights that a tile reads."""
        lanes = [loop for loop in self.unrolled if loop.kind == tirx.ForKind.VECTORIZED]
        extents = map(extent, [*self.inner, *self.vectors(), *lanes, *self.products.read.region])
        return _ELEMENT_BYTES * math.prod(extents)


def with_prefetches(module: IRModule) -> IRModule:
    """A module of scheduled programs, in which those of alternatives prefetch their weights.

    Those for the matrix unit call its kernels as `amx_calls` says.
    """
    made = module.clone()
    for variable, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        nest = _product_loops(function)
        body = amx_calls.changed(function) if nest is None else _prefetching(function.body, nest)
        if body is not None:
            made.update_func(variable, function.with_body(body))
    return made


def _product_loops(function: Any) -> _ProductLoops | None:
    """None where a program has no such products, or no panel of weights stays in the cache."""
    products = find(function, catalogue.products())
    if products is None:
        return None
    loops = built_loops(products.around)
    changed = [changes(products.at, loop) for loop in loops]
    grouped = itertools.groupby(zip(changed, loops, strict=True), key=operator.itemgetter(0))
    runs = [[loop for _, loop in run] for _, run in grouped]
    if len(runs) < 3 or not changed[-1]:
        return None
    outer = [loop for run in runs[:-2] for loop in run]
    unrolled = [loop for loop in products.around if loop.kind not in LOOPS]
    nest = _ProductLoops(products, outer, runs[-2], runs[-1], unrolled)
    return nest if nest.panel_bytes() <= _MOST_BYTES else None


def _prefetching(body: Any, nest: _ProductLoops) -> Any:
    """The body of a function with prefetches at the beginning of the innermost loop."""
    innermost, outermost = nest.inner[-1].loop_var, nest.outer[0].loop_var
    after = following(nest.outer)
    fetched = [_fetch(nest, [*after, *share]) for share in _shares(nest)]

    def changed(loop: Any) -> Any:
        if loop.loop_var.same_as(innermost):
            return replaced(loop, tirx.SeqStmt([*fetched, loop.body]), loop.annotations)
        if loop.loop_var.same_as(outermost):
            return replaced(loop, loop.body, {**loop.annotations, IMPORT: _LLVM})
        return loop

    return tvm_ffi.structural_map(body, (tirx.For, changed))


def _shares(nest: _ProductLoops) -> Iterator[list[tuple[Any, Any]]]:
    """For each vector of weights that a tile fetches: the values of the unrolled loops."""
    first = [(loop.loop_var, tirx.const(0, "int64")) for loop in nest.unrolled]
    loops = nest.vectors()
    extents, counts = list(map(extent, loops)), list(map(extent, nest.tiles))
    vectors, tiles = math.prod(extents), math.prod(counts)
    tile = flattened([loop.loop_var for loop in nest.tiles], counts)
    share = -(-vectors // tiles)
    for index in range(share):
        # With more tiles than vectors some tiles fetch the same one: a branch would cost more.
        place = tirx.floordiv(tile * vectors, tiles) if share == 1 else tile * share + index
        chosen = unflattened(tirx.min(place, vectors - 1), extents)
        yield [*zip((loop.loop_var for loop in loops), chosen, strict=True), *first]


def _fetch(nest: _ProductLoops, values: Sequence[tuple[Any, Any]]) -> Any:
    """The statement that prefetches the weights which are read with these values of loops."""
    at = [substituted(index, values) for index in nest.products.at]
    address = tirx.address_of(tirx.BufferLoad(nest.products.read.source, at))
    return tirx.Evaluate(tirx.call_extern("void", _FUNCTION, address))
