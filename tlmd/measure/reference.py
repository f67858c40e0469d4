"""A small fixed GEMM whose time tells how fast the machine is right now."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import te

_SIZE = 160  # 8 MFLOP: about 0.1 ms on a core, all in the second-level cache
_RUNS = 5
_FIRST_RUNS = 200


class ReferenceKernel:
    """Compiled once in the server; its children inherit it and time it around their candidate."""

    def __init__(self, target: Any) -> None:
        self._runtime = tvm.compile(_scheduled_gemm(), target).jit()
        self._arrays = [tvm.runtime.empty((_SIZE, _SIZE), "float32") for _ in range(3)]
        for array in self._arrays:
            array.copyfrom(np.full((_SIZE, _SIZE), 0.5, dtype=np.float32))
        self._evaluate = self._runtime.time_evaluator("main", tvm.cpu(), number=1, repeat=_RUNS)
        self._first = self._runtime.time_evaluator("main", tvm.cpu(), number=1, repeat=_FIRST_RUNS)

    def seconds(self) -> float:
        """Fastest of a few runs, about half a millisecond in all."""
        return float(min(self._evaluate(*self._arrays).results))

    def mean_seconds(self, number: int) -> float:
        """Mean of `number` runs after one that is discarded, as candidates are timed."""
        evaluate = self._runtime.time_evaluator("main", tvm.cpu(), number=number, repeat=1)
        return float(evaluate(*self._arrays).results[0])

    def settled_seconds(self) -> float:
        """Fastest of many runs: the value that later ones are compared with."""
        return float(min(self._first(*self._arrays).results))


def gemm() -> Any:
    """The reference computation, not scheduled."""
    a = te.placeholder((_SIZE, _SIZE), name="a")
    b = te.placeholder((_SIZE, _SIZE), name="b")
    k = te.reduce_axis((0, _SIZE), name="k")
    c = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _scheduled_gemm() -> Any:
    schedule = tvm.s_tir.Schedule(gemm())
    block = schedule.get_sblock("c")
    i, j, reduction = schedule.get_loops(block)
    i_outer, i_inner = schedule.split(i, [None, 4])
    j_outer, j_middle, j_inner = schedule.split(j, [None, 2, 16])
    schedule.reorder(i_outer, j_outer, reduction, i_inner, j_middle, j_inner)
    schedule.unroll(i_inner)
    schedule.unroll(j_middle)
    schedule.vectorize(j_inner)
    schedule.decompose_reduction(block, reduction)
    return schedule.mod
