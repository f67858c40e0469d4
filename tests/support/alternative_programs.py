"""Runs the programs of alternatives and of their direct tasks on the same random arrays."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pytest
import tvm

from tlmd.alternatives.catalogue import make_weights
from tlmd.alternatives.prefetch import with_prefetches
from tlmd.data.types import TargetInfo, Task
from tlmd.language.sentence import decode, encode
from tlmd.space.hardware.target import has_amx, resolve, tvm_target
from tlmd.space.space import TaskSpace

AVX2 = '{"kind":"llvm","mcpu":"haswell","num-cores":1}'
"""It has half as many vector registers as newer CPUs."""


def runnable(target: str) -> TargetInfo:
    """The target; skips the test where this machine cannot run its programs."""
    if target == AVX2 and resolve("native").arch != "x86_64":
        pytest.skip("this machine cannot run programs for AVX2")
    return resolve(target)


def native_by_vectors() -> TargetInfo:
    """The target of this machine, without a matrix unit where it has one."""
    info = resolve("native")
    if not has_amx(info):
        return info
    config = json.loads(info.spec)
    kept = [feature for feature in config.get("mattr", []) if "amx" not in feature]
    return resolve(json.dumps(config | {"mattr": [*kept, "-amx-tile"]}))


def check_random_candidates(task: Task, rng: Random, count: int = 1) -> None:
    """So many candidates of each sketch can be said, and compute what the direct program does."""
    (arguments, want), space = direct_outputs(task, task.target), TaskSpace(task)
    for sketch in space.sketches:
        for _ in range(count):
            candidate = space.random(rng, sketch.index)
            assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
            got = run(space.finish(candidate).mod, arguments, task.target)
            assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def direct_outputs(task: Task, info: TargetInfo) -> tuple[list[Any], Any]:
    """The arguments of an alternative, and what the direct program makes of them."""
    direct, rng = tvm.ir.load_json(task.direct), np.random.default_rng(0)
    given = [_random(rng, parameter.ty) for parameter in direct["main"].params]
    want = run(direct, given, info)
    for index, parameter in enumerate(tvm.ir.load_json(task.module)["main"].params):
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        if given[index].shape != shape:
            given[index] = make_weights(task.alternative, given[index], shape)
    return given, want


def built(task: Task, sketch: int, seed: int = 0) -> Any:
    """The module of a random candidate as it is built."""
    space = TaskSpace(task)
    return with_prefetches(space.finish(space.random(Random(seed), sketch)).mod)


def candidate_outputs(task: Task, sketch: int, calls: str, info: TargetInfo) -> tuple[Any, Any]:
    """What a random candidate as it is built, and the direct program compute.

    The candidate must call what has `calls` in its name.
    """
    given, want = direct_outputs(task, info)
    final = built(task, sketch)
    assert calls in final.script()
    return run(final, given, info), want


def run(module: Any, given: list[Any], info: TargetInfo) -> Any:
    """The last argument after the program ran."""
    module = tvm.IRModule({"main": module["main"].with_attr("global_symbol", "main")})
    tensors = [tvm.runtime.tensor(array) for array in given]
    tvm.compile(module, tvm_target(info)).jit()["main"](*tensors)
    return tensors[-1].numpy()


def _random(rng: np.random.Generator, tensor: Any) -> Any:
    """Floats in [-1, 1), all values of bytes, 0 or 1 of wider integers."""
    shape, dtype = [int(extent) for extent in tensor.shape], str(tensor.dtype)
    if dtype == "float32":
        return rng.uniform(-1, 1, shape).astype(dtype)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max + 1, shape, dtype=dtype)
    return rng.integers(0, 2, shape).astype(dtype)
