"""Layers and functions with weights and inputs in float16, bfloat16 or float64, or in several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

X = torch.randn
Made = tuple[nn.Module, tuple[Tensor, ...]]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class InAutocast(nn.Module):
    """A module that computes in another dtype than that of its weights."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", self.dtype):
            return self.module(x)


class OwnDtypes(nn.Module):
    """Modules one after the other, each called with what its weights are."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Any:
        for part in self.parts:
            x = part(x.to(next(part.parameters()).dtype))
        return x


def layers() -> dict[str, tuple[nn.Module, Tensor]]:
    """Layers with an input each, in float32."""
    two_layers = nn.LSTM(5, 4, 2, bidirectional=True)
    return {
        "conv1d": (nn.Conv1d(3, 8, 3), X(1, 3, 8)),
        "conv2d": (nn.Conv2d(3, 8, 3), X(1, 3, 8, 8)),
        "conv2d_no_bias": (nn.Conv2d(3, 8, 3, bias=False), X(1, 3, 8, 8)),
        "conv3d": (nn.Conv3d(3, 8, 3), X(1, 3, 5, 5, 5)),
        "depthwise": (nn.Conv2d(8, 8, 3, padding=1, groups=8), X(1, 8, 6, 6)),
        "transposed1d": (nn.ConvTranspose1d(4, 6, 4, 2, 1, groups=2), X(2, 4, 9)),
        "transposed2d": (nn.ConvTranspose2d(3, 8, 3, 2, output_padding=1), X(1, 3, 5, 5)),
        "transposed3d": (nn.ConvTranspose3d(2, 3, 2, 2), X(1, 2, 3, 4, 5)),
        "linear": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)), X(2, 8)),
        "group_norm": (nn.GroupNorm(2, 4), X(2, 4, 5)),
        "instance_norm": (nn.InstanceNorm2d(4, affine=True), X(2, 4, 5, 5)),
        "layer_norm": (nn.LayerNorm((3, 7), elementwise_affine=False), X(2, 3, 7)),
        "rms_norm": (nn.RMSNorm(7), X(2, 3, 7)),
        "batch_norm": (
            nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            X(1, 3, 8, 8),
        ),
        "recurrent": (two_layers, X(3, 2, 5)),
        "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), X(2, 5, 8)),
    }


def functions() -> dict[str, tuple[Callable[..., Any], Tensor]]:
    """Functions with an input each, in float32."""
    return {
        "long_rows": (_rows, X(2, 6000)),
        "sums": (lambda x: (x.abs().sum(), x.mean(), x.amax(), x.norm()), X(100, 300)),
        "places": (
            lambda x: (x.argmax(-1), x.max(-1), x.topk(3), x.sort(-1), x.argsort(-1), x.median()),
            torch.randperm(100).reshape(4, 25) - 50.0,
        ),
        "pools": (_pools, X(1, 4, 28, 28).abs()),
        "activations": (_activations, X(4, 16)),
        "attention": (
            lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
            X(1, 20, 8),
        ),
        "resize": (
            lambda x: (
                F.interpolate(x, scale_factor=2, mode="bilinear"),
                F.interpolate(x, size=(11, 5), mode="bicubic"),
                F.grid_sample(x, x[:, 0, :3, :2].reshape(1, 3, 1, 2).clamp(-1, 1)),
            ),
            X(1, 4, 6, 7),
        ),
        "arithmetic": (_arithmetic, X(4, 8)),
        "mask": (lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min).softmax(-1), X(2, 5)),
    }


def _rows(x: Tensor) -> Any:
    sums = x.abs().sum(-1), x.mean(-1), x.cumsum(-1), x.logsumexp(-1), x.norm(dim=-1)
    return *sums, x.softmax(-1), x.log_softmax(-1), x.var(-1), x.std(-1)


def _pools(x: Tensor) -> Any:
    means = F.avg_pool2d(x, 28), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, 7)
    return *means, F.max_pool2d(x, 3, 2), F.lp_pool2d(x, 2, 4)


def _activations(x: Tensor) -> Any:
    y = x.abs() + 1
    return (
        *(F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.mish(x), F.softplus(x)),
        *(F.hardswish(x), F.elu(x), F.selu(x), torch.erf(x), torch.tanh(x), torch.sigmoid(x)),
        *(torch.exp(x), torch.log(y), torch.rsqrt(y), x**3, torch.sin(x), F.leaky_relu(x)),
        *(F.logsigmoid(x), F.relu6(x), torch.log1p(y), torch.expm1(x), x.round(), x.floor()),
        *(torch.atan(x), F.hardtanh(x), F.glu(x), F.threshold(x, 0.1, 2.0), x.isnan()),
    )


def _arithmetic(x: Tensor) -> Any:
    y = x.flip(0)
    return (
        *(x + y, x * 2.5, x @ y.T, torch.where(x > 0, x, y), x.to(torch.float32) + 1),
        *(torch.cat([x, y]), torch.maximum(x, y), x.clamp(-0.5, 0.5), x // 0.5, x % 0.5),
        *(torch.einsum("ij,kj->ik", x, y), F.cosine_similarity(x, y), F.normalize(x), x != y),
    )


def mixed() -> dict[str, Made]:
    """Models with several dtypes."""
    cnn = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4), nn.Softmax(-1)),
    )
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    half = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Linear(7, 4))
    conv, linear = nn.Conv2d(3, 8, 3).half(), nn.Linear(6, 4)
    parts = nn.Linear(8, 16).bfloat16(), nn.LayerNorm(16), nn.Linear(16, 4).double()
    return {
        "autocast_convolutions": (InAutocast(cnn, torch.bfloat16), (X(1, 3, 9, 9),)),
        "autocast_attention": (InAutocast(block, torch.bfloat16), (X(2, 5, 8),)),
        "autocast_float16": (InAutocast(half, torch.float16), (X(2, 3, 9),)),
        "half_convolution": (OwnDtypes(conv, linear), (X(1, 3, 8, 8),)),
        "three_dtypes": (OwnDtypes(*parts), (X(2, 8),)),
    }
