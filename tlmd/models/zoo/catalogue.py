"""The zoo: networks that tlmd can build by name. Their random weights are always the same.

Importing this module does not load torch, so listing names and shapes is fast.
"""

from __future__ import annotations

import importlib
import zlib
from dataclasses import dataclass
from typing import Any

from tlmd.data.errors import BadInput

Shape = tuple[int, ...]
_VOCABULARY = 30000  # below the smallest vocabulary of the zoo's transformers


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network with one input.

    Example: ``ZooEntry("resnet18", 19, "residual:resnet18", (1, 3, 224, 224), "float32",
    free=(0, 2, 3))``.
    """

    name: str

    tasks: int
    """Number of tasks of the network with its default shape on a CPU. It is counted in advance,
    because lowering all networks takes minutes. A test checks the small ones."""

    builder: str
    """``module:function`` in `tlmd.models.zoo`."""

    shape: Shape
    """Default shape of the input."""

    dtype: str
    """Dtype of the input."""

    free: tuple[int, ...]
    """Indices of the dimensions that a user may change."""

    arguments: tuple[Any, ...] = ()
    """Positional arguments of the builder."""

    sized: int | None = None
    """If set, the builder also gets the input's dimensions from this index on."""

    def make(self, input_shape: Shape | None = None) -> tuple[Any, tuple[Any, ...]]:
        """Build the torch module in eval mode and its example inputs, a tuple of one tensor.

        The same name and shape give the same weights in every process. torch's random state is not
        changed. Raises `BadInput` for a shape that the network cannot take.
        """
        import torch

        shape = self.check(input_shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            module = self._build(shape)
            _initialise(module)
            module = module.eval().requires_grad_(False)
            return module, (self._example(shape),)

    def check(self, input_shape: Shape | None) -> Shape:
        """The input shape to use. None: the default. Raises `BadInput` if it does not fit."""
        if input_shape is None:
            return self.shape
        shape = tuple(input_shape)
        fits = len(shape) == len(self.shape) and all(
            extent > 0 and (index in self.free or extent == self.shape[index])
            for index, extent in enumerate(shape)
        )
        if not fits:
            wanted = ",".join(
                "?" if index in self.free else str(extent)
                for index, extent in enumerate(self.shape)
            )
            given = ",".join(map(str, shape))
            raise BadInput(
                f"input shape {given} does not fit {self.name}; give --input-shape {wanted} "
                "with a positive number for each ?"
            )
        return shape

    def _build(self, shape: Shape) -> Any:
        module, function = self.builder.split(":")
        build = getattr(importlib.import_module(f"tlmd.models.zoo.{module}"), function)
        return build(*self.arguments, *(shape[self.sized :] if self.sized is not None else ()))

    def _example(self, shape: Shape) -> Any:
        import torch

        if self.dtype == "int64":
            return torch.randint(0, _VOCABULARY, shape)
        if self.dtype == "int8":
            return torch.randint(-128, 128, shape, dtype=torch.int8)
        return torch.randn(shape).to(getattr(torch, self.dtype))


def _initialise(module: Any) -> None:
    """Set weights that keep the size of activations in deep networks, and random statistics.

    With default statistics, batch normalisation would change nothing.
    """
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.conv import _ConvNd

    for part in module.modules():
        if isinstance(part, _ConvNd):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
        elif isinstance(part, _BatchNorm) and part.running_mean is not None:
            assert part.running_var is not None
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)


def _image(
    name: str, tasks: int, builder: str, size: int = 224, *, sized: int | None = None
) -> ZooEntry:
    shape = (1, 3, size, size)
    free = (0,) if sized is not None else (0, 2, 3)
    return ZooEntry(name, tasks, builder, shape, "float32", free, sized=sized)


def _residual(name: str, tasks: int, function: str, size: int = 224) -> ZooEntry:
    return _image(name, tasks, f"residual:{function}", size)


def _bert(name: str, tasks: int, hidden: int, layers: int) -> ZooEntry:
    sizes = (hidden, layers, hidden // 64)
    return ZooEntry(
        name, tasks, "transformer:bert", (1, 128), "int64", free=(0, 1), arguments=sizes
    )


def _causal(name: str, tasks: int) -> ZooEntry:
    builder = f"transformer:{name}"
    return ZooEntry(name, tasks, builder, (1, 128), "int64", free=(0, 1), sized=1)


def _vit(name: str, tasks: int, hidden: int, heads: int) -> ZooEntry:
    shape = (1, 3, 224, 224)
    arguments = (hidden, 12, heads)
    return ZooEntry(name, tasks, "transformer:vit", shape, "float32", (0, 2, 3), arguments, sized=2)


def _gemm(name: str, tasks: int, function: str, dtype: str) -> ZooEntry:
    return ZooEntry(
        name, tasks, f"convolutional:{function}", (128, 512), dtype, free=(0, 1), sized=1
    )


_ENTRIES = (
    _residual("resnet18", 19, "resnet18"),
    _residual("resnet34", 19, "resnet34"),
    _residual("resnet50", 28, "resnet50"),
    _residual("resnext50", 28, "resnext50"),
    _residual("wide-resnet50", 28, "wide_resnet50"),
    _residual("regnet", 26, "regnet"),
    _residual("convnext", 23, "convnext"),
    ZooEntry(
        "resnet3d18", 18, "residual:resnet3d18", (1, 3, 16, 112, 112), "float32", (0, 2, 3, 4)
    ),
    _image("densenet121", 189, "convolutional:densenet121"),
    _image("vgg16", 20, "convolutional:vgg16"),
    _image("inception-v3", 62, "convolutional:inception_v3", 299),
    ZooEntry("dcgan", 11, "convolutional:dcgan", (1, 100, 1, 1), "float32", free=(0,)),
    _image("mobilenet-v2", 30, "mobile:mobilenet_v2"),
    _image("mobilenet-v3", 53, "mobile:mobilenet_v3"),
    _image("efficientnet-lite", 32, "mobile:efficientnet_lite"),
    _bert("bert-tiny", 9, 128, 2),
    _bert("bert-mini", 9, 256, 4),
    _bert("bert-small", 9, 512, 4),
    _bert("bert-medium", 9, 512, 8),
    _bert("bert-base", 9, 768, 12),
    _bert("bert-large", 9, 1024, 24),
    _causal("gpt2", 9),
    _causal("llama", 14),
    _vit("vit-s16", 9, 384, 6),
    _vit("vit-b16", 9, 768, 12),
    _gemm("gemm", 4, "gemm_float32", "float32"),
    _gemm("gemm-int8", 4, "gemm_int8", "int8"),
    _gemm("gemm-bf16", 4, "gemm_bfloat16", "bfloat16"),
)


def zoo() -> dict[str, ZooEntry]:
    """All networks by name."""
    return {entry.name: entry for entry in _ENTRIES}
