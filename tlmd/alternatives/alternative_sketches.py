"""The sketches of alternatives, for whose programs TVM's rules make none or worse ones."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from tlmd.alternatives.amx import amx_grid, amx_grid_sketches, amx_packed, amx_sketches
from tlmd.alternatives.attention import (
    attention,
    attention_amx,
    attention_amx_sketches,
    attention_sketches,
)
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.packed import packed, packed_sketches
from tlmd.alternatives.scheduling import Sketch, StageSchedule
from tlmd.alternatives.strassen import strassen, strassen_sketches
from tlmd.alternatives.winograd import winograd, winograd_sketches

PRODUCTS = (packed.PRODUCTS, packed.GROUPED, strassen.PRODUCTS, winograd.PRODUCTS)
"""Names of the blocks of matrix products with weights."""

_PARALLEL = "meta_schedule.parallel"
_SKETCHES = {
    winograd.PRODUCTS: winograd_sketches.sketches,
    packed.PRODUCTS: packed_sketches.sketches,
    packed.GROUPED: packed_sketches.sketches,
    amx_packed.PRODUCED: amx_sketches.sketches,
    amx_grid.PRODUCED: amx_grid_sketches.sketches,
    strassen.PRODUCTS: strassen_sketches.sketches,
    attention.SCORES: attention_sketches.sketches,
    attention_amx.KEYS: attention_amx_sketches.sketches,
}
"""By the name of a block that only such programs have."""


def sketches(module: Any, unit: VectorUnit, parallel: int) -> list[Any]:
    """The traces of the sketches; empty where `module` is the program of no alternative.

    `unit`: vectors of the target; `parallel`: the default extent of parallel loops.
    """
    program = StageSchedule(Schedule(module), unit)
    found = []
    for build in (build for name in program.names for build in _builders(name, program)):
        schedule = Schedule(module, seed=1)
        build(StageSchedule(schedule, unit))
        schedule.annotate(schedule.get_sblock("root"), _PARALLEL, parallel)
        found.append(schedule.trace)
    return found


def _builders(name: str, program: StageSchedule) -> list[Sketch]:
    return _SKETCHES[name](program) if name in _SKETCHES else []
