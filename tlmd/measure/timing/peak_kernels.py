"""Kernels that measure a machine's limits: multiply-adds in registers, and memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm.script import from_source, tirx

from tlmd.alternatives.amx import amx_code
from tlmd.alternatives.words import bfloat16
from tlmd.data.types import TargetInfo
from tlmd.measure.cores.core_plan import spread, threads
from tlmd.space.hardware.target import has_amx, has_bf16, has_vnni

_CHAINS = 12  # independent accumulators: latency of 4 cycles x 2 units, and some more
_STEPS = 1 << 16  # 0.2 ms, so that starting threads does not matter
_LARGEST = 256 << 20  # bytes of all arrays of the triad together
_DRAM = 6  # times the last cache, so that it keeps almost nothing of the arrays

# Without noalias every accumulator is stored after each step, which halves the figure.
_PEAK = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((2,), "{dtype}"), c: T.Buffer(({threads}, {width}), "{dtype}")):
    T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
    for t in T.{loop}({threads}):
        acc = T.alloc_buffer(({width},), "{dtype}", scope="local")
        for i in T.vectorized({width}):
            acc[i] = c[t, i]
        for _ in T.serial({steps}):
            for u in T.unroll({chains}):
                for v in T.vectorized({lanes}):
                    acc[u * {lanes} + v] = acc[u * {lanes} + v] * a[0] + a[1]
        for i in T.vectorized({width}):
            c[t, i] = acc[i]
"""
# Several products are added to each of 16 accumulators of 32 bits at once.
_DOT = """
@T.prim_func(s_tir=True)
def main(
    a: T.Buffer((16,), "{given}"),
    b: T.Buffer((16,), "{given}"),
    c: T.Buffer(({threads}, {width}), "{summed}"),
):
    T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
    for t in T.parallel({threads}):
        acc = T.alloc_buffer(({width},), "{summed}", scope="local")
        for i in T.vectorized({width}):
            acc[i] = c[t, i]
        for _ in T.serial({steps}, annotations={annotations}):
            for u in T.unroll({chains}):
                acc[T.ramp(u * 16, 1, 16)] = {product}
        for i in T.vectorized({width}):
            c[t, i] = acc[i]
"""
_OF_BYTES = {
    "given": "int32",
    "summed": "int32",
    "annotations": "{}",
    "product": """T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
                    acc[T.ramp(u * 16, 1, 16)],
                    T.reinterpret(a[T.ramp(0, 1, 16)], dtype="int8x64"),
                    T.reinterpret(b[T.ramp(0, 1, 16)], dtype="int8x64"),
                    dtype="int32x16",
                )""",
}
_OF_BF16 = {
    "given": "uint32",
    "summed": "float32",
    "annotations": '{"pragma_import_llvm": IMPORTED}',
    "product": """T.call_pure_extern(
                    "float32x16",
                    "tlmd_bf16_dot",
                    acc[T.ramp(u * 16, 1, 16)],
                    a[T.ramp(0, 1, 16)],
                    b[T.ramp(0, 1, 16)],
                )""",
}
_BY_UNIT = """
@T.prim_func(s_tir=True)
def main(c: T.Buffer(({threads},), "float32")):
    T.func_attr({{"global_symbol": "main"}})
    for t in T.parallel({threads}, annotations={{"pragma_import_llvm": PEAK["{numbers}"]}}):
        T.evaluate(T.call_extern("int32", "{function}", T.int64({steps})))
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


def multiply_adds(
    target: tvm.target.Target, info: TargetInfo, cores: tuple[int, ...]
) -> dict[str, float]:
    """1e9 operations per second of all cores together, by the dtype of the factors."""
    rates = {}
    for dtype in ("float32", "float64"):
        built, arrays = _plain(target, info, dtype, len(cores), "parallel")
        _spread(cores, built, arrays)
        rates[dtype] = _rate(built, arrays, 150)
    if has_vnni(info):
        rates["int8"] = _dot(_OF_BYTES, 4, target, cores)
    if has_bf16(info):
        rates["bfloat16"] = _dot(_OF_BF16, 2, target, cores)
    if has_amx(info):
        rates["bfloat16"] = _matrix_unit(amx_code.BF16, 2, target, cores)
        rates[amx_code.PARTS] = rates["bfloat16"] / len(amx_code.PRODUCTS[2])
    if has_amx(info, amx_code.INT8):
        rates["int8"] = _matrix_unit(amx_code.INT8, 4, target, cores)
    return rates


def arithmetic(
    target: tvm.target.Target, info: TargetInfo, threads: int
) -> tuple[Callable[[], Any], float]:
    """A call that only multiplies and adds, and its number of float32 operations.

    It runs in TVM's threads as they are: those of a process that times other programs, too, stay
    where they are.
    """
    built, arrays = _plain(target, info, "float32", threads, "parallel")
    run = built["main"]
    return (lambda: run(*arrays)), _operations(arrays)


def multiply_adds_of_a_core(target: tvm.target.Target, info: TargetInfo) -> float:
    """1e9 float32 operations per second of this process's core; starts no thread."""
    return _rate(*_plain(target, info, "float32", 1, "serial"), 40)


def bandwidths(
    target: tvm.target.Target, info: TargetInfo, cores: tuple[int, ...]
) -> tuple[tuple[int, float], ...]:
    """``(bytes, 1e9 bytes per second)`` per memory level: its size and bandwidth, nearest first.

    The last one is memory itself. Read and written bytes count, those that a write fetches do not.
    """
    last = info.l3_bytes or info.l2_bytes
    sizes = [n for n in (info.l2_bytes * len(cores), info.l3_bytes) if n]
    in_caches = [(size, _triad(target, info, cores, size // 2)) for size in sizes]
    memory = _triad(target, info, cores, min(max(_DRAM * last, 96 << 20), _LARGEST))
    return (*in_caches, (1 << 62, memory))


def _build(source: str, target: tvm.target.Target, **sizes: Any) -> Any:
    codes = {numbers: amx_code.peak_code(numbers) for numbers in (amx_code.BF16, amx_code.INT8)}
    names = {"T": tirx, "IMPORTED": bfloat16.IMPORTED, "PEAK": codes}
    function = from_source(source.format(**sizes), names)
    return tvm.compile(tvm.IRModule({"main": function}), target).jit()


def _spread(cores: tuple[int, ...], built: Any, arrays: list[Any]) -> None:
    before = threads()
    built["main"](*arrays)  # the first call starts the threads
    spread(cores, threads() - before)


def _fastest(built: Any, arrays: list[Any], number: int, repeat: int) -> float:
    timer = built.time_evaluator("main", tvm.cpu(), number=number, repeat=repeat)
    return float(min(timer(*arrays).results))


def _plain(
    target: tvm.target.Target, info: TargetInfo, dtype: str, threads: int, loop: str
) -> tuple[Any, list[Any]]:
    """The kernel of multiply-adds and its arguments."""
    lanes = max(info.vector_bits // 8 // np.dtype(dtype).itemsize, 1)
    width = lanes * _CHAINS
    sizes = {"threads": threads, "width": width, "steps": _STEPS, "chains": _CHAINS}
    built = _build(_PEAK, target, lanes=lanes, dtype=dtype, loop=loop, **sizes)
    # x / 2 + 1 / 4 stays at 1 / 2: infinite or denormal numbers would be slower.
    a = tvm.runtime.tensor(np.array([0.5, 0.25], dtype))
    return built, [a, tvm.runtime.tensor(np.ones((threads, width), dtype))]


def _rate(built: Any, arrays: list[Any], repeat: int) -> float:
    return _operations(arrays) / _fastest(built, arrays, 4, repeat) / 1e9


def _operations(arrays: list[Any]) -> float:
    """Operations of one call of the kernel of multiply-adds."""
    return 2.0 * _STEPS * int(arrays[1].numpy().size)


def _dot(
    kind: dict[str, str], products: int, target: tvm.target.Target, cores: tuple[int, ...]
) -> float:
    """Dot products of short numbers, `products` at once for each sum of 32 bits."""
    lanes, threads = 16, len(cores)
    width = lanes * _CHAINS
    sizes = {"threads": threads, "width": width, "steps": _STEPS, "chains": _CHAINS}
    built = _build(_DOT, target, **kind, **sizes)
    arrays = [tvm.runtime.tensor(np.zeros(lanes, kind["given"])) for _ in range(2)]
    arrays.append(tvm.runtime.tensor(np.zeros((threads, width), kind["summed"])))
    _spread(cores, built, arrays)
    return 2.0 * products * _STEPS * width * threads / _fastest(built, arrays, 4, 150) / 1e9


def _matrix_unit(
    numbers: str, products: int, target: tvm.target.Target, cores: tuple[int, ...]
) -> float:
    """Products of tiles of words, `products` for each word."""
    sizes = {"threads": len(cores), "steps": _STEPS, "function": amx_code.PEAK}
    built = _build(_BY_UNIT, target, numbers=numbers, **sizes)
    arrays = [tvm.runtime.tensor(np.zeros(len(cores), np.float32))]
    _spread(cores, built, arrays)
    operations = 2.0 * products * amx_code.PEAK_PRODUCTS * _STEPS * len(cores)
    return operations / _fastest(built, arrays, 1, 30) / 1e9


def _triad(
    target: tvm.target.Target, info: TargetInfo, cores: tuple[int, ...], nbytes: int
) -> float:
    """1e9 bytes per second, read and written, of three arrays of `nbytes` together."""
    lanes, threads = max(info.vector_bits // 32, 1), len(cores)
    shape = (threads, max(1, nbytes // 3 // (4 * lanes * threads)), lanes)
    built = _build(_TRIAD, target, threads=threads, count=shape[1], lanes=lanes)
    arrays = [tvm.runtime.tensor(np.ones(shape, np.float32)) for _ in range(3)]
    _spread(cores, built, arrays)
    moved = 3 * 4 * float(np.prod(shape))
    number = max(1, round(2e6 / moved))
    return moved / _fastest(built, arrays, number, 15) / 1e9
