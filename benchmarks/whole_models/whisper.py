"""Whisper-tiny's encoder as a factory, for `end_to_end`: `benchmarks.whisper:encoder`."""

from __future__ import annotations

from typing import Any

_SIZES = {
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
}
_INPUT = 1, 80, 3000  # thirty seconds of sound


def encoder() -> tuple[Any, tuple[Any, ...]]:
    """The encoder with the sizes of openai/whisper-tiny and random weights, and its input."""
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    class Encoder(torch.nn.Module):
        """Returns the last hidden state alone."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = WhisperEncoder(WhisperConfig(**_SIZES))

        def forward(self, features: Any) -> Any:
            return self.encoder(features).last_hidden_state

    return Encoder().eval().requires_grad_(False), (torch.randn(_INPUT),)
