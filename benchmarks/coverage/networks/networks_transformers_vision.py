"""Networks of transformers for images and videos."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage.networks.lists import Example, Make
from benchmarks.coverage.networks.networks_transformers_parts import (
    IMAGE,
    WIDTHS,
    image,
    image_by_name,
    net,
    pixels,
    signal,
)

_STAGES: dict[str, Any] = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_RESNET: dict[str, Any] = {"embedding_size": 16, **_STAGES}
_WINDOWS: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 32,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
_VIDEO = {**WIDTHS, "image_size": 32, "patch_size": 8, "num_frames": 4}


def _with_backbone(network: str, config: str) -> Make:
    """A detector of objects on a small ResNet."""

    def make() -> tuple[Any, Any]:
        import transformers

        backbone = transformers.ResNetConfig(**_RESNET, out_features=["stage4"])
        configuration = getattr(transformers, config)(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            num_queries=10,
        )
        return getattr(transformers, network)(configuration), image()()

    return make


def _image_and_noise() -> Example:
    import torch

    # Without given noise it hides other parts of the image in every run.
    return {"pixel_values": pixels(), "noise": torch.rand(1, 16)}


VISION: dict[str, Make] = {
    "vit": net("ViTForImageClassification", "ViTConfig", image_by_name(), **IMAGE),
    "deit": net("DeiTModel", "DeiTConfig", image(), **IMAGE),
    "beit": net("BeitModel", "BeitConfig", image(), **IMAGE, use_relative_position_bias=True),
    "dinov2": net("Dinov2Model", "Dinov2Config", image_by_name(), **IMAGE),
    "dinov2_other_size": net(
        "Dinov2Model", "Dinov2Config", image(64), **{**IMAGE, "image_size": 96}
    ),
    "dinov3": net("DINOv3ViTModel", "DINOv3ViTConfig", image(), **IMAGE),
    "vit_mae": net("ViTMAEModel", "ViTMAEConfig", _image_and_noise, **IMAGE),
    "vit_msn": net("ViTMSNModel", "ViTMSNConfig", image(), **IMAGE),
    "ijepa": net("IJepaModel", "IJepaConfig", image(), **IMAGE),
    "swin": net("SwinModel", "SwinConfig", image(), **_WINDOWS),
    "swinv2": net("Swinv2ForImageClassification", "Swinv2Config", image_by_name(), **_WINDOWS),
    "convnext": net("ConvNextModel", "ConvNextConfig", image(), **_STAGES),
    "convnextv2": net("ConvNextV2Model", "ConvNextV2Config", image(), **_STAGES),
    "resnet": net("ResNetForImageClassification", "ResNetConfig", image_by_name(), **_RESNET),
    "regnet": net("RegNetModel", "RegNetConfig", image(), **_RESNET, groups_width=8),
    "bit": net("BitModel", "BitConfig", image(), **_RESNET, num_groups=8),
    "mobilenet_v2": net("MobileNetV2Model", "MobileNetV2Config", image()),
    "poolformer": net("PoolFormerModel", "PoolFormerConfig", image(), **_STAGES),
    "segformer": net(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        image_by_name(),
        **_STAGES,
        decoder_hidden_size=32,
    ),
    "pvt": net("PvtModel", "PvtConfig", image(), image_size=64),
    "cvt": net("CvtModel", "CvtConfig", image()),
    "levit": net("LevitModel", "LevitConfig", image(), image_size=64),
    "focalnet": net(
        "FocalNetModel", "FocalNetConfig", image(), image_size=64, embed_dim=16, depths=[1, 1, 1, 1]
    ),
    "mobilevit": net(
        "MobileViTModel",
        "MobileViTConfig",
        image(),
        image_size=64,
        hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 64],
    ),
    "mobilevitv2": net("MobileViTV2Model", "MobileViTV2Config", image(), image_size=64),
    "detr": _with_backbone("DetrForObjectDetection", "DetrConfig"),
    "conditional_detr": _with_backbone(
        "ConditionalDetrForObjectDetection", "ConditionalDetrConfig"
    ),
    "yolos": net(
        "YolosForObjectDetection",
        "YolosConfig",
        image_by_name(),
        **{**IMAGE, "image_size": [64, 64]},
        num_detection_tokens=10,
    ),
    "dpt": net(
        "DPTForDepthEstimation",
        "DPTConfig",
        image_by_name(),
        **{**IMAGE, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 32, 48, 64],
        fusion_hidden_size=32,
        is_hybrid=False,
    ),
    "glpn": net(
        "GLPNForDepthEstimation",
        "GLPNConfig",
        image(),
        **_STAGES,
        num_attention_heads=[1, 2, 4, 8],
        decoder_hidden_size=32,
    ),
    "sam_vision": net(
        "SamVisionModel",
        "SamVisionConfig",
        image(),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_dim=128,
        image_size=64,
        patch_size=16,
        output_channels=32,
        window_size=3,
        global_attn_indexes=[1],
    ),
    "swin2sr": net(
        "Swin2SRForImageSuperResolution",
        "Swin2SRConfig",
        image(32),
        image_size=32,
        embed_dim=32,
        depths=[2],
        num_heads=[4],
        window_size=4,
    ),
    "videomae": net(
        "VideoMAEModel",
        "VideoMAEConfig",
        signal(1, 4, 3, 32, 32, name="pixel_values"),
        **_VIDEO,
        tubelet_size=2,
    ),
    "timesformer": net("TimesformerModel", "TimesformerConfig", signal(1, 4, 3, 32, 32), **_VIDEO),
    "vivit": net(
        "VivitModel", "VivitConfig", signal(1, 4, 3, 32, 32), **_VIDEO, tubelet_size=[2, 8, 8]
    ),
}
