"""Residual convolutional networks with random weights: ResNet and its variants.

Inputs are float32 images (N, 3, H, W), or videos (N, 3, D, H, W) for `resnet3d18`; outputs are
float32 logits (N, classes).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def conv_norm(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution without bias, then batch normalisation. Odd kernels have "same" padding."""
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout))


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, cin: int, width: int, stride: int, groups: int, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(cin, width, 3, stride), nn.ReLU(), conv_norm(width, width, 3)
        )
        same = stride == 1 and cin == width
        self.shortcut = nn.Identity() if same else conv_norm(cin, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (grouped, `inner` channels) and 1x1 convolutions with a shortcut."""

    expansion = 4

    def __init__(self, cin: int, width: int, stride: int, groups: int, inner: int) -> None:
        super().__init__()
        cout = width * self.expansion
        self.body = nn.Sequential(
            conv_norm(cin, inner, 1),
            nn.ReLU(),
            conv_norm(inner, inner, 3, stride, groups),
            nn.ReLU(),
            conv_norm(inner, cout, 1),
        )
        same = stride == 1 and cin == cout
        self.shortcut = nn.Identity() if same else conv_norm(cin, cout, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _head(features: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


def resnet(
    block: type[Basic] | type[Bottleneck],
    depths: Sequence[int],
    groups: int = 1,
    group_width: int = 64,
) -> nn.Module:
    """ResNet, Wide ResNet (`group_width` 128) or ResNeXt (`groups` 32, `group_width` 4)."""
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    cin = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        inner = width * group_width // 64 * groups
        for index in range(depth):
            stride = 2 if stage and index == 0 else 1
            layers.append(block(cin, width, stride, groups, inner))
            cin = width * block.expansion
    return nn.Sequential(*layers, _head(cin, 1000))


def resnet18() -> nn.Module:
    return resnet(Basic, (2, 2, 2, 2))


def resnet34() -> nn.Module:
    return resnet(Basic, (3, 4, 6, 3))


def resnet50() -> nn.Module:
    return resnet(Bottleneck, (3, 4, 6, 3))


def wide_resnet50() -> nn.Module:
    return resnet(Bottleneck, (3, 4, 6, 3), group_width=128)


def resnext50() -> nn.Module:
    return resnet(Bottleneck, (3, 4, 6, 3), groups=32, group_width=4)


class _RegNetBlock(nn.Module):
    """A bottleneck without expansion; its 3x3 convolution has groups of `group_width` channels."""

    def __init__(self, cin: int, cout: int, stride: int, group_width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(cin, cout, 1),
            nn.ReLU(),
            conv_norm(cout, cout, 3, stride, cout // group_width),
            nn.ReLU(),
            conv_norm(cout, cout, 1),
        )
        same = stride == 1 and cin == cout
        self.shortcut = nn.Identity() if same else conv_norm(cin, cout, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def regnet() -> nn.Module:
    """RegNetX-800MF: depths 1, 3, 7, 5 of 64, 128, 288, 672 channels, group width 16."""
    layers: list[nn.Module] = [conv_norm(3, 32, 3, 2), nn.ReLU()]
    cin = 32
    for depth, width in ((1, 64), (3, 128), (7, 288), (5, 672)):
        for index in range(depth):
            layers.append(_RegNetBlock(cin, width, 1 if index else 2, 16))
            cin = width
    return nn.Sequential(*layers, _head(cin, 1000))


class _ChannelNorm(nn.Module):
    """Layer normalisation over the channels of (N, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return y.permute(0, 3, 1, 2)


class _ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(nn.functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """ConvNeXt-Tiny: depths 3, 3, 9, 3 of 96, 192, 384, 768 channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), _ChannelNorm(96)]
    cin = 96
    for depth, width in ((3, 96), (3, 192), (9, 384), (3, 768)):
        if width != cin:
            layers += [_ChannelNorm(cin), nn.Conv2d(cin, width, 2, 2)]
        layers += [_ConvNeXtBlock(width) for _ in range(depth)]
        cin = width
    return nn.Sequential(*layers, _head(cin, 1000))


def _conv_norm_3d(cin: int, cout: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv3d(cin, cout, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm3d(cout))


class _Basic3d(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv_norm_3d(cin, cout, 3, stride), nn.ReLU(), _conv_norm_3d(cout, cout, 3)
        )
        same = stride == 1 and cin == cout
        self.shortcut = nn.Identity() if same else _conv_norm_3d(cin, cout, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet3d18() -> nn.Module:
    """The video ResNet-18 with 3x3x3 convolutions and 400 classes."""
    stem = nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm3d(64), nn.ReLU()]
    cin = 64
    for stage in range(4):
        width = 64 << stage
        layers += [_Basic3d(cin, width, 2 if stage else 1), _Basic3d(width, width, 1)]
        cin = width
    head = (nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(cin, 400))
    return nn.Sequential(*layers, *head)
