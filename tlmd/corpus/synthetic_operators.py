"""The operators of the synthetic training tasks: kinds, shapes, and how often each is drawn.

The networks of the corpus have many tasks of few kinds. Here each kind of operator gets a share,
and kinds that networks have seldom (grouped, transposed, depthwise, pooling, norms) get more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]

_CHANNELS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
_MOST_ELEMENTS = 1 << 23  # of an input or a weight
_SIZES = (4, 5, 7, 8, 10, 13, 14, 16, 20, 24, 28, 32, 40, 50, 56, 64, 80, 96, 112, 128, 160)
_ROWS = (1, 4, 8, 16, 25, 32, 49, 50, 64, 77, 96, 100, 128, 196, 197, 256, 320, 384, 512, 1024)
_WIDTHS = (*_CHANNELS, 1000, 1280, 1536, 2048, 2560, 3072, 4096)


class Operator(NamedTuple):
    """A module and the shapes of its float32 inputs."""

    module: nn.Module
    inputs: tuple[Shape, ...]


class _Epilogue(nn.Module):
    """`body`, then perhaps the sum with a second input, then an activation."""

    def __init__(self, body: nn.Module, activation: nn.Module | None) -> None:
        super().__init__()
        self.body, self.activation = body, activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = self.body(x)
        if residual is not None:
            y = y + residual
        return y if self.activation is None else self.activation(y)


class _Product(nn.Module):
    """A batched matrix product, perhaps scaled and with a mask, as in attention."""

    def __init__(self, transposed: bool, scale: float | None) -> None:
        super().__init__()
        self.transposed, self.scale = transposed, scale

    def forward(self, a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
        y = a @ (b.transpose(-1, -2) if self.transposed else b)
        y = y if self.scale is None else y * self.scale
        return y if mask is None else y + mask


class _Norm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class _Reduce(nn.Module):
    """A mean or sum over some dimensions."""

    def __init__(self, function: str, dims: Shape, keep: bool) -> None:
        super().__init__()
        self.function, self.dims, self.keep = function, dims, keep

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = getattr(torch, self.function)(x, dim=self.dims, keepdim=self.keep)
        return y


def _activation(rng: random.Random) -> nn.Module | None:
    makers: tuple[Callable[[], nn.Module] | None, ...] = (
        None, nn.ReLU, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardswish,
    )  # fmt: skip
    maker = rng.choice(makers)
    return maker and maker()


def _gemm(rng: random.Random) -> Operator:
    rows, inner, width = rng.choice(_ROWS), rng.choice(_WIDTHS), rng.choice(_WIDTHS)
    layer = nn.Linear(inner, width, bias=rng.random() < 0.8)
    activation = _activation(rng) if rng.random() < 0.6 else None
    shapes = [(rows, inner)] + [(rows, width)] * (rng.random() < 0.3)
    return Operator(_Epilogue(layer, activation), tuple(shapes))


def _batched_gemm(rng: random.Random) -> Operator:
    batch = rng.choice((2, 3, 4, 6, 8, 12, 16, 24, 32, 64))
    m, n = rng.choice(_ROWS[1:]), rng.choice(_ROWS[1:])
    k = rng.choice((16, 24, 32, 40, 48, 64, 80, 96, 128, 197, 256, 384))
    transposed = rng.random() < 0.5
    second = (1, batch, n, k) if transposed else (1, batch, k, n)
    scale = rng.choice((None, 0.125))
    mask = [(1, 1, m, n)] * (rng.random() < 0.4)
    return Operator(_Product(transposed, scale), ((1, batch, m, k), second, *mask))


def _convolution(
    rng: random.Random, kernels: Shape, groups: Callable[[int], int] | None = None
) -> Operator:
    """A 2-D convolution; `groups` says from the channels in how many groups, None: one."""
    batch, size = rng.choice((1, 1, 1, 2, 4)), rng.choice(_SIZES)
    kernel, stride = rng.choice(kernels), rng.choice((1, 1, 1, 2))
    channels = rng.choice(_CHANNELS)
    out = channels if groups else rng.choice(_CHANNELS)
    if not groups and rng.random() < 0.1:
        channels = rng.choice((1, 3, 4))
    dilation = rng.choice((1,) * 9 + (2,)) if kernel == 3 else 1
    padding = dilation * (kernel // 2) if rng.random() < 0.9 else 0
    split = groups(channels) if groups else 1
    layer = nn.Conv2d(channels, out, kernel, stride, padding, dilation, split)
    with_residual = stride == 1 and padding and rng.random() < 0.25
    shapes = [(batch, channels, size, size)] + [(batch, out, size, size)] * bool(with_residual)
    return Operator(_Epilogue(layer, _activation(rng)), tuple(shapes))


def _grouped(rng: random.Random) -> Operator:
    return _convolution(rng, (3, 3, 1, 5), lambda c: rng.choice((2, 4, 8, 16, 32)))


def _depthwise(rng: random.Random) -> Operator:
    return _convolution(rng, (3, 3, 3, 5, 5, 7), lambda channels: channels)


def _transposed(rng: random.Random) -> Operator:
    size, kernel = rng.choice(_SIZES[:12]), rng.choice((2, 3, 4, 4, 5))
    channels, out = rng.choice(_CHANNELS), rng.choice((3, *_CHANNELS))
    stride = rng.choice((1, 2, 2, 2))
    padding = rng.choice((0, (kernel - 1) // 2))
    layer = nn.ConvTranspose2d(channels, out, kernel, stride, padding, bias=rng.random() < 0.7)
    return Operator(_Epilogue(layer, _activation(rng)), ((1, channels, size, size),))


def _convolution_3d(rng: random.Random) -> Operator:
    depth, size = rng.choice((2, 4, 8, 16)), rng.choice((7, 8, 14, 16, 28, 32))
    channels, out = rng.choice(_CHANNELS[:12]), rng.choice(_CHANNELS[:12])
    kernel = rng.choice(((3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1)))
    stride, padding = rng.choice((1, 1, 2)), (kernel[0] // 2, kernel[1] // 2, kernel[2] // 2)
    layer = nn.Conv3d(channels, out, kernel, stride, padding)
    return Operator(_Epilogue(layer, _activation(rng)), ((1, channels, depth, size, size),))


def _pooling(rng: random.Random) -> Operator:
    batch, channels, size = rng.choice((1, 1, 2, 4)), rng.choice(_CHANNELS), rng.choice(_SIZES)
    kernel = rng.choice((2, 3, 3, 5, 7))
    stride, padding = rng.choice((1, 2, 2, 3)), rng.choice((0, kernel // 2))
    pool: nn.Module = rng.choice((nn.MaxPool2d, nn.AvgPool2d))(kernel, stride, padding)
    if rng.random() < 0.3:
        pool = rng.choice((nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d))(1)
    # The convolution decides the layout of the maps, as in a network.
    return Operator(nn.Sequential(nn.Conv2d(4, channels, 1), pool), ((batch, 4, size, size),))


def _softmax(rng: random.Random) -> Operator:
    shape = (rng.choice((1, 4, 8, 12, 16, 32)), rng.choice(_ROWS), rng.choice(_ROWS[2:]))
    return Operator(nn.Softmax(-1), (shape,))


def _norm(rng: random.Random) -> Operator:
    rows, width = rng.choice(_ROWS), rng.choice(_WIDTHS)
    if rng.random() < 0.2:
        channels, size = rng.choice(_CHANNELS), rng.choice(_SIZES)
        groups = rng.choice((1, 2, 4, 8))
        return Operator(nn.GroupNorm(groups, channels), ((1, channels, size, size),))
    norm: nn.Module = nn.LayerNorm(width) if rng.random() < 0.6 else _Norm(width)
    return Operator(norm, ((1, rows, width),))


def _reduction(rng: random.Random) -> Operator:
    shape = (rng.choice((1, 2, 4)), rng.choice(_SIZES), rng.choice(_ROWS), rng.choice(_CHANNELS))
    dims = rng.choice(((1, 2), (2,), (3,), (1,), (2, 3)))
    return Operator(_Reduce(rng.choice(("mean", "sum")), dims, rng.random() < 0.5), (shape,))


class _Attention(nn.Module):
    """Self-attention, from the projections of `x` to the context."""

    def __init__(self, heads: int, size: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.projections = nn.ModuleList(nn.Linear(heads * size, heads * size) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        split = (batch, rows, self.heads, width // self.heads)
        q, k, v = (linear(x).view(split).transpose(1, 2) for linear in self.projections)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return y.transpose(1, 2).reshape(batch, rows, width)


def _attention(rng: random.Random) -> Operator:
    heads, size = rng.choice((1, 2, 3, 4, 6, 8, 12)), rng.choice((16, 32, 48, 64, 80, 96, 128))
    batch, rows = rng.choice((1, 1, 2)), rng.choice((*_ROWS[6:], 640, 768, 1500))
    attention = _Attention(heads, size, rng.random() < 0.3)
    return Operator(attention, ((batch, rows, heads * size),))


def _expansion(rng: random.Random) -> Operator:
    """A convolution that makes few channels many, and the depthwise one after it, as in MobileNet.

    The first convolution of a network has a window of 3 x 3.
    """
    is_first = rng.random() < 0.2
    channels, times = rng.choice((8, 16, 24, 32, 40, 48, 64, 80)), rng.choice((3, 4, 6))
    size, kernel, stride = rng.choice(_SIZES[10:]), rng.choice((3, 3, 5, 7)), rng.choice((1, 1, 2))
    if is_first:
        made, first, shape = channels, nn.Conv2d(3, channels, 3, 2, 1), (1, 3, 2 * size, 2 * size)
    else:
        made, shape = channels * times, (1, channels, size, size)
        first = nn.Conv2d(channels, made, 1)
    depthwise = nn.Conv2d(made, made, kernel, stride, kernel // 2, groups=made)
    activation = rng.choice((nn.ReLU6, nn.ReLU, nn.SiLU, nn.Hardswish, nn.Identity))
    return Operator(nn.Sequential(first, activation(), depthwise, activation()), (shape,))


class _Kind(NamedTuple):
    """A kind of operator, and its shares of the corpora."""

    make: Callable[[random.Random], Operator]
    usual: float
    seldom: float
    joined: float = 0


_KINDS = (
    _Kind(_gemm, 0.15, 0.08),
    _Kind(_batched_gemm, 0.11, 0.06),
    _Kind(lambda rng: _convolution(rng, (3, 3, 3, 5, 7)), 0.14, 0.07),
    _Kind(lambda rng: _convolution(rng, (1,)), 0.10, 0.04),
    _Kind(_depthwise, 0.13, 0.14),
    _Kind(_grouped, 0.09, 0.14),
    _Kind(_transposed, 0.06, 0.11),
    _Kind(_convolution_3d, 0.03, 0.04),
    _Kind(_pooling, 0.07, 0.06),
    _Kind(_softmax, 0.05, 0.11),
    _Kind(_norm, 0.05, 0.12),
    _Kind(_reduction, 0.02, 0.03),
    _Kind(_attention, 0, 0, 0.5),
    _Kind(_expansion, 0, 0, 0.5),
)
USUAL = tuple(kind.usual for kind in _KINDS)
SELDOM = tuple(kind.seldom for kind in _KINDS)
"""Kinds that the cost model ranks worst get larger shares."""
JOINED = tuple(kind.joined for kind in _KINDS)
"""Attention and expansions: tasks that are several operators."""


def draw(rng: random.Random, shares: Sequence[float]) -> Operator:
    """An operator that is not too large, without memory for its weights; kinds by their shares."""
    while True:
        try:
            with torch.device("meta"):
                operator = rng.choices(_KINDS, shares)[0].make(rng)
                if _fits(operator):
                    return operator
        except (ValueError, RuntimeError):
            continue  # channels that the groups do not divide, or a window larger than the map


def _fits(operator: Operator) -> bool:
    inputs = [torch.empty(shape) for shape in operator.inputs]
    tensors = [*inputs, *operator.module.parameters(), operator.module(*inputs)]
    return all(0 < tensor.numel() <= _MOST_ELEMENTS for tensor in tensors)
