"""Small hand-written tasks for the tests: a GEMM, a padded convolution, a softmax, an addition."""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import te

from tlmd.data.types import TargetInfo, Task
from tlmd.space.hardware import target as targets


@functools.cache
def native() -> TargetInfo:
    return targets.resolve("native", 1)


def task(name: str, outputs: list[Any], flops: float = 1e6, weight: int = 1) -> Task:
    """A task from TE tensors; the id is the name, which is unique in a test."""
    module = tvm.IRModule({"main": te.create_prim_func(outputs)})
    return Task(name, name, weight, flops, tvm.ir.save_json(module), native())


def gemm(m: int = 64, n: int = 96, k: int = 128, name: str = "gemm") -> Task:
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="c")
    d = te.compute((m, n), lambda i, j: c[i, j] + 1.0, name="d")
    return task(name, [a, b, d], 2.0 * m * n * k)


def convolution(name: str = "conv") -> Task:
    from tvm import topi

    x = te.placeholder((1, 14, 14, 32), name="x")
    w = te.placeholder((3, 3, 32, 48), name="w")
    y = topi.nn.conv2d_nhwc(x, w, 1, 1, 1)
    return task(name, [x, w, topi.nn.relu(y)], 2.0 * 14 * 14 * 32 * 48 * 9)


def softmax(name: str = "softmax") -> Task:
    from tvm import topi

    x = te.placeholder((32, 128), name="x")
    return task(name, [x, topi.nn.softmax(x)], 32 * 128 * 4)


def elementwise(name: str = "add") -> Task:
    x = te.placeholder((32, 100), name="x")
    return task(name, [x, te.compute((32, 100), lambda i, j: x[i, j] + 1.0, name="y")], 3200)
