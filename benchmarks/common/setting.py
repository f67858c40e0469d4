"""What the benchmarks measure: tasks, random programs and the checkpoint; and pinning to cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import tvm
from tvm import te, topi

from tlmd.corpus.corpus import workload_tasks
from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput
from tlmd.data.types import Candidate, TargetInfo, Task
from tlmd.lowering.identity import task_id
from tlmd.space.space import InvalidCandidate, TaskSpace, module_hash
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm import network
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.cost_model import CostModel


def tasks(target: TargetInfo) -> list[Task]:
    """Programs as they occur in BERT, ResNet and MobileNet."""
    return [
        _task("gemm 128x768x768 + relu", _gemm(128, 768, 768), target),
        _task("conv2d 56x56x64x64 3x3", _convolution(56, 64, 3), target),
        _task("softmax 1536x128", _softmax(1536, 128), target),
        _task("depthwise 56x56x128 3x3", _depthwise(56, 128, 3), target),
    ]


def tasks_of_networks(
    chosen: Mapping[tuple[str, tuple[int, ...]], Iterable[str]], target: TargetInfo
) -> list[Task]:
    """The tasks with these names, of networks of the zoo at these input shapes.

    Nothing is restructured, so that these are the subgraphs that MetaSchedule tunes, too.
    """
    found = []
    for workload, names in chosen.items():
        listed = workload_tasks(workload, target, restructure=False)
        tasks = {task.name: task for task in listed}
        found += [tasks[name] for name in names]
    return found


def load(directory: Path | None, untrained: bool) -> Checkpoint:
    """The checkpoint to use; `untrained` allows random weights where there is none."""
    try:
        return checkpoints.load(directory or SHIPPED)
    except BadInput:
        if not untrained or directory is not None:
            raise
        return Checkpoint(0, "nano", network.create("nano"), CostModel())


@dataclass(frozen=True)
class RandomProgram:
    """A random legal program."""

    candidate: Candidate
    trace: str
    schedule: Any
    module_hash: str
    """Hash of the final module."""


def random_candidates(space: TaskSpace, attempts: int, seed: int) -> Iterator[Candidate]:
    """Candidates of TVM's random sampler; some attempts give none."""
    rng = Random(seed)
    for _ in range(attempts):
        with suppress(InvalidCandidate):
            yield space.random(rng)


def random_programs(task: Task, attempts: int, seed: int) -> Iterator[RandomProgram]:
    """Random programs of the task's space. Some are equal; some attempts give none."""
    space = TaskSpace(task)
    for candidate in random_candidates(space, attempts, seed):
        try:
            schedule = space.finish(candidate)
        except InvalidCandidate:
            continue
        digest = module_hash(schedule.mod)
        yield RandomProgram(candidate, space.trace_json(candidate), schedule, digest)


def pin(cores: tuple[int, ...]) -> None:
    """Keep this process and its children on `cores`; call it before threads are started."""
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))


def _task(name: str, arguments: list[Any], target: TargetInfo) -> Task:
    module = tvm.IRModule({"main": te.create_prim_func(arguments)})
    schedule = tvm.s_tir.Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        # Otherwise TVM repacks the weights in the program itself; models do that only once.
        if "layout_free_placeholders" in schedule.get(block).annotations:
            schedule.unannotate(block, "layout_free_placeholders")
    module = schedule.mod
    flops = float(tvm.s_tir.analysis.estimate_tir_flops(module))
    return Task(task_id(module), name, 1, flops, tvm.ir.save_json(module), target)


def _gemm(rows: int, columns: int, depth: int) -> list[Any]:
    a = te.placeholder((rows, depth), name="a")
    b = te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return [a, b, topi.nn.relu(c)]


def _convolution(size: int, channels: int, kernel: int) -> list[Any]:
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((kernel, kernel, channels, channels), name="w")
    return [x, w, topi.nn.conv2d_nhwc(x, w, 1, kernel // 2, 1)]


def _depthwise(size: int, channels: int, kernel: int) -> list[Any]:
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((kernel, kernel, channels, 1), name="w")
    return [x, w, topi.nn.depthwise_conv2d_nhwc(x, w, 1, kernel // 2, 1)]


def _softmax(rows: int, columns: int) -> list[Any]:
    x = te.placeholder((rows, columns), name="x")
    return [x, topi.nn.softmax(x, axis=-1)]
