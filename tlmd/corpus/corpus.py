"""The networks on which the language model is trained, and the held-out networks.

The held-out networks are the paper's twelve. The paper trains on the same networks with other batch
and image sizes; tlmd by default holds out the whole families.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tlmd.data.errors import TlmdError
from tlmd.data.types import TargetInfo, Task
from tlmd.models.zoo.catalogue import Shape, zoo

if TYPE_CHECKING:
    from tlmd.models.sources import SourceModel

Workload = tuple[str, Shape]
CORPORA = ("paper", "synthetic", "seldom")
"""The corpora that are known by name: networks (`training_tasks`), and single operators
(`synthetic.synthetic_tasks`) of the usual shares and of more seldom kinds."""

_IMAGES = tuple((batch, 3, size, size) for batch in (1, 4, 8) for size in (224, 240, 256))
_TEXTS = tuple((batch, length) for batch in (1, 2, 4) for length in (64, 128, 256))
_IMAGE_FAMILIES = (
    "resnet18",
    "resnet50",
    "mobilenet-v2",
    "mobilenet-v3",
    "wide-resnet50",
    "resnext50",
    "densenet121",
    "vgg16",
)
_HELD_OUT: tuple[Workload, ...] = (
    ("bert-tiny", (1, 128)),
    ("resnet50", (1, 3, 224, 224)),
    ("mobilenet-v2", (1, 3, 224, 224)),
    ("resnext50", (1, 3, 224, 224)),
    ("bert-base", (1, 128)),
    ("gpt2", (1, 128)),
    ("dcgan", (8, 100, 1, 1)),
    ("llama", (4, 256)),
    ("densenet121", (8, 3, 256, 256)),
    ("wide-resnet50", (8, 3, 256, 256)),
    ("resnet3d18", (4, 3, 16, 144, 144)),
    ("bert-large", (4, 256)),
)


def paper_corpus() -> tuple[Workload, ...]:
    """The paper's 138 networks, including the held-out ones.

    The paper gives the image size of dcgan, 64; the input of ours is noise.
    """
    videos = [(batch, 3, 16, size, size) for batch in (1, 2, 4) for size in (112, 128, 144)]
    shapes: dict[str, Iterable[Shape]] = dict.fromkeys(_IMAGE_FAMILIES, _IMAGES)
    shapes["inception-v3"] = [(batch, 3, 299, 299) for batch in (1, 2, 4)]
    shapes["resnet3d18"] = videos
    shapes |= dict.fromkeys(("bert-tiny", "bert-base", "bert-medium", "bert-large"), _TEXTS)
    shapes["dcgan"] = [(batch, 100, 1, 1) for batch in (1, 4, 8)]
    shapes["gpt2"] = _TEXTS
    shapes["llama"] = [shape for shape in _TEXTS if shape[0] > 1]
    return tuple((name, shape) for name, listed in shapes.items() for shape in listed)


def held_out() -> tuple[Workload, ...]:
    """The twelve held-out networks. Networks that are fast to lower come first."""
    return _HELD_OUT


def training_corpus(strict: bool = True) -> tuple[Workload, ...]:
    """The training networks: the paper's, and further families and matrix products.

    With `strict`, the families of the held-out networks are left out in every batch, resolution,
    depth and width; otherwise only the held-out networks themselves, as in the paper.
    """
    works = (*paper_corpus(), *_further())
    if not strict:
        return tuple(work for work in works if work not in _HELD_OUT)
    return tuple(work for work in works if _family(work[0]) not in _HELD_OUT_FAMILIES)


def _family(name: str) -> str:
    """The family of a network: other depths and widths belong to it.

    MobileNet-V3 is none of V2's: its blocks are others.
    """
    for prefix in ("bert", "resnet3d", "resnet"):
        if name.startswith(prefix):
            return prefix
    return name


_HELD_OUT_FAMILIES = {_family(name) for name, _ in _HELD_OUT}


def _further() -> Iterator[Workload]:
    """Networks that the paper does not have, some with extents that are not powers of two."""
    for name in ("resnet34", "regnet", "convnext", "efficientnet-lite"):
        for batch, size in ((1, 160), (1, 192), (1, 224), (1, 256), (2, 224), (4, 224), (8, 192)):
            yield name, (batch, 3, size, size)
    for name in ("resnet18", "mobilenet-v3", "vgg16"):
        for batch, size in ((1, 128), (1, 160), (1, 192), (2, 224)):
            yield name, (batch, 3, size, size)
    for name in ("vit-s16", "vit-b16"):
        for batch, size in ((1, 160), (1, 224), (1, 256), (2, 224), (4, 224)):
            yield name, (batch, 3, size, size)
    for name in ("bert-mini", "bert-small"):
        for batch, length in (*_TEXTS, (1, 32), (1, 96), (1, 384), (1, 512)):
            yield name, (batch, length)
    for rows in (1, 7, 16, 50, 64, 128, 197, 384, 512, 1024):
        for width in (96, 192, 256, 320, 512, 640, 1024, 1280):
            yield "gemm", (rows, width)
    for name in ("gemm-int8", "gemm-bf16"):
        for rows in (32, 64, 128, 256, 512):
            for width in (128, 256, 384, 512, 768, 1024):
                yield name, (rows, width)


def held_out_ids(target_info: TargetInfo, workloads: Iterable[Workload] = _HELD_OUT) -> set[str]:
    """The ids of all tasks of the held-out networks on a target."""
    return {task.id for work in workloads for task in workload_tasks(work, target_info)}


def training_tasks(
    target_info: TargetInfo,
    workloads: Iterable[Workload] | None = None,
    excluded: Iterable[str] | None = None,
) -> Iterator[Task]:
    """Yield each task of the training networks once, except tasks of held-out networks.

    `workloads` defaults to `training_corpus()`, `excluded` to `held_out_ids(target_info)`. A task
    has its weight of the first network that contains it. A network that cannot be lowered is left
    out and named on standard error.
    """
    seen = set(held_out_ids(target_info) if excluded is None else excluded)
    for work in training_corpus() if workloads is None else workloads:
        try:
            tasks = workload_tasks(work, target_info)
        except TlmdError as error:
            print(f"left out {work[0]}: {error}", file=sys.stderr)
            continue
        for task in tasks:
            if task.id not in seen:
                seen.add(task.id)
                yield task


def workload_tasks(
    workload: Workload, target_info: TargetInfo, *, restructure: bool = True
) -> list[Task]:
    """The tasks of one zoo network at one input shape; `restructure` as in `lowering.lower`."""
    from tlmd.lowering import lowering
    from tlmd.space.hardware.target import tvm_target

    module, target = _load(workload).module, tvm_target(target_info)
    lowered = lowering.lower(module, target, restructure=restructure)
    return lowering.extract(lowered, target_info)


def _load(workload: Workload) -> SourceModel:
    from tlmd.models.frontends import load_model

    name, shape = workload
    return load_model(name, (zoo()[name].check(shape),))
