"""How scheduled programs call the kernels of the CPU's matrix unit, when they are built.

As in `prefetch`, tiles of rows use the same weights, and each fetches a share of the next ones. A
kernel runs long, so it fetches some lines in each of its steps. And a kernel that does a whole sum
begins with zeros in its registers; nothing writes them to memory first.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from tlmd.alternatives import amx_grid, amx_packed
from tlmd.alternatives.amx_code import EDGE, LINE_WORDS, NAME
from tlmd.alternatives.contraction import flattened, substituted
from tlmd.alternatives.implementation import REDUCTION
from tlmd.alternatives.product_loops import Products, built_loops, changes, extent, find, following

_PRODUCED = amx_packed.PRODUCED, amx_grid.PRODUCED
_ZEROS = [f"{name}_init" for name in _PRODUCED]


def changed(function: Any) -> Any | None:
    """The body of a scheduled program with its calls changed; None where it calls no kernel."""
    found = find(function, _PRODUCED)
    if found is None:
        return None
    is_whole = all(
        int(one.dom.extent) == 1 for one in found.block.iter_vars if int(one.iter_type) == REDUCTION
    )
    begins = tirx.const(int(not is_whole), "int64")
    prefetched = _prefetched(found)

    def call(statement: Any) -> Any:
        arguments = list(getattr(statement.value, "args", ()))
        name = str(getattr(arguments[0], "value", "")) if arguments else ""
        if not name.startswith(NAME):
            return statement
        arguments[-3:] = begins, *(prefetched or arguments[-2:])
        return tirx.Evaluate(tirx.call_extern("int32", name, *arguments[1:]))

    body = tvm_ffi.structural_map(function.body, (tirx.Evaluate, call))
    return tvm_ffi.structural_map(body, (tirx.SeqStmt, _without_zeros)) if is_whole else body


def _prefetched(found: Products) -> tuple[Any, Any] | None:
    """The address of what is prefetched, and lines in a step; None where no weights come next."""
    loops = built_loops(found.around)
    inner = itertools.takewhile(lambda loop: not changes(found.at, loop), reversed(loops))
    tiles = list(inner)[::-1]
    outer = loops[: len(loops) - len(tiles)]
    if not outer:
        return None
    counts = list(map(extent, tiles))
    tile = flattened([loop.loop_var for loop in tiles], counts) if tiles else 0
    _, rows, parts, columns = (int(side.extent) for side in found.read.region)
    share = -(-rows // math.prod(counts))
    start = tirx.min(tile * share, rows - share)
    chosen, row, *rest = (substituted(index, following(outer)) for index in found.at)
    address = tirx.address_of(tirx.BufferLoad(found.read.source, [chosen, row + start, *rest]))
    lines = -(-share * parts * columns // LINE_WORDS // (rows // EDGE))
    return address, tirx.const(lines, "int64")


def _without_zeros(statement: Any) -> Any:
    kept = [one for one in statement.seq if not _is_zeros(one)]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def _is_zeros(nest: Any) -> bool:
    while isinstance(nest, tirx.For):
        nest = nest.body
    return isinstance(nest, SBlockRealize) and str(nest.block.name_hint) in _ZEROS
