"""The sketches of alternatives, for whose programs TVM's rules make none or worse ones."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from tlmd.alternatives import (
    attention,
    attention_sketches,
    packed,
    packed_sketches,
    strassen,
    strassen_sketches,
    winograd,
    winograd_sketches,
)
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.scheduling import StageSchedule, block_names

PRODUCTS = (packed.PRODUCTS, strassen.PRODUCTS, winograd.PRODUCTS)
"""Names of the blocks of matrix products with weights."""

_PARALLEL = "meta_schedule.parallel"
_SKETCHES = {
    winograd.PRODUCTS: (winograd_sketches.by_rows, winograd_sketches.by_stages),
    packed.PRODUCTS: (packed_sketches.by_tiles, packed_sketches.by_blocks, packed_sketches.by_rows),
    strassen.PRODUCTS: (strassen_sketches.by_rows, strassen_sketches.by_panels),
    attention.SCORES: (attention_sketches.by_rows,),
}
"""By the name of a block that only such programs have."""


def sketches(module: Any, unit: VectorUnit, parallel: int) -> list[Any]:
    """The traces of the sketches; empty where `module` is the program of no alternative.

    `unit`: vectors of the target; `parallel`: the default extent of parallel loops.
    """
    names = block_names(Schedule(module))
    found = []
    for build in (build for name in names for build in _SKETCHES.get(name, ())):
        schedule = Schedule(module, seed=1)
        program = StageSchedule(schedule, unit)
        if build is packed_sketches.by_rows and not packed_sketches.is_grouped(program):
            continue
        build(program)
        schedule.annotate(schedule.get_sblock("root"), _PARALLEL, parallel)
        found.append(schedule.trace)
    return found
