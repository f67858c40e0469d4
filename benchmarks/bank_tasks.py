"""The 40 tasks of the bank: all kinds of operators, from the held-out networks at batch 1 or 2.

Nothing of these networks' families trains anything that is judged on the bank.
"""

from __future__ import annotations

from typing import Any

from tlmd.types import Task

_IMAGE = (1, 3, 224, 224)
_CHOSEN: dict[tuple[str, tuple[int, ...]], tuple[str, ...]] = {
    ("bert-base", (1, 128)): (
        "fused_matmul_add1",
        "fused_matmul1_multiply_add2",
        "fast_softmax",
        "matmul2",
        "fused_matmul3_add3__gelu",
        "fused_matmul4_add1_add",
        "layer_norm",
    ),
    ("gpt2", (1, 128)): (
        "fused_matmul_add1",
        "layer_norm",
        "fused_matmul4_add4_multiply1_multiply2_multiply2_multiply3_add5_multiply4_fast_tanh_add6"
        "_multiply2",
    ),
    ("llama", (2, 128)): (
        "fused_mean_add_tir_rsqrt_multiply1_multiply2",
        "matmul",
        "fused_matmul3__sigmoid_multiply5_multiply5",
    ),
    ("resnet50", _IMAGE): (
        "fused_conv2d_add_relu",
        "max_pool2d",
        "fused_conv2d2_add1_relu1",
        "fused_conv2d3_add2_add3_relu2",
        "fused_conv2d8_add6",
        "fused_conv2d16_add9_relu7",
        "fused_conv2d22_add13_relu10",
        "fused_conv2d21_add13_relu10",
        "fused_conv2d12_add9_relu7",
    ),
    ("mobilenet-v2", _IMAGE): (
        "fused_conv2d1_add_maximum_minimum",
        "fused_conv2d4_add3_maximum2_minimum2",
        "fused_conv2d7_add5_maximum3_minimum3",
        "fused_conv2d17_add13_maximum7_minimum7",
        "fused_conv2d26_add20_maximum10_minimum10",
        "fused_conv2d20_add16_maximum8_minimum8",
        "fused_conv2d15_add12",
        "mean",
    ),
    ("resnext50", _IMAGE): (
        "fused_conv2d2_add1_relu1",
        "fused_conv2d11_add4_relu3",
        "fused_conv2d23_add10_relu7",
    ),
    ("dcgan", (1, 100, 1, 1)): (
        "fused_conv2d_transpose1_add1_relu1",
        "fused_conv2d_transpose3_add3_relu3",
        "fused_conv2d_transpose4_fast_tanh",
    ),
    ("resnet3d18", (1, 3, 16, 112, 112)): ("fused_conv3d8_add6_relu3", "fused_conv3d10_add6"),
    ("densenet121", (1, 3, 256, 256)): ("conv2d10", "avg_pool2d"),
}


def bank_tasks(target: Any) -> list[Task]:
    """The tasks, lowered now for `target`."""
    from tlmd.workloads.corpus import workload_tasks

    chosen = []
    for workload, names in _CHOSEN.items():
        tasks = {task.name: task for task in workload_tasks(workload, target)}
        chosen += [tasks[name] for name in names]
    return chosen
