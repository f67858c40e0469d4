"""Example inputs of models of transformers, from what their configuration says."""

from __future__ import annotations

import inspect
from typing import Any

from tlmd.data.errors import BadInput

_LENGTH = 128  # tokens of an example
_SAMPLES = 16000  # one second of audio


def with_example(module: Any) -> tuple[Any, dict[str, Any]]:
    """The module in evaluation mode and keyword inputs that its configuration allows.

    Numbers that are no integers have the dtype of the module's weights. Raises `BadInput`.
    """
    import torch

    module = module.eval()
    names = inspect.signature(module.forward).parameters
    wanted = {str(module.main_input_name)}
    config = module.config
    if getattr(config, "text_config", None) is not None and "input_ids" in names:
        wanted |= {"input_ids", "pixel_values"} & set(names)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        wanted.add("decoder_input_ids")
    generator = torch.Generator().manual_seed(0)
    example = {}
    for name in sorted(wanted, key=list(names).index):
        shape = _shape(name, config)
        if not shape:
            raise BadInput(
                f"tlmd does not know what to give {type(module).__name__} as {name}; "
                "write a factory that returns the model and its inputs"
            )
        if name.endswith("input_ids"):
            vocabulary = int(_of(config, "vocab_size", 1000))
            example[name] = torch.randint(3, max(vocabulary, 5), shape, generator=generator)
        else:
            example[name] = torch.randn(shape, generator=generator).to(module.dtype)
    return module, example


def _of(config: Any, name: str, default: Any) -> Any:
    """An entry of the configuration, or of the parts for text, vision and audio."""
    parts = (config, *(getattr(config, f"{p}_config", None) for p in ("text", "vision", "audio")))
    values = (getattr(part, name, None) for part in parts if part is not None)
    return next((value for value in values if value is not None), default)


def _shape(name: str, config: Any) -> tuple[int, ...]:
    """The shape of an example input; empty if it is not known."""
    if name in ("input_ids", "decoder_input_ids"):
        positions = int(_of(config, "max_position_embeddings", _LENGTH))
        if name == "decoder_input_ids":
            positions = int(_of(config, "max_target_positions", positions))
        return 1, min(_LENGTH, max(positions - 2, 1))
    if name == "pixel_values":
        size = _of(config, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        frames = getattr(config, "num_frames", None)
        image = (int(_of(config, "num_channels", 3)), int(height), int(width))
        return (1, int(frames), *image) if frames else (1, *image)
    bins = _of(config, "num_mel_bins", None)
    if name == "input_features" and bins:
        return 1, int(bins), 2 * int(_of(config, "max_source_positions", 1500))
    if name == "input_values":
        return (1, int(_of(config, "max_length", 1024)), int(bins)) if bins else (1, _SAMPLES)
    return ()
