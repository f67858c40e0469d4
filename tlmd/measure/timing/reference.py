"""Small fixed kernels whose times show how fast the machine is now."""

from __future__ import annotations

import math
import mmap
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.script import from_source, tirx

from tlmd.measure.cores.slot_lock import exclusively
from tlmd.measure.protocol import Setup
from tlmd.measure.timing import quiet_time
from tlmd.measure.timing.noise import Reading
from tlmd.measure.timing.peak_kernels import multiply_adds_of_a_core
from tlmd.space.hardware.target import vector_unit

_SIZE, _TIMES = 64, 16  # 0.5 MFLOP, 16 times: about 0.1 ms on a core; 48 KB of data
_RUNS = 5
_FIRST_READINGS = 40
_LINE = 16  # integers in a cache line
_SHARE = 0.375  # of the second-level cache: fits while no other process uses the core
_L2_BYTES = 1 << 20  # where the target does not know it
_PROBE_RUNS, _SETTLING = 3, 20
# The best moves towards each reading by this share: quickly downwards, slowly upwards.
_FALL, _RISE = 0.25, 0.0002
_CHASE = """
@T.prim_func(s_tir=True)
def main(following: T.Buffer(({count},), "int32"), last: T.Buffer((1,), "int32")):
    T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
    place = T.alloc_buffer((1,), "int32", scope="local")
    place[0] = 0
    for _ in T.serial({lines}):
        place[0] = following[place[0]]
    last[0] = place[0]
"""


class ReferenceKernel:
    """A GEMM, compiled once in the server. Each child times it before and after its repeats.

    It shows the clock and what another user of the core takes of its arithmetic, not what that user
    takes of the caches: its data are small, and its sums stay in registers. Beside such a user a
    kernel that stored its sums took 1.6 times as long, and good programs took 1.1 times as long.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self._runtime = tvm.compile(scheduled_gemm(vector_unit(target).lanes), target).jit()
        self._arrays = [tvm.runtime.empty((_SIZE, _SIZE), "float32") for _ in range(3)]
        for array in self._arrays:
            array.copyfrom(np.full((_SIZE, _SIZE), 0.5, dtype=np.float32))
        self._evaluate = self._runtime.time_evaluator(
            "main", tvm.cpu(), number=_TIMES, repeat=_RUNS
        )

    def seconds(self) -> float:
        """Fastest of a few runs, about half a millisecond in all."""
        return float(min(self._evaluate(*self._arrays).results))

    def mean_seconds(self, number: int) -> float:
        """Mean of `number` runs after a discarded one, in the way candidates are timed."""
        evaluate = self._runtime.time_evaluator("main", tvm.cpu(), number=number, repeat=1)
        return float(evaluate(*self._arrays).results[0])

    def settled_seconds(self) -> float:
        """Median of many readings: later ones are relative to it."""
        return statistics.median(self.seconds() for _ in range(_FIRST_READINGS))


class CacheProbe:
    """Reads a chain through much of the second-level cache; each read needs the one before."""

    def __init__(self, target: tvm.target.Target, l2_bytes: int) -> None:
        lines = int(_SHARE * (l2_bytes or _L2_BYTES)) // (4 * _LINE)
        order = np.random.default_rng(0).permutation(lines) * _LINE
        following = np.zeros(lines * _LINE, np.int32)
        following[order] = np.roll(order, -1)
        self._arrays = [tvm.runtime.tensor(a) for a in (following, np.zeros(1, np.int32))]
        source = _CHASE.format(count=lines * _LINE, lines=lines)
        module = tvm.IRModule({"main": from_source(source, {"T": tirx})})
        self._runtime = tvm.compile(module, target).jit()
        self._evaluate = self._runtime.time_evaluator(
            "main", tvm.cpu(), number=1, repeat=_PROBE_RUNS
        )

    def seconds(self) -> float:
        """Fastest of a few runs, each about 5 ns per cache line."""
        return float(min(self._evaluate(*self._arrays).results))


class DriftMonitor:
    """Measures how slow the machine is. Forked children share the best cache speed seen so far.

    ``reference_s``: what the reference kernel takes when all is quiet.
    ``gflops``: the most 1e9 float32 operations per second of a core; infinite if unknown.
    """

    def __init__(
        self,
        kernel: ReferenceKernel,
        probe: CacheProbe,
        reference_s: float,
        gflops: float = math.inf,
    ) -> None:
        self._kernel, self._probe = kernel, probe
        self.gflops = gflops
        self.reference_s = reference_s
        self._best = np.frombuffer(mmap.mmap(-1, 8), np.float64)
        self._best[0] = min(self._beside()[1] for _ in range(_SETTLING))

    def read(self) -> Reading:
        """How slow the machine is now, in about a millisecond."""
        core, ratio = self._beside()
        best = float(self._best[0])
        self._best[0] += (_FALL if ratio < best else _RISE) * (ratio - best)
        return Reading(core / self.reference_s, max(1.0, ratio / best))

    def _beside(self) -> tuple[float, float]:
        """Seconds of the kernel, and the probe's relative to them; the clock rate cancels out."""
        core = self._kernel.seconds()
        return core, self._probe.seconds() / core


def settled_monitor(target: tvm.target.Target, lock: Path, setup: Setup) -> DriftMonitor:
    """A drift monitor that has measured the idle slot."""
    kernel, probe = ReferenceKernel(target), CacheProbe(target, setup.target.l2_bytes)
    with exclusively(lock):
        os.sched_setaffinity(0, setup.run)
        try:
            reference_s = _quiet(setup, f"gemm-{_SIZE}", kernel.settled_seconds())
            rate = multiply_adds_of_a_core(target, setup.target)
            gflops = 1 / _quiet(setup, "multiply-adds", 1 / rate)
            return DriftMonitor(kernel, probe, reference_s, gflops)
        finally:
            os.sched_setaffinity(0, setup.build)


def _quiet(setup: Setup, kernel: str, seconds: float) -> float:
    """The time of a kernel when all is quiet, as this and earlier servers have seen it."""
    name = f"{setup.target.fingerprint}-{kernel}"
    return quiet_time.fastest(Path(setup.cache_dir), name, seconds)


def gemm() -> Any:
    """The reference computation, not scheduled."""
    a = te.placeholder((_SIZE, _SIZE), name="a")
    b = te.placeholder((_SIZE, _SIZE), name="b")
    k = te.reduce_axis((0, _SIZE), name="k")
    c = te.compute((_SIZE, _SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def scheduled_gemm(lanes: int) -> Any:
    """With a kernel of 4 rows x 2 vectors, for which every CPU has enough registers."""
    schedule = tvm.s_tir.Schedule(gemm())
    block = schedule.get_sblock("c")
    i, j, reduction = schedule.get_loops(block)
    i_outer, i_inner = schedule.split(i, [None, 4])
    j_outer, j_middle, j_inner = schedule.split(j, [None, 2, lanes])
    schedule.reorder(i_outer, j_outer, reduction, i_inner, j_middle, j_inner)
    schedule.unroll(i_inner)
    schedule.unroll(j_middle)
    schedule.vectorize(j_inner)
    schedule.decompose_reduction(block, reduction)
    return schedule.mod
