"""Prefetches of weights for the CPU's matrix unit: its kernels fetch those of the next block.

As in `prefetch`, tiles of rows use the same weights, and each fetches a share of the next ones. A
kernel runs long, so it fetches some lines in each of its steps.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import tvm_ffi
from tvm import tirx

from tlmd.alternatives.amx_code import EDGE, LINE_WORDS, NAME
from tlmd.alternatives.amx_packed import PRODUCED
from tlmd.alternatives.contraction import flattened, substituted
from tlmd.alternatives.product_loops import built_loops, changes, extent, following, weights_of


def prefetching(function: Any) -> Any | None:
    """The body of a scheduled program with prefetches; None where nothing uses weights twice."""
    found = weights_of(function, (PRODUCED,))
    if found is None:
        return None
    around, read, at = found
    loops = built_loops(around)
    inner = itertools.takewhile(lambda loop: not changes(at, loop), reversed(loops))
    tiles = list(inner)[::-1]
    outer = loops[: len(loops) - len(tiles)]
    if not outer or len(read.region) != len(at):
        return None
    counts = list(map(extent, tiles))
    tile = flattened([loop.loop_var for loop in tiles], counts) if tiles else 0
    _, rows, parts, columns = (int(side.extent) for side in read.region)
    share = -(-rows // math.prod(counts))
    start = tirx.min(tile * share, rows - share)
    chosen, row, *rest = (substituted(index, following(outer)) for index in at)
    address = tirx.address_of(tirx.BufferLoad(read.source, [chosen, row + start, *rest]))
    lines = -(-share * parts * columns // LINE_WORDS // (rows // EDGE))

    def changed(statement: Any) -> Any:
        arguments = list(getattr(statement.value, "args", ()))
        name = str(getattr(arguments[0], "value", "")) if arguments else ""
        if not name.startswith(NAME):
            return statement
        arguments[-2:] = address, tirx.const(lines, "int64")
        return tirx.Evaluate(tirx.call_extern("int32", name, *arguments[1:]))

    return tvm_ffi.structural_map(function.body, (tirx.Evaluate, changed))
