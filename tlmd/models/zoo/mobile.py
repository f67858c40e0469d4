"""Networks with depthwise convolutions and random weights: MobileNet V2 and V3, EfficientNet-Lite.

Inputs are float32 images (N, 3, H, W), outputs float32 logits (N, 1000).
"""

from __future__ import annotations

from torch import Tensor, nn

from tlmd.models.zoo.residual import conv_norm


def _round8(channels: float) -> int:
    """The nearest multiple of 8 that is not smaller than 90 % of `channels`."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class _SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x)
        return x * gate


class _InvertedResidual(nn.Module):
    """1x1 up, depthwise, optional squeeze-and-excite, 1x1 down; a shortcut if shapes are equal."""

    def __init__(
        self,
        cin: int,
        hidden: int,
        cout: int,
        kernel: int,
        stride: int,
        act: type[nn.Module],
        squeeze: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if hidden != cin:
            layers += [conv_norm(cin, hidden, 1), act()]
        layers += [conv_norm(hidden, hidden, kernel, stride, groups=hidden), act()]
        if squeeze:
            layers.append(_SqueezeExcite(hidden, _round8(hidden / 4)))
        layers.append(conv_norm(hidden, cout, 1))
        self.body = nn.Sequential(*layers)
        self.shortcut = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.shortcut else y


def _pool() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


# expansion, output channels, repeats, stride of the first block
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2() -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, 32, 3, 2), nn.ReLU6()]
    cin = 32
    for expansion, cout, repeats, stride in _V2:
        for index in range(repeats):
            step = stride if index == 0 else 1
            layers.append(_InvertedResidual(cin, cin * expansion, cout, 3, step, nn.ReLU6))
            cin = cout
    layers += [conv_norm(cin, 1280, 1), nn.ReLU6()]
    return nn.Sequential(*layers, *_pool(), nn.Linear(1280, 1000))


# kernel, hidden, output channels, squeeze-and-excite, hard swish, stride
_V3_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


def mobilenet_v3() -> nn.Module:
    """MobileNet V3 large."""
    layers: list[nn.Module] = [conv_norm(3, 16, 3, 2), nn.Hardswish()]
    cin = 16
    for kernel, hidden, cout, squeeze, swish, stride in _V3_LARGE:
        act = nn.Hardswish if swish else nn.ReLU
        layers.append(_InvertedResidual(cin, hidden, cout, kernel, stride, act, squeeze))
        cin = cout
    layers += [conv_norm(cin, 960, 1), nn.Hardswish(), *_pool()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))


# expansion, kernel, output channels, repeats, stride of the first block
_LITE = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


def efficientnet_lite(width: float = 1.0) -> nn.Module:
    """EfficientNet-Lite0 (no squeeze-and-excite, ReLU6); `width` scales the inner channels."""
    layers: list[nn.Module] = [conv_norm(3, 32, 3, 2), nn.ReLU6()]
    cin = 32
    for expansion, kernel, channels, repeats, stride in _LITE:
        cout = _round8(channels * width)
        for index in range(repeats):
            step = stride if index == 0 else 1
            block = _InvertedResidual(cin, cin * expansion, cout, kernel, step, nn.ReLU6)
            layers.append(block)
            cin = cout
    layers += [conv_norm(cin, 1280, 1), nn.ReLU6()]
    return nn.Sequential(*layers, *_pool(), nn.Linear(1280, 1000))
