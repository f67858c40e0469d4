"""Models of transformers: a directory with ``config.json``, or a model type with random weights."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.models.sources import first_line

_AUTO_CLASSES = {
    "audio-classification": "AutoModelForAudioClassification",
    "automatic-speech-recognition": "AutoModelForSpeechSeq2Seq",
    "ctc": "AutoModelForCTC",
    "depth-estimation": "AutoModelForDepthEstimation",
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "image-classification": "AutoModelForImageClassification",
    "image-segmentation": "AutoModelForSemanticSegmentation",
    "object-detection": "AutoModelForObjectDetection",
    "question-answering": "AutoModelForQuestionAnswering",
    "summarization": "AutoModelForSeq2SeqLM",
    "text-classification": "AutoModelForSequenceClassification",
    "text-generation": "AutoModelForCausalLM",
    "token-classification": "AutoModelForTokenClassification",
    "translation": "AutoModelForSeq2SeqLM",
    "zero-shot-image-classification": "AutoModelForZeroShotImageClassification",
}
_LENGTH = 128  # tokens of an example
_SAMPLES = 16000  # one second of audio
_LARGEST = 8e9  # bytes of random weights that are made without asking


def is_directory(name: str) -> bool:
    """Whether `name` is a directory with a configuration of transformers."""
    return (Path(name).expanduser() / "config.json").is_file()


def load_directory(path: Path, task: str = "") -> tuple[Any, Any]:
    """The model of a directory and its example inputs. Raises `BadInput`.

    Its weights are those of its .safetensors files, or random if it has no weights. `task` is a
    name such as ``text-classification``; it is needed if the configuration names no architecture.
    """
    import transformers

    try:
        document = json.loads((path / "config.json").read_text())
        config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        reason = first_line(error)
        raise BadInput(f"{path / 'config.json'} cannot be used ({reason}); correct it") from error
    architecture = (document.get("architectures") or [""])[0]
    kind = _auto_class(task) if task else getattr(transformers, architecture, None)
    if kind is None:
        raise BadInput(
            f"{path / 'config.json'} names no known architecture; give --task, one of "
            + ", ".join(_AUTO_CLASSES)
        )
    weights = list(path.glob("*.safetensors"))
    others = [*path.glob("*.bin"), *path.glob("*.h5"), *path.glob("*.msgpack")]
    if others and not weights:
        raise BadInput(
            f"{path} has weights in {others[0].name} only, a format that can run code; "
            "convert them to .safetensors"
        )
    try:
        if weights:
            options = {"local_files_only": True, "use_safetensors": True}
            return _with_example(kind.from_pretrained(str(path), **options))
        return _with_example(_random(kind, config))
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"transformers cannot load {path} ({first_line(error)}); check its files"
        ) from error


def random_model(model_type: str) -> tuple[Any, Any]:
    """A model type of transformers, such as ``bert``, with random weights. Raises `BadInput`."""
    import transformers

    try:
        config = transformers.AutoConfig.for_model(model_type)
    except ValueError as error:
        raise BadInput(
            f"transformers {transformers.__version__} has no model type {model_type!r}; "
            "it is the model_type of a config.json"
        ) from error
    try:
        return _with_example(_random(transformers.AutoModel, config))
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"transformers cannot make hf:{model_type} ({first_line(error)}); "
            "write a config.json into a directory and give that"
        ) from error


def _auto_class(task: str) -> Any:
    import transformers

    if task not in _AUTO_CLASSES:
        raise BadInput(f"unknown --task {task!r}; use one of {', '.join(_AUTO_CLASSES)}")
    return getattr(transformers, _AUTO_CLASSES[task])


def _random(kind: Any, config: Any) -> Any:
    """The model with random weights. Refuses one that is too large to make by mistake."""
    import torch

    def make() -> Any:
        return kind.from_config(config) if hasattr(kind, "from_config") else kind(config)

    with torch.device("meta"):
        size = sum(p.numel() * p.element_size() for p in make().parameters())
    if size > _LARGEST:
        raise BadInput(
            f"{config.model_type} in its default configuration has {size / 1e9:.0f} GB of weights; "
            "write a smaller config.json into a directory and give that"
        )
    torch.manual_seed(0)
    return make()


def _with_example(module: Any) -> tuple[Any, dict[str, Any]]:
    """The module in evaluation mode and keyword inputs that its configuration allows."""
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
            example[name] = torch.randn(shape, generator=generator)
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
