"""Networks of timm: about one small model per family, with fewer layers where timm allows it."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage.networks.lists import Make, factory


def _net(name: str, size: int = 64, **options: Any) -> Make:
    """The model `name` with random weights, for an image of `size` x `size`."""

    def make() -> tuple[Any, Any]:
        import timm
        import torch

        return timm.create_model(name, pretrained=False, **options), (
            torch.randn(1, 3, size, size),
        )

    return make


NETWORKS: dict[str, Make] = {
    "beit_base_patch16_224": _net(
        "beit_base_patch16_224", img_size=64, depth=2, embed_dim=96, num_heads=4
    ),
    "caformer_s18": _net("caformer_s18"),
    "cait_xxs24_224": _net("cait_xxs24_224", img_size=64, depth=2, depth_token_only=1),
    "coat_lite_tiny": _net("coat_lite_tiny", img_size=64),
    "coatnet_pico_rw_224": _net("coatnet_pico_rw_224", img_size=64),
    "convit_tiny": _net("convit_tiny", img_size=64, depth=3, local_up_to_layer=2),
    "convmixer_1024_20_ks9_p14": _net("convmixer_1024_20_ks9_p14"),
    "convnext_zepto_rms": _net("convnext_zepto_rms"),
    "convnextv2_atto": _net("convnextv2_atto"),
    "cpubone_nano": _net("cpubone_nano"),
    "crossvit_9_240": _net("crossvit_9_240"),
    "cs3darknet_focus_s": _net("cs3darknet_focus_s"),
    "cspnext_tiny": _net("cspnext_tiny"),
    "davit_tiny": _net("davit_tiny"),
    "deit_tiny_distilled_patch16_224": _net(
        "deit_tiny_distilled_patch16_224", img_size=64, depth=2
    ),
    "densenet121": _net("densenet121", block_config=(2, 2, 2, 2)),
    "dla46_c": _net("dla46_c"),
    "dpn48b": _net("dpn48b"),
    "eca_botnext26ts_256": _net("eca_botnext26ts_256", img_size=64),
    "ecaresnet26t": _net("ecaresnet26t"),
    "edgenext_xx_small": _net("edgenext_xx_small"),
    "efficientformer_l1": _net("efficientformer_l1", size=224, depths=(1, 1, 1, 2)),
    "efficientformerv2_s0": _net("efficientformerv2_s0", img_size=64),
    "efficientnet_b0_gn": _net("efficientnet_b0_gn"),
    "efficientvim_m1": _net("efficientvim_m1"),
    "efficientvit_b0": _net("efficientvit_b0"),
    "efficientvit_m0": _net("efficientvit_m0"),
    "ese_vovnet19b_slim_dw": _net("ese_vovnet19b_slim_dw"),
    "eva02_tiny_patch14_224": _net("eva02_tiny_patch14_224", img_size=64, depth=2),
    "fasternet_t0": _net("fasternet_t0"),
    "fastvit_t8": _net("fastvit_t8"),
    "focalnet_tiny_srf": _net("focalnet_tiny_srf"),
    "gcvit_xxtiny": _net("gcvit_xxtiny", size=224),
    "ghostnet_050": _net("ghostnet_050"),
    "gmlp_ti16_224": _net("gmlp_ti16_224", img_size=64),
    "hgnetv2_b0": _net("hgnetv2_b0"),
    "hiera_tiny_224": _net(
        "hiera_tiny_224", img_size=64, stages=(1, 1, 1, 1), embed_dim=32, num_heads=1
    ),
    "hrnet_w18_small": _net("hrnet_w18_small"),
    "iformer_t": _net("iformer_t"),
    "inception_next_atto": _net("inception_next_atto"),
    "lambda_resnet26t": _net("lambda_resnet26t"),
    "lamhalobotnet50ts_256": _net("lamhalobotnet50ts_256", size=128, img_size=128),
    "lcnet_035": _net("lcnet_035"),
    "lcnetv2_small": _net("lcnetv2_small"),
    "legacy_seresnet18": _net("legacy_seresnet18"),
    "legacy_xception": _net("legacy_xception"),
    "levit_128s": _net("levit_128s", img_size=64),
    "lowformer_b0": _net("lowformer_b0"),
    "mixer_s32_224": _net("mixer_s32_224", img_size=64),
    "mobilenetv3_small_050": _net("mobilenetv3_small_050"),
    "mobilenetv4_conv_small_035": _net("mobilenetv4_conv_small_035"),
    "mobilenetv4_hybrid_medium": _net("mobilenetv4_hybrid_medium"),
    "mobileone_s1": _net("mobileone_s1"),
    "mobilevit_xxs": _net("mobilevit_xxs"),
    "mobilevitv2_050": _net("mobilevitv2_050"),
    "mvitv2_tiny": _net("mvitv2_tiny", img_size=64),
    "naflexvit_base_patch16_gap": _net(
        "naflexvit_base_patch16_gap", depth=2, embed_dim=96, num_heads=4
    ),
    "nest_tiny": _net("nest_tiny", img_size=64),
    "nextvit_small": _net("nextvit_small"),
    "nf_regnet_b0": _net("nf_regnet_b0"),
    "pit_ti_224": _net("pit_ti_224", img_size=64, depth=[1, 1, 1]),
    "poolformer_s12": _net("poolformer_s12"),
    "pvt_v2_b0": _net("pvt_v2_b0"),
    "rdnet_tiny": _net("rdnet_tiny"),
    "regnety_002": _net("regnety_002"),
    "repghostnet_050": _net("repghostnet_050"),
    "repvit_m1": _net("repvit_m1"),
    "res2net50_14w_8s": _net("res2net50_14w_8s"),
    "resmlp_12_224": _net("resmlp_12_224", img_size=64),
    "resnest14d": _net("resnest14d"),
    "resnet10t": _net("resnet10t"),
    "resnetv2_18": _net("resnetv2_18"),
    "resnetv2_50x1_bit": _net("resnetv2_50x1_bit"),
    "rexnet_100": _net("rexnet_100"),
    "samvit_base_patch16_224": _net(
        "samvit_base_patch16_224", depth=2, embed_dim=96, num_heads=4, global_attn_indexes=(1,)
    ),
    "selecsls42": _net("selecsls42"),
    "sequencer2d_s": _net(
        "sequencer2d_s",
        layers=[1, 1, 1, 1],
        embed_dims=[32, 32, 32, 32],
        hidden_sizes=[16, 16, 16, 16],
    ),
    "seresnext26t_32x4d": _net("seresnext26t_32x4d"),
    "shvit_s1": _net("shvit_s1"),
    "skresnet18": _net("skresnet18"),
    "starnet_s050": _net("starnet_s050"),
    "swiftformer_xs": _net("swiftformer_xs"),
    "swin_tiny_patch4_window7_224": _net(
        "swin_tiny_patch4_window7_224", img_size=64, depths=(1, 1, 1, 1)
    ),
    "swinv2_cr_tiny_224": _net("swinv2_cr_tiny_224", img_size=64, depths=(1, 1, 1, 1)),
    "swinv2_tiny_window8_256": _net("swinv2_tiny_window8_256", img_size=64, depths=(1, 1, 1, 1)),
    "test_mambaout": _net("test_mambaout"),
    "test_nfnet": _net("test_nfnet"),
    "test_vit": _net("test_vit"),
    "test_vit_relpos": _net("test_vit_relpos", img_size=64),
    "tiny_vit_5m_224": _net("tiny_vit_5m_224", depths=[1, 1, 1, 1]),
    "tnt_s_patch16_224": _net("tnt_s_patch16_224", img_size=64, depth=2),
    "tresnet_m": _net("tresnet_m"),
    "twins_pcpvt_small": _net("twins_pcpvt_small", depths=(1, 1, 1, 1)),
    "twins_svt_small": _net("twins_svt_small", depths=(1, 1, 1, 1)),
    "visformer_tiny": _net("visformer_tiny", img_size=64),
    "vit_small_patch16_dinov3": _net("vit_small_patch16_dinov3", depth=2),
    "vit_tiny_r_s16_p8_224": _net("vit_tiny_r_s16_p8_224", img_size=64, depth=2),
    "vitamin_small_224": _net("vitamin_small_224", img_size=64, depth=2),
    "volo_d1_224": _net("volo_d1_224", img_size=64),
    "xception41p": _net("xception41p"),
    "xcit_nano_12_p8_224": _net("xcit_nano_12_p8_224", depth=2, cls_attn_layers=1),
}


def __getattr__(name: str) -> Make:
    return factory(NETWORKS, name)
