"""The 40 tasks of the bank: all kinds of operators, from the held-out networks at batch 1 or 2.

Nothing of these networks' families trains anything that is judged on the bank. A second bank has
the alternatives of these tasks, attention and expansions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.setting import tasks_of_networks
from tlmd.data.types import Task

BANK = Path("benchmarks/learning/data/bank.msgpack.gz")
BANK_OF_ALTERNATIVES = Path("benchmarks/learning/data/bank_alternatives.msgpack.gz")

_IMAGE = (1, 3, 224, 224)
# Per network the names of tasks, each with its kind.
_CHOSEN: dict[tuple[str, tuple[int, ...]], dict[str, str]] = {
    ("bert-base", (1, 128)): {
        "fused_matmul_add1": "gemm",
        "fused_matmul1_multiply_add2": "batched gemm",
        "fast_softmax": "softmax",
        "matmul2": "batched gemm",
        "fused_matmul3_add3__gelu": "gemm",
        "fused_matmul4_add1_add": "gemm",
        "layer_norm": "norm",
    },
    ("gpt2", (1, 128)): {
        "fused_matmul_add1": "gemm",
        "layer_norm": "norm",
        "fused_matmul4_add4_multiply1_multiply2_multiply2_multiply3_add5_multiply4_fast_tanh_add6"
        "_multiply2": "gemm",
    },
    ("llama", (2, 128)): {
        "fused_mean_add_tir_rsqrt_multiply1_multiply2": "norm",
        "matmul": "gemm",
        "fused_matmul3__sigmoid_multiply5_multiply5": "gemm",
    },
    ("resnet50", _IMAGE): {
        "fused_conv2d_add_relu": "convolution",
        "max_pool2d": "pooling",
        "fused_conv2d2_add1_relu1": "convolution",
        "fused_conv2d3_add2_add3_relu2": "convolution 1x1",
        "fused_conv2d8_add6": "convolution 1x1",
        "fused_conv2d16_add9_relu7": "convolution",
        "fused_conv2d22_add13_relu10": "convolution",
        "fused_conv2d21_add13_relu10": "convolution 1x1",
        "fused_conv2d12_add9_relu7": "convolution",
    },
    ("mobilenet-v2", _IMAGE): {
        "fused_conv2d1_add_maximum_minimum": "depthwise",
        "fused_conv2d4_add3_maximum2_minimum2": "depthwise",
        "fused_conv2d7_add5_maximum3_minimum3": "depthwise",
        "fused_conv2d17_add13_maximum7_minimum7": "depthwise",
        "fused_conv2d26_add20_maximum10_minimum10": "depthwise",
        "fused_conv2d20_add16_maximum8_minimum8": "convolution 1x1",
        "fused_conv2d15_add12": "convolution 1x1",
        "mean": "pooling",
    },
    ("resnext50", _IMAGE): {
        "fused_conv2d2_add1_relu1": "grouped",
        "fused_conv2d11_add4_relu3": "grouped",
        "fused_conv2d23_add10_relu7": "grouped",
    },
    ("dcgan", (1, 100, 1, 1)): {
        "fused_conv2d_transpose1_add1_relu1": "transposed",
        "fused_conv2d_transpose3_add3_relu3": "transposed",
        "fused_conv2d_transpose4_fast_tanh": "transposed",
    },
    ("resnet3d18", (1, 3, 16, 112, 112)): {
        "fused_conv3d8_add6_relu3": "convolution 3d",
        "fused_conv3d10_add6": "convolution 3d",
    },
    ("densenet121", (1, 3, 256, 256)): {"conv2d10": "convolution", "avg_pool2d": "pooling"},
}
_ATTENTION = (("bert-base", (1, 128)), ("gpt2", (1, 128)), ("llama", (2, 128)), ("vit-b16", _IMAGE))
KINDS = tuple(kind for names in _CHOSEN.values() for kind in names.values())
"""The kind of each task, in the order of `bank_tasks`."""


def bank_tasks(target: Any) -> list[Task]:
    """The tasks, lowered now for `target`."""
    return tasks_of_networks(_CHOSEN, target)


def bank_alternatives(target: Any) -> list[Task]:
    """The alternatives of the tasks in the bank, attention of four networks, expansions of one."""
    from tlmd.corpus.corpus import workload_tasks
    from tlmd.lowering.alternatives import with_alternatives
    from tlmd.records.dataset import read_dataset

    kept = [replace(task, target=target) for task in read_dataset(BANK).tasks]
    attentions = [
        next(task for task in workload_tasks(workload, target) if task.attention)
        for workload in _ATTENTION
    ]
    expansions = filter(is_expansion, workload_tasks(("mobilenet-v2", _IMAGE), target))
    alternatives = (task for task in with_alternatives(kept) if task.alternative)
    return [*alternatives, *attentions, *expansions]


def is_expansion(task: Task) -> bool:
    """Whether a task is an expansion and the depthwise convolution that reads it."""
    return task.name.count("conv2d") > 1


def kinds_of(tasks: Sequence[Task]) -> tuple[str, ...]:
    """The kind of each task of a bank."""
    if not any(task.alternative for task in tasks):
        return KINDS
    return tuple("attention" if t.attention else t.alternative or "expansion" for t in tasks)
