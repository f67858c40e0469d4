"""The sketches of alternatives, for whose programs TVM's rules make none or worse ones."""

from __future__ import annotations

import itertools
from typing import Any

from tvm.s_tir import Schedule

from tlmd.alternatives import catalogue
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.scheduling import StageSchedule

_PARALLEL = "meta_schedule.parallel"


def sketches(module: Any, unit: VectorUnit, parallel: int) -> list[Any]:
    """The traces of the sketches; empty where `module` is the program of no alternative.

    `unit`: vectors of the target; `parallel`: the default extent of parallel loops.
    """
    program = StageSchedule(Schedule(module), unit)
    by_block = catalogue.sketches_by_block()
    builders = [by_block[name](program) for name in program.names if name in by_block]
    found = []
    for build in itertools.chain(*builders):
        schedule = Schedule(module, seed=1)
        build(StageSchedule(schedule, unit))
        schedule.annotate(schedule.get_sblock("root"), _PARALLEL, parallel)
        found.append(schedule.trace)
    return found
