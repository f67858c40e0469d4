"""Models of transformers: a directory with ``config.json``, or a model type with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.models import adapters, directories
from tlmd.models.directories import is_directory, listed
from tlmd.models.example_inputs import with_example
from tlmd.models.sources import first_line

__all__ = ["is_directory", "load_directory", "random_model", "weights_note"]
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
_LARGEST = 8e9  # bytes of random weights that are made without asking


def weights_note(spec: ModelSpec) -> str:
    """Why the weights of a model are random; empty if they are not. It reads no weights."""
    if spec.name.startswith("hf:") and not spec.weights:
        return "hf: names a type of model, which has none"
    if not is_directory(spec.name):
        return ""
    if spec.random_weights:
        return "--random-weights asks for it"
    held = directories.has_weights(Path(spec.name).expanduser())
    return "" if held else "the directory holds none"


def load_directory(
    path: Path,
    task: str = "",
    random_weights: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Any, Any]:
    """The model of a directory and its example inputs. Raises `BadInput`.

    Its weights are those of its .safetensors files, with an adapter merged into them. They are
    random if the directory holds a configuration only, or if `random_weights` asks for it. `task`
    is a name such as ``text-classification``; it is needed if the configuration names no
    architecture. `tell` is called with each note for the user.
    """
    adapter = {} if random_weights else adapters.read(path)
    base = adapters.base_of(path, adapter) if adapter else path
    config = _configuration(base)
    kind = _class(base, config, task or adapters.task_of(adapter))
    try:
        if random_weights or not directories.has_weights(base):
            return with_example(_random(kind, config))
        module, missing = _with_weights(kind, base, config, tell)
        if adapter:
            missing -= adapters.merge(module, path, adapter)
        if missing:
            raise BadInput(
                f"the weights in {base} lack {listed(missing)} of {type(module).__name__}; add "
                "them, give another --task, or ask for random weights with --random-weights"
            )
        return with_example(module)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"transformers cannot load {path} ({first_line(error)}); check its files"
        ) from error


def _configuration(path: Path) -> Any:
    import transformers

    file = path / directories.CONFIG
    document = directories.read_json(file)
    try:
        if file.read_bytes()[:1] == b"{":
            options = {"local_files_only": True, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(str(path), **options)
        else:  # a byte order mark or spaces, which transformers does not read
            kind = type(transformers.AutoConfig.for_model(document["model_type"]))
            config = kind.from_dict(document)
    except Exception as error:
        raise BadInput(f"{file} cannot be used ({first_line(error)}); correct it") from error
    return config


def _class(path: Path, config: Any, task: str) -> Any:
    """The class of transformers that makes the model. Raises `BadInput`."""
    import transformers

    if task:
        return _auto_class(task)
    architecture = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, str(architecture), None)
    if kind is None:
        raise BadInput(
            f"{path / directories.CONFIG} names no known architecture; give --task, one of "
            + ", ".join(_AUTO_CLASSES)
        )
    return kind


def _with_weights(
    kind: Any, path: Path, config: Any, tell: Callable[[str], None]
) -> tuple[Any, set[str]]:
    """The model with the weights of a directory, and the names of those that are missing.

    Raises `BadInput` if one has another shape than the model's.
    """
    options = directories.loading_options(path)
    # With `ignore_mismatched_sizes`, transformers says which of them have another shape.
    with adapters.set_aside(path) as folder:
        module, found = kind.from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    for name, given, wanted in sorted(found["mismatched_keys"]):
        raise BadInput(
            f"{name} has shape {tuple(given)} in the weights of {path} and {tuple(wanted)} in "
            f"{type(module).__name__} of its config.json; correct one of them"
        )
    missing = set(found["missing_keys"])
    if unexpected := found["unexpected_keys"]:
        # As many checkpoints that are published: the head of another task, for example.
        tell(f"{type(module).__name__} does not use {listed(unexpected)} in the weights of {path}")
    return module, missing


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
        return with_example(_random(transformers.AutoModel, config))
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
