"""What the lists of networks of transformers share: sizes, inputs, and how one is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.coverage.networks.lists import Example, Make

VOCABULARY, LENGTH = 512, 32
WIDTHS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, **WIDTHS, "max_position_embeddings": 128}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
IMAGE: dict[str, Any] = {**WIDTHS, "image_size": 64, "patch_size": 16}
TWO_TOWERS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
}


def net(network: str, config: str, inputs: Callable[[], Example], **options: Any) -> Make:
    """The class `network` of transformers with the options of its configuration."""

    def make() -> tuple[Any, Example]:
        import transformers

        configuration = getattr(transformers, config)(**options)
        return getattr(transformers, network)(configuration), inputs()

    return make


def ids(length: int = LENGTH) -> Any:
    """Numbers of words. The first ones are left out; they mean padding, begin and end."""
    import torch

    return torch.randint(3, VOCABULARY, (1, length))


def mask(length: int = LENGTH, padding: int = 6) -> Any:
    """An attention mask with padding on the right."""
    import torch

    found = torch.ones(1, length, dtype=torch.int64)
    found[:, length - padding :] = 0
    return found


def pixels(size: int = 64, channels: int = 3) -> Any:
    """An image."""
    import torch

    return torch.randn(1, channels, size, size)


def words(length: int = LENGTH) -> Callable[[], Example]:
    """One positional input: numbers of words."""
    return lambda: (ids(length),)


def words_and_mask() -> Example:
    """Keyword inputs, as a tokenizer gives them."""
    return {"input_ids": ids(), "attention_mask": mask()}


def two_texts() -> Example:
    """Keyword inputs of an encoder and a decoder."""
    return {"input_ids": ids(), "decoder_input_ids": ids(16)}


def image(size: int = 64) -> Callable[[], Example]:
    """One positional input: an image."""
    return lambda: (pixels(size),)


def image_by_name(size: int = 64) -> Callable[[], Example]:
    """The keyword input that an image processor gives."""
    return lambda: {"pixel_values": pixels(size)}


def signal(*shape: int, name: str = "") -> Callable[[], Example]:
    """One float input of any shape, positional or by name."""

    def make() -> Example:
        import torch

        value = torch.randn(shape)
        return {name: value} if name else (value,)

    return make
