"""Programs for the measuring server, most of them malicious.

A trap is a task whose program misbehaves by itself (it calls into libc), measured with an empty
trace; nothing in the production code knows about it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm

from tlmd.data.config import MeasureConfig
from tlmd.data.types import MeasureInput, Outcome, Status, Task
from tlmd.measure.measurer import Measurer
from tlmd.measure.server.verify import Argument, ReferenceStore
from tlmd.space.hardware.target import resolve

EMPTY = "[[],[]]"
N = 128
VECTOR = Argument((N,), "float32", reads=True, writes=False)
TARGET = resolve("native", 1)
CONFIG = MeasureConfig(
    builders=2,
    build_timeout=20,
    run_timeout=2,
    baseline_timeout=2,
    budget=1,
    memory_bytes=1 << 30,
)


@dataclass(frozen=True)
class Trial:
    """A program to measure, and its task."""

    task: Task
    input: MeasureInput


def vector_module(value: str, extent: int = N) -> str:
    """C[i] = value for i < extent, as JSON; `value` may use A[i]."""
    # The script parser wants the source of the function, so it gets a text.
    source = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({N},), "float32"), C: T.Buffer(({N},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in range({extent}):
        with T.sblock("C"):
            v = T.axis.spatial({extent}, i)
            T.reads(A[v])
            T.writes(C[v])
            C[v] = {value}
"""
    return as_json(source)


def as_json(source: str) -> str:
    from tvm.script import from_source, tirx

    return str(tvm.ir.save_json(tvm.IRModule({"main": from_source(source, {"T": tirx})})))


def scratch_module(elements: int) -> str:
    """C = A by way of a scratch buffer of so many floats."""
    return as_json(f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({N},), "float32"), C: T.Buffer(({N},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        B = T.sblock_alloc_buffer(({elements},), "float32")
        for i in range({elements}):
            with T.sblock("B"):
                v = T.axis.spatial({elements}, i)
                B[v] = A[v % {N}]
        for i in range({N}):
            with T.sblock("C"):
                v = T.axis.spatial({N}, i)
                C[v] = B[v * {elements // N}]
""")


def where_module() -> str:
    """C[i] = the CPU that computes it, in parallel."""
    return as_json(f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({N},), "float32"), C: T.Buffer(({N},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in T.parallel({N}):
        with T.sblock("C"):
            v = T.axis.spatial({N}, i)
            T.reads(A[v])
            T.writes(C[v])
            C[v] = T.Cast("float32", T.call_extern("int32", "sched_getcpu"))
""")


def trial(name: str, module: str, trace: str = EMPTY, incumbent_s: float | None = None) -> Trial:
    task = Task(name, name, 1, float(N), module, TARGET)
    return Trial(task, MeasureInput(name, trace, incumbent_s))


def healthy(name: str = "healthy") -> Trial:
    return trial(name, vector_module("A[v] + T.float32(1)"))


def gemm_trial(name: str, trace: str = EMPTY, incumbent_s: float | None = None) -> Trial:
    from tvm import te

    a, b = (te.placeholder((96, 96), name=n) for n in "ab")
    k = te.reduce_axis((0, 96), name="k")
    c = te.compute((96, 96), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    module = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    return trial(name, str(tvm.ir.save_json(module)), trace, incumbent_s)


def random_traces(module_json: str, count: int) -> list[str]:
    from tlmd.space.apply_trace import context
    from tlmd.space.hardware.target import tvm_target

    module = tvm.ir.load_json(module_json)
    sketch = context(tvm_target(TARGET), module).generate_design_space()[0]
    texts = []
    for seed in range(1, count + 1):
        schedule = tvm.s_tir.Schedule(module, seed=seed)
        trace = tvm.s_tir.Trace(sketch.trace.insts, {})
        trace.apply_to_schedule(schedule, remove_postproc=True)
        texts.append(json.dumps(plain(schedule.trace.as_json())))
    return texts


def plain(value: object) -> object:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "value"):
        return value.value
    return [plain(item) for item in value]  # type: ignore[attr-defined]


TRAPS = {
    "abort": ('T.call_extern("float32", "abort")', Status.CRASH, "SIGABRT (6)"),
    "segfault": (
        'A[v] + T.Cast("float32", T.call_extern("int32", "atoi", T.int64(8)))',
        Status.CRASH,
        "SIGSEGV (11)",
    ),
    "hang": ('T.Cast("float32", T.call_extern("int32", "pause"))', Status.TIMEOUT, "running"),
    "killed": (
        'T.Cast("float32", T.call_extern("int32", "raise", 9))',
        Status.OUT_OF_MEMORY,
        "killed by the system",
    ),
    "exit": (
        'T.Cast("float32", T.call_extern("int32", "_exit", 3))',
        Status.RUN_ERROR,
        "exited with 3",
    ),
    "symbol": (
        'T.Cast("float32", T.call_extern("int32", "no_such_symbol_anywhere"))',
        Status.BUILD_ERROR,
        "no_such_symbol_anywhere",
    ),
}


def outcome_of(measurer: Measurer, one: Trial) -> Outcome:
    return measurer.submit(one.task, one.input).result()


def outcomes_of(measurer: Measurer, trials: Sequence[Trial]) -> list[Outcome]:
    """All of them are submitted at once."""
    futures = [measurer.submit(one.task, one.input) for one in trials]
    return [future.result() for future in futures]


def put_reference(cache: Path, name: str, output: np.ndarray) -> None:
    ReferenceStore(cache).put(name, [output.astype(np.float32)], positive=False)
