"""Networks of torchvision: classification, segmentation, video and optical flow."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.coverage.networks.lists import Make, factory

_IMAGE = (1, 3, 64, 64)
_CLIP = (1, 3, 8, 64, 64)


def _net(name: str, *shapes: tuple[int, ...], **options: Any) -> Make:
    """The network that a function or class of torchvision makes; one input per shape."""

    def make() -> tuple[Any, Any]:
        import torch
        import torchvision

        module, _, attribute = name.rpartition(".")
        home = torchvision.models if not module else importlib.import_module(module)
        network = getattr(home, attribute)(**options)
        return network, tuple(torch.randn(shape) for shape in shapes or (_IMAGE,))

    return make


def _segmentation(name: str) -> Make:
    return _net(
        f"torchvision.models.segmentation.{name}",
        weights=None,
        weights_backbone=None,
        num_classes=5,
    )


def _video(name: str, *shapes: tuple[int, ...], **options: Any) -> Make:
    return _net(f"torchvision.models.video.{name}", *(shapes or (_CLIP,)), **options)


def _without_auxiliary(name: str, size: int) -> Make:
    return _net(name, (1, 3, size, size), aux_logits=False, init_weights=False)


def _vgg11_bn() -> tuple[Any, Any]:
    import torch
    import torchvision

    network = torchvision.models.vgg11_bn()
    # The usual classifier is 480 MB of weights in the same three operators.
    network.classifier[0] = torch.nn.Linear(512 * 7 * 7, 64)
    network.classifier[3] = torch.nn.Linear(64, 64)
    network.classifier[6] = torch.nn.Linear(64, 10)
    return network, (torch.randn(_IMAGE),)


_SWIN = {"patch_size": [4, 4], "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}
_SWIN_CLASS = "torchvision.models.swin_transformer.SwinTransformer"


def _swin_v2() -> tuple[Any, Any]:
    import torch
    from torchvision.models import swin_transformer as swin

    network = swin.SwinTransformer(
        **_SWIN,
        window_size=[4, 4],
        block=swin.SwinTransformerBlockV2,
        downsample_layer=swin.PatchMergingV2,
    )
    return network, (torch.randn(_IMAGE),)


def _maxvit() -> tuple[Any, Any]:
    import torch
    from torchvision.models.maxvit import MaxVit

    network = MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=2,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
    )
    return network, (torch.randn(_IMAGE),)


def _mvit(residual: bool) -> Make:
    """A small MViT: version 2 has residual pooling and relative positions."""

    def make() -> tuple[Any, Any]:
        import torch
        from torchvision.models.video import mvit

        stages = [(1, 32, 32, [1, 1, 1], [1, 4, 4]), (2, 32, 64, [1, 2, 2], [1, 2, 2])]
        settings = [
            mvit.MSBlockConfig(
                num_heads=heads,
                input_channels=width,
                output_channels=out,
                kernel_q=[3, 3, 3],
                kernel_kv=[3, 3, 3],
                stride_q=stride_q,
                stride_kv=stride_kv,
            )
            for heads, width, out, stride_q, stride_kv in stages
        ]
        network = mvit.MViT(
            spatial_size=(64, 64),
            temporal_size=8,
            block_setting=settings,
            residual_pool=residual,
            residual_with_cls_embed=not residual,
            rel_pos_embed=residual,
            proj_after_attn=residual,
        )
        return network, (torch.randn(_CLIP),)

    return make


def _s3d() -> tuple[Any, Any]:
    import torch
    import torchvision

    network = torchvision.models.video.s3d()
    network.avgpool = torch.nn.AvgPool3d(kernel_size=(1, 2, 2), stride=1)  # for smaller clips
    return network, (torch.randn(_CLIP),)


NETWORKS: dict[str, Make] = {
    "alexnet": _net("alexnet", num_classes=10),
    "vgg11_bn": _vgg11_bn,
    "resnet18": _net("resnet18"),
    "resnet50": _net("resnet50"),
    "resnext50_32x4d": _net("resnext50_32x4d"),
    "wide_resnet50_2": _net("wide_resnet50_2"),
    "squeezenet1_1": _net("squeezenet1_1"),
    "densenet_small": _net(
        "DenseNet", growth_rate=16, block_config=(2, 3, 3, 2), num_init_features=32
    ),
    "googlenet": _without_auxiliary("googlenet", 64),
    "inception_v3": _without_auxiliary("inception_v3", 96),
    "mobilenet_v2": _net("mobilenet_v2"),
    "mobilenet_v3_small": _net("mobilenet_v3_small"),
    "mobilenet_v3_large": _net("mobilenet_v3_large"),
    "mnasnet0_5": _net("mnasnet0_5"),
    "shufflenet_v2_x0_5": _net("shufflenet_v2_x0_5"),
    "efficientnet_b0": _net("efficientnet_b0"),
    "efficientnet_v2_s": _net("efficientnet_v2_s"),
    "regnet_x_400mf": _net("regnet_x_400mf"),
    "regnet_y_400mf": _net("regnet_y_400mf"),
    "convnext_tiny": _net("convnext_tiny"),
    "vit_small": _net(
        "VisionTransformer",
        image_size=64,
        patch_size=16,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
    ),
    "swin_small": _net(_SWIN_CLASS, **_SWIN, window_size=[4, 4]),
    "swin_v2_small": _swin_v2,
    "maxvit_small": _maxvit,
    "deeplabv3_mobilenet_v3_large": _segmentation("deeplabv3_mobilenet_v3_large"),
    "deeplabv3_resnet50": _segmentation("deeplabv3_resnet50"),
    "fcn_resnet50": _segmentation("fcn_resnet50"),
    "lraspp_mobilenet_v3_large": _segmentation("lraspp_mobilenet_v3_large"),
    "r3d_18": _video("r3d_18", (1, 3, 4, 32, 32)),
    "mc3_18": _video("mc3_18", (1, 3, 4, 32, 32)),
    "r2plus1d_18": _video("r2plus1d_18", (1, 3, 4, 32, 32)),
    "s3d": _s3d,
    "mvit_v1_small": _mvit(residual=False),
    "mvit_v2_small": _mvit(residual=True),
    "swin3d_small": _video(
        "swin_transformer.SwinTransformer3d",
        patch_size=[2, 4, 4],
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[2, 4, 4],
    ),
    "raft_small": _net(
        "torchvision.models.optical_flow.raft_small",
        (1, 3, 128, 128),
        (1, 3, 128, 128),
    ),
    "raft_large": _net(
        "torchvision.models.optical_flow.raft_large",
        (1, 3, 128, 128),
        (1, 3, 128, 128),
    ),
}


def __getattr__(name: str) -> Make:
    return factory(NETWORKS, name)
