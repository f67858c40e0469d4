"""Networks of transformers for sound, for text with images, and for time series."""

from __future__ import annotations

from typing import Any

from benchmarks.coverage.networks.lists import Example, Make
from benchmarks.coverage.networks.networks_transformers_parts import (
    GROUPED,
    IDS,
    IMAGE,
    LENGTH,
    TEXT,
    TWO_TOWERS,
    VOCABULARY,
    WIDTHS,
    ids,
    image,
    mask,
    net,
    pixels,
    signal,
    words,
)

_SPEECH: dict[str, Any] = {
    "vocab_size": 32,
    **WIDTHS,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 4, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_WAVE = signal(1, 4000, name="input_values")
_BARS: dict[str, Any] = {k: v for k, v in TWO_TOWERS.items() if k != "max_position_embeddings"}


def _whisper_inputs() -> Example:
    import torch

    return {"input_features": torch.randn(1, 16, 128), "decoder_input_ids": ids(16)}


def _speech_to_text_inputs() -> Example:
    import torch

    return {"input_features": torch.randn(1, 64, 16), "decoder_input_ids": ids(16)}


AUDIO: dict[str, Make] = {
    "whisper": net(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        _whisper_inputs,
        **_BARS,
        num_mel_bins=16,
        max_source_positions=64,
        max_target_positions=64,
        **IDS,
    ),
    "speech_to_text": net(
        "Speech2TextModel",
        "Speech2TextConfig",
        _speech_to_text_inputs,
        **_BARS,
        input_feat_per_channel=16,
        conv_channels=32,
        max_source_positions=128,
        max_target_positions=64,
    ),
    "wav2vec2": net("Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE, **_SPEECH),
    "wav2vec2_conformer": net(
        "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", _WAVE, **_SPEECH
    ),
    "hubert": net("HubertModel", "HubertConfig", signal(1, 4000), **_SPEECH),
    "wavlm": net("WavLMModel", "WavLMConfig", _WAVE, **_SPEECH),
    "unispeech": net("UniSpeechModel", "UniSpeechConfig", _WAVE, **_SPEECH),
    "audio_spectrogram": net(
        "ASTModel", "ASTConfig", signal(1, 64, 32), **WIDTHS, max_length=64, num_mel_bins=32
    ),
    "encodec": net(
        "EncodecModel",
        "EncodecConfig",
        signal(1, 1, 1920),
        num_filters=8,
        hidden_size=32,
        codebook_size=64,
    ),
}


def _towers(text: dict[str, Any], vision: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"text_config": text, "vision_config": vision, **options}


def _image_and_words() -> Example:
    return {"input_ids": ids(), "pixel_values": pixels(), "attention_mask": mask()}


def _words_then_image() -> Example:
    return ids(), pixels()


def _llava_inputs() -> Example:
    import torch

    # The image takes the places of 16 words with a number of their own.
    places = torch.full((1, 16), VOCABULARY - 1)
    text = torch.randint(3, VOCABULARY - 1, (1, 16))
    return {"input_ids": torch.cat([places, text], 1), "pixel_values": pixels()}


def _llava() -> tuple[Any, Example]:
    import transformers

    configuration = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**IMAGE),
        text_config=transformers.LlamaConfig(**GROUPED),
        image_token_index=VOCABULARY - 1,
        image_token_id=VOCABULARY - 1,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(configuration), _llava_inputs()


def _vilt_inputs() -> Example:
    return {"input_ids": ids(16), "pixel_values": pixels()}


_CLIP_TEXT: dict[str, Any] = {**TEXT, "max_position_embeddings": LENGTH, **IDS}

MULTI_MODAL: dict[str, Make] = {
    "clip": net(
        "CLIPModel",
        "CLIPConfig",
        _image_and_words,
        **_towers(_CLIP_TEXT, IMAGE, projection_dim=32),
    ),
    "clip_text": net("CLIPTextModel", "CLIPTextConfig", words(), **_CLIP_TEXT),
    "clip_vision": net("CLIPVisionModel", "CLIPVisionConfig", image(), **IMAGE),
    "siglip": net(
        "SiglipModel",
        "SiglipConfig",
        _words_then_image,
        **_towers({**TEXT, "max_position_embeddings": LENGTH, "projection_size": 64}, IMAGE),
    ),
    "siglip_vision": net("SiglipVisionModel", "SiglipVisionConfig", image(), **IMAGE),
    "blip_vision": net("BlipVisionModel", "BlipVisionConfig", image(), **IMAGE),
    "altclip": net(
        "AltCLIPModel",
        "AltCLIPConfig",
        _words_then_image,
        **_towers({**TEXT, "project_dim": 32}, IMAGE, projection_dim=32),
    ),
    "owlvit": net(
        "OwlViTModel",
        "OwlViTConfig",
        _words_then_image,
        **_towers(_CLIP_TEXT, IMAGE, projection_dim=32),
    ),
    "vilt": net("ViltModel", "ViltConfig", _vilt_inputs, **TEXT, image_size=64, patch_size=16),
    "llava": _llava,
}


def _forecast_inputs() -> Example:
    import torch

    past = 16 + 3
    return {
        "past_values": torch.randn(1, past).abs(),
        "past_time_features": torch.randn(1, past, 2),
        "past_observed_mask": torch.ones(1, past),
        "future_values": torch.randn(1, 8).abs(),
        "future_time_features": torch.randn(1, 8, 2),
    }


_FORECAST: dict[str, Any] = {
    "prediction_length": 8,
    "context_length": 16,
    "lags_sequence": [1, 2, 3],
    "num_time_features": 2,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_static_categorical_features": 0,
}
_SERIES = signal(1, 64, 3, name="past_values")

TIME_SERIES: dict[str, Make] = {
    "time_series_transformer": net(
        "TimeSeriesTransformerModel", "TimeSeriesTransformerConfig", _forecast_inputs, **_FORECAST
    ),
    "autoformer": net("AutoformerModel", "AutoformerConfig", _forecast_inputs, **_FORECAST),
    # Its usual attention draws keys at random in every run.
    "informer": net(
        "InformerModel", "InformerConfig", _forecast_inputs, **_FORECAST, attention_type="full"
    ),
    "patchtst": net(
        "PatchTSTModel",
        "PatchTSTConfig",
        _SERIES,
        num_input_channels=3,
        context_length=64,
        patch_length=8,
        patch_stride=8,
        d_model=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=128,
    ),
    "patchtsmixer": net(
        "PatchTSMixerModel",
        "PatchTSMixerConfig",
        _SERIES,
        num_input_channels=3,
        context_length=64,
        patch_length=8,
        patch_stride=8,
        d_model=16,
        num_layers=2,
    ),
}
