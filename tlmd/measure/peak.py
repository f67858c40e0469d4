"""What the run cores can do, measured: multiply-add peak, memory bandwidth, noise.

`python -m tlmd.measure.peak roof|noise TARGET_JSON CORES` prints its figures as one line of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlmd import children
from tlmd.errors import Failed
from tlmd.types import TargetInfo

_CHAINS = 12  # independent accumulators: latency 4 cycles x 2 units, and some to spare
_STEPS = 1 << 16  # 0.2 ms: starting threads must not count
_PATIENCE_S = 120.0
_SMALLEST, _LARGEST = 48 << 20, 256 << 20  # bytes of one of the three arrays of the triad
_NOISE_S = 2.0
_REPEAT_S = 2e-3  # as long as a repeat when candidates are timed

# Without noalias every accumulator is stored after each step, which halves the figure.
_PEAK = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((2,), "float32"), c: T.Buffer(({threads}, {width}), "float32")):
    T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
    for t in T.parallel({threads}):
        acc = T.alloc_buffer(({width},), "float32", scope="local")
        for i in T.vectorized({width}):
            acc[i] = c[t, i]
        for _ in T.serial({steps}):
            for u in T.unroll({chains}):
                for v in T.vectorized({lanes}):
                    acc[u * {lanes} + v] = acc[u * {lanes} + v] * a[0] + a[1]
        for i in T.vectorized({width}):
            c[t, i] = acc[i]
"""
_TRIAD = """
@T.prim_func(s_tir=True)
def main(
    a: T.Buffer(({threads}, {count}, {lanes}), "float32"),
    b: T.Buffer(({threads}, {count}, {lanes}), "float32"),
    c: T.Buffer(({threads}, {count}, {lanes}), "float32"),
):
    T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
    for t in T.parallel({threads}):
        for i in T.serial({count}):
            for v in T.vectorized({lanes}):
                c[t, i, v] = a[t, i, v] + T.float32(3) * b[t, i, v]
"""


@dataclass(frozen=True, slots=True)
class Roof:
    """The limits of all run cores together.

    ``gflops`` are float32 multiply-adds from registers (two operations each), in 1e9 per second;
    ``bandwidth_gb_s`` is what ``c = a + 3 b`` on arrays beyond the caches reads and writes, in 1e9
    bytes per second.
    """

    gflops: float
    bandwidth_gb_s: float


def roof(target: TargetInfo, run_cores: tuple[int, ...]) -> Roof:
    """Measure the limits of `run_cores`; takes about 6 s. Raises `Failed`."""
    return Roof(**_ask("roof", target, run_cores))


def peak_gflops(target: TargetInfo, run_cores: tuple[int, ...]) -> float:
    """Sustained float32 GFLOP/s of all run cores together; see `roof`."""
    return roof(target, run_cores).gflops


def variation(target: TargetInfo, run_cores: tuple[int, ...]) -> float:
    """Coefficient of variation of a small kernel repeated for 2 s on `run_cores`.

    This is how far two timings of one candidate differ here, as a share. Takes about 5 s; raises
    `Failed`.
    """
    return _ask("noise", target, run_cores)["variation"]


def _ask(what: str, target: TargetInfo, run_cores: tuple[int, ...]) -> dict[str, float]:
    """Measure in a process of its own: pinning and thread counts are settings of a process."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tlmd.measure.peak", what, target.spec, json.dumps(run_cores)],
            env=children.running_tvm(len(run_cores)),
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"measuring the {what} of the cores failed: {error}") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        raise Failed(f"measuring the {what} of the cores failed (exit {done.returncode}): {reason}")
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def _build(source: str, target: Any, **sizes: int) -> Any:
    import tvm
    from tvm.script import from_source, tirx

    function = from_source(source.format(**sizes), {"T": tirx})
    return tvm.compile(tvm.IRModule({"main": function}), target).jit()


def _spread(cores: tuple[int, ...], built: Any, arrays: list[Any]) -> None:
    """One thread per core: on a busy machine two of them would share one and halve the figure."""
    tasks = Path("/proc/self/task")
    before = {entry.name for entry in tasks.iterdir()}
    built["main"](*arrays)  # the first call starts the threads
    workers = sorted(int(e.name) for e in tasks.iterdir() if e.name not in before)
    for thread, core in zip((0, *workers), cores, strict=False):
        os.sched_setaffinity(thread, {core})


def _fastest(built: Any, arrays: list[Any], number: int, repeat: int) -> float:
    import tvm

    timer = built.time_evaluator("main", tvm.cpu(), number=number, repeat=repeat)
    return float(min(timer(*arrays).results))


def _peak(target: Any, lanes: int, cores: tuple[int, ...]) -> float:
    """1e9 floating-point operations per second."""
    import numpy as np
    import tvm

    threads = len(cores)
    width = lanes * _CHAINS
    built = _build(
        _PEAK, target, threads=threads, width=width, steps=_STEPS, chains=_CHAINS, lanes=lanes
    )
    # x / 2 + 1 / 4 stays at 1 / 2: neither infinite nor denormal, which would be slower.
    a = tvm.runtime.tensor(np.array([0.5, 0.25], np.float32))
    c = tvm.runtime.tensor(np.ones((threads, width), np.float32))
    _spread(cores, built, [a, c])
    return 2.0 * _STEPS * width * threads / _fastest(built, [a, c], 4, 400) / 1e9


def _bandwidth(target: Any, info: TargetInfo, lanes: int, threads: int) -> float:
    """1e9 bytes per second, read and written."""
    import numpy as np
    import tvm

    size = min(max(2 * info.l3_bytes, _SMALLEST), _LARGEST)
    shape = (threads, size // (4 * lanes * threads), lanes)
    built = _build(_TRIAD, target, threads=threads, count=shape[1], lanes=lanes)
    arrays = [tvm.runtime.tensor(np.ones(shape, np.float32)) for _ in range(3)]
    return 3 * 4 * float(np.prod(shape)) / _fastest(built, arrays, 1, 15) / 1e9


def _variation(target: Any) -> float:
    from tlmd.measure.reference import ReferenceKernel

    kernel = ReferenceKernel(target)
    number = max(1, round(_REPEAT_S / kernel.settled_seconds()))
    end = time.perf_counter() + _NOISE_S
    samples = [kernel.mean_seconds(number)]
    while time.perf_counter() < end:
        samples.append(kernel.mean_seconds(number))
    return statistics.pstdev(samples) / statistics.fmean(samples)


def _main(what: str, spec: str, cores: tuple[int, ...]) -> None:
    import tvm

    from tlmd.space.target import resolve

    os.sched_setaffinity(0, cores)
    info = resolve(spec)
    target = tvm.target.Target(json.loads(spec))
    if what == "noise":
        print(json.dumps({"variation": _variation(target)}))
        return
    lanes = max(info.vector_bits // 32, 1)
    figures = Roof(_peak(target, lanes, cores), _bandwidth(target, info, lanes, len(cores)))
    print(json.dumps({"gflops": figures.gflops, "bandwidth_gb_s": figures.bandwidth_gb_s}))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], tuple(json.loads(sys.argv[3])))
