"""How scheduled programs call the kernels of the CPU's matrix unit, when they are built.

The unit is made ready once for all calls of a thread. As in `prefetch`, tiles of rows use the same
weights, and each fetches a share of the next ones. A kernel runs long, so it fetches some lines in
each of its steps. And a kernel that does a whole sum begins with zeros in its registers; nothing
writes them to memory first.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from tlmd.alternatives.amx import amx_grid, amx_packed
from tlmd.alternatives.amx.amx import Kernel, of_function
from tlmd.alternatives.amx.amx_code import BEGIN, EDGE, END, LINE_WORDS, NAME, READY, ready_code
from tlmd.alternatives.expressions import REDUCTION, flattened, substituted
from tlmd.alternatives.product_loops import (
    IMPORT,
    Products,
    built_loops,
    changes,
    extent,
    find,
    following,
    replaced,
)

_PRODUCED = amx_packed.PRODUCED, amx_grid.PRODUCED
_CALLS = "_update_o"  # follows the name of the block of products
THREADS = "pragma_parallel_launch_point"
"""Every thread does what is inside, and its share of the parallel loops there."""
_NO_NODE = tirx.const(0, "int32")


def changed(function: Any) -> Any | None:
    """The body of a scheduled program with its calls changed; None where it calls no kernel."""
    nest = find(function, _PRODUCED)
    prefetched = None if nest is None else _prefetched(nest)
    is_whole: dict[str, bool] = {}
    kernels: dict[str, Kernel] = {}

    def products(realize: Any) -> Any:
        """A block with its call."""
        block, name = realize.block, str(realize.block.name_hint)
        if not name.endswith(_CALLS):
            return realize
        sums = (one for one in block.iter_vars if int(one.iter_type) == REDUCTION)
        begins_at_zero = all(int(one.dom.extent) == 1 for one in sums)

        def call(statement: Any) -> Any:
            arguments = list(getattr(statement.value, "args", ()))
            called = str(getattr(arguments[0], "value", "")) if arguments else ""
            if not called.startswith(NAME):
                return statement
            is_whole[name.removesuffix(_CALLS)] = begins_at_zero
            has_sums = tirx.const(int(not begins_at_zero), "int64")
            arguments[-3:] = has_sums, *(prefetched or arguments[-2:])
            kernels[called] = of_function(called)
            return tirx.Evaluate(tirx.call_extern("int32", called + READY, *arguments[1:]))

        return tvm_ffi.structural_map(realize, (tirx.Evaluate, call))

    body = tvm_ffi.structural_map(function.body, (SBlockRealize, products))
    if not is_whole:
        return None
    zeros = {f"{name}_init" for name, begins_at_zero in is_whole.items() if begins_at_zero}
    without = partial(_without_zeros, zeros)
    body = tvm_ffi.structural_map(body, (tirx.SeqStmt, without))
    imported = ready_code(kernel.ready for kernel in kernels.values())
    return tvm_ffi.structural_map(body, (tirx.For, partial(_with_unit, imported)))


def _prefetched(nest: Products) -> tuple[Any, Any] | None:
    """The address of what is prefetched, and lines in a step; None where no weights come next."""
    loops = built_loops(nest.around)
    inner = itertools.takewhile(lambda loop: not changes(nest.at, loop), reversed(loops))
    tiles = list(inner)[::-1]
    outer = loops[: len(loops) - len(tiles)]
    if not outer:
        return None
    counts = list(map(extent, tiles))
    tile = flattened([loop.loop_var for loop in tiles], counts) if tiles else 0
    _, rows, parts, columns = (int(side.extent) for side in nest.read.region)
    share = -(-rows // math.prod(counts))
    start = tirx.min(tile * share, rows - share)
    chosen, row, *rest = (substituted(index, following(outer)) for index in nest.at)
    address = tirx.address_of(tirx.BufferLoad(nest.read.source, [chosen, row + start, *rest]))
    lines = -(-share * parts * columns // LINE_WORDS // (rows // EDGE))
    return address, tirx.const(lines, "int64")


def _with_unit(imported: str, loop: Any) -> Any:
    """The loop that imports kernels, between what makes the unit ready and what ends this.

    Each thread does it once for all its iterations: for a short call it takes longer than the call.
    """
    if NAME not in str(loop.annotations.get(IMPORT, "")):
        return loop
    begin, end = (tirx.Evaluate(tirx.call_extern("int32", name)) for name in (BEGIN, END))
    is_shared = extent(loop) > 1
    kind = loop.kind if is_shared else tirx.ForKind.SERIAL
    own = replaced(loop, loop.body, {**loop.annotations, IMPORT: imported}, kind)
    calls = tirx.SeqStmt([begin, own, end])
    return tirx.AttrStmt(_NO_NODE, THREADS, _NO_NODE, calls) if is_shared else calls


def _without_zeros(names: set[str], statement: Any) -> Any:
    kept = [one for one in statement.seq if not _is_block(one, names)]
    return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)


def _is_block(nest: Any, names: set[str]) -> bool:
    """Whether this is a block with one of these names in loops."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    return isinstance(nest, SBlockRealize) and str(nest.block.name_hint) in names
