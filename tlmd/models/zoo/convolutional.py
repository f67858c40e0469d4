"""VGG, DenseNet, Inception, the DCGAN generator and GEMM chains, with random weights.

VGG, DenseNet and Inception take float32 images (N, 3, H, W) and return logits (N, 1000). The DCGAN
generator takes noise (N, 100, 1, 1) and returns images (N, 3, 64, 64). The GEMM chains take (M, K).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def vgg16() -> nn.Module:
    """VGG-16 with biases in the convolutions and without normalisation."""
    layers: list[nn.Module] = []
    cin = 3
    for repeats, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(repeats):
            layers += [nn.Conv2d(cin, width, 3, padding=1), nn.ReLU()]
            cin = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


class _DenseLayer(nn.Module):
    """Normalisation, 1x1 to 128 channels, 3x3 to 32 channels, which are appended to the input."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(cin),
            nn.ReLU(),
            nn.Conv2d(cin, 128, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.Conv2d(128, 32, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    cin = 64
    for stage, depth in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(cin), nn.ReLU(), nn.Conv2d(cin, cin // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            cin //= 2
        for _ in range(depth):
            layers.append(_DenseLayer(cin))
            cin += 32
    layers += [nn.BatchNorm2d(cin), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(cin, 1000))


_Kernel = int | tuple[int, int]


class _Conv(nn.Sequential):
    """Convolution (no bias), batch normalisation, ReLU."""

    def __init__(
        self, cin: int, cout: int, kernel: _Kernel, stride: int = 1, pad: bool = False
    ) -> None:
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (size[0] // 2, size[1] // 2) if pad else (0, 0)
        conv = nn.Conv2d(cin, cout, size, stride, padding, bias=False)
        super().__init__(conv, nn.BatchNorm2d(cout, eps=1e-3), nn.ReLU())


class _Branches(nn.Module):
    """Runs all branches on the same input and concatenates their channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _same(cin: int, *steps: tuple[int, _Kernel]) -> nn.Sequential:
    """A chain of "same" convolutions (channels, kernel)."""
    layers: list[nn.Module] = []
    for cout, kernel in steps:
        layers.append(_Conv(cin, cout, kernel, pad=True))
        cin = cout
    return nn.Sequential(*layers)


def _pooled(cin: int, cout: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _Conv(cin, cout, 1))


def _inception_a(cin: int, pooled: int) -> nn.Module:
    return _Branches(
        _Conv(cin, 64, 1),
        _same(cin, (48, 1), (64, 5)),
        _same(cin, (64, 1), (96, 3), (96, 3)),
        _pooled(cin, pooled),
    )


def _inception_c(mid: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    return _Branches(
        _Conv(768, 192, 1),
        _same(768, (mid, 1), (mid, row), (192, column)),
        _same(768, (mid, 1), (mid, column), (mid, row), (mid, column), (192, row)),
        _pooled(768, 192),
    )


def _inception_e(cin: int) -> nn.Module:
    def fork() -> nn.Module:
        return _Branches(_Conv(384, 384, (1, 3), pad=True), _Conv(384, 384, (3, 1), pad=True))

    return _Branches(
        _Conv(cin, 320, 1),
        nn.Sequential(_Conv(cin, 384, 1), fork()),
        nn.Sequential(_same(cin, (448, 1), (384, 3)), fork()),
        _pooled(cin, 192),
    )


def inception_v3() -> nn.Module:
    """Inception V3 without the auxiliary classifier, for images of 299x299."""
    stem = [_Conv(3, 32, 3, 2), _Conv(32, 32, 3), _Conv(32, 64, 3, pad=True), nn.MaxPool2d(3, 2)]
    stem += [_Conv(64, 80, 1), _Conv(80, 192, 3), nn.MaxPool2d(3, 2)]
    reduce_b = _Branches(
        _Conv(288, 384, 3, 2),
        nn.Sequential(_same(288, (64, 1), (96, 3)), _Conv(96, 96, 3, 2)),
        nn.MaxPool2d(3, 2),
    )
    reduce_d = _Branches(
        nn.Sequential(_Conv(768, 192, 1), _Conv(192, 320, 3, 2)),
        nn.Sequential(_same(768, (192, 1), (192, (1, 7)), (192, (7, 1))), _Conv(192, 192, 3, 2)),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(
        *stem,
        *(_inception_a(cin, pooled) for cin, pooled in ((192, 32), (256, 64), (288, 64))),
        reduce_b,
        *(_inception_c(mid) for mid in (128, 160, 160, 192)),
        reduce_d,
        *(_inception_e(cin) for cin in (1280, 2048)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2048, 1000),
    )


def dcgan() -> nn.Module:
    """The DCGAN generator."""
    layers: list[nn.Module] = []
    cin = 100
    for index, width in enumerate((512, 256, 128, 64)):
        step = (1, 0) if index == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(cin, width, 4, *step, bias=False), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU())
        cin = width
    return nn.Sequential(*layers, nn.ConvTranspose2d(cin, 3, 4, 2, 1, bias=False), nn.Tanh())


class Int8Gemm(nn.Module):
    """A chain of int8 GEMMs: int32 accumulation, requantised to int8 between layers.

    Input int8 (M, sizes[0]), output int8 (M, sizes[-1]). On some devices `_int_mm` needs M > 16.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        for index, (k, n) in enumerate(pairwise(sizes)):
            weight = torch.randint(-16, 16, (k, n), dtype=torch.int8)
            self.register_buffer(f"weight{index}", weight)
        # Keep random activations in the range of int8: the products grow with sqrt(k).
        self.scales = [1.0 / (8.0 * k**0.5) for k in sizes[:-1]]

    def forward(self, x: Tensor) -> Tensor:
        for index, scale in enumerate(self.scales):
            total = torch._int_mm(x, self.get_buffer(f"weight{index}"))
            scaled = torch.round(total.to(torch.float32) * scale)
            x = torch.clamp(scaled, -128.0, 127.0).to(torch.int8)
        return x


class Gemm(nn.Module):
    """A chain of linear layers, each followed by ReLU, in `dtype`. Input (M, sizes[0])."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(k, n, dtype=dtype) for k, n in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def _chain(k: int) -> tuple[int, ...]:
    """Layer sizes with common ratios: times 4, divided by 4, times 3/2, and half of `k`."""
    return k, 4 * k, k, 3 * k // 2, max(1, k // 2)


def gemm_float32(k: int) -> nn.Module:
    return Gemm(_chain(k))


def gemm_bfloat16(k: int) -> nn.Module:
    return Gemm(_chain(k), torch.bfloat16)


def gemm_int8(k: int) -> nn.Module:
    return Int8Gemm(_chain(k))
