"""The sustained multiply-add peak of the run cores, measured: the roof that reports compare with.

`python -m tlmd.measure.peak TARGET_JSON CORES` prints the peak in GFLOP/s as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tlmd.errors import Failed
from tlmd.types import TargetInfo

_CHAINS = 12  # independent accumulators: latency 4 cycles x 2 units, and some to spare
_STEPS = 4096


def peak_gflops(target: TargetInfo, run_cores: tuple[int, ...]) -> float:
    """Sustained float32 GFLOP/s of all run cores together; takes about 4 s. Raises `Failed`."""
    done = subprocess.run(
        [sys.executable, "-m", "tlmd.measure.peak", target.spec, json.dumps(run_cores)],
        env={**os.environ, "TVM_NUM_THREADS": str(len(run_cores))},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        raise Failed(f"measuring the peak failed (exit {done.returncode}): {reason}")
    return float(json.loads(lines[-1])["gflops"])


def _kernel(lanes: int, threads: int) -> Any:
    """Every thread runs `_STEPS` steps of `_CHAINS` chains of vector multiply-adds in registers."""
    import tvm
    from tvm.script import ir as I
    from tvm.script import tirx as T

    width = lanes * _CHAINS

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(a: T.Buffer((2,), "float32"), c: T.Buffer((threads, width), "float32")):  # type: ignore[no-untyped-def,valid-type]
            T.func_attr({"global_symbol": "main"})
            for t in T.parallel(threads):
                acc = T.alloc_buffer((width,), "float32", scope="local")
                for i in T.vectorized(width):
                    acc[i] = c[t, i]
                for _ in T.serial(_STEPS):
                    for u in T.unroll(_CHAINS):
                        for v in T.vectorized(lanes):
                            acc[u * lanes + v] = acc[u * lanes + v] * a[0] + a[1]
                for i in T.vectorized(width):
                    c[t, i] = acc[i]

    assert isinstance(Module, tvm.IRModule)
    return Module


def _main(spec: str, cores: tuple[int, ...]) -> None:
    import numpy as np
    import tvm

    from tlmd.space.target import resolve

    os.sched_setaffinity(0, set(cores))
    info = resolve(spec)
    lanes = max(info.vector_bits // 32, 1)
    module = _kernel(lanes, len(cores))
    built = tvm.compile(module, tvm.target.Target(json.loads(spec))).jit()
    a = tvm.runtime.tensor(np.array([0.5, 0.25], np.float32))
    c = tvm.runtime.tensor(np.ones((len(cores), lanes * _CHAINS), np.float32))
    timer = built.time_evaluator("main", tvm.cpu(), number=200, repeat=20)
    seconds = min(timer(a, c).results)
    flops = 2.0 * _STEPS * _CHAINS * lanes * len(cores)
    print(json.dumps({"gflops": flops / seconds / 1e9}))


if __name__ == "__main__":
    _main(sys.argv[1], tuple(json.loads(sys.argv[2])))
