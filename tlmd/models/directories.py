"""What a directory of transformers holds: a configuration, weights, other files.

A directory is taken as a configuration without weights only if it holds nothing that may be
weights. Otherwise a model whose weights cannot be read would be tuned with random ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.models.sources import first_line

CONFIG, ADAPTER = "config.json", "adapter_config.json"
_SAFE, _INDEX = "model.safetensors", "model.safetensors.index.json"

# Files beside the weights: configurations, tokenizers, texts.
_NO_WEIGHTS = {
    *("", ".json", ".jsonl", ".txt", ".model", ".md", ".jinja", ".py", ".tiktoken", ".spm", ".bpe"),
    *(".vocab", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".png", ".jpg", ".log"),
}
_CODE = {".bin", ".h5", ".msgpack", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
_WEIGHTS = {*_CODE, ".safetensors", ".gguf", ".ggml", ".npz", ".npy", ".onnx", ".tflite", ".pt2"}


def is_directory(name: str) -> bool:
    """Whether `name` is a directory with a configuration of transformers or of an adapter."""
    folder = Path(name).expanduser()
    return (folder / CONFIG).is_file() or (folder / ADAPTER).is_file()


def read_json(path: Path) -> Any:
    """The document in a file of JSON, with or without a byte order mark. Raises `BadInput`."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be used ({first_line(error)}); correct it") from error


def weight_files(path: Path) -> list[Path]:
    """The files of a directory that may be weights: in it, and in the folders in it."""
    found = []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            inside = (file for file in sorted(entry.iterdir()) if file.suffix in _WEIGHTS)
            found += [file for file in inside if not file.name.startswith(".")]
        elif ".index." in entry.name or entry.suffix not in _NO_WEIGHTS:
            found.append(entry)
    return found


def has_weights(path: Path) -> bool:
    """Whether a directory may hold weights, those of an adapter included."""
    return (path / ADAPTER).is_file() or bool(weight_files(path))


def loading_options(path: Path) -> dict[str, Any]:
    """The options by which transformers reads the weights of a directory.

    Raises `BadInput` if it holds none that tlmd reads, and if a part of them is not there.
    """
    names = {file.name for file in weight_files(path) if file.parent == path}
    if _SAFE in names:
        return {}
    if _INDEX in names:
        _check_shards(path, _INDEX)
        return {}
    variants = [n.split(".")[1] for n in names if n.startswith("model.") and n.count(".") == 2]
    for variant in variants:
        if f"model.{variant}.safetensors" in names and variants == [variant]:
            return {"variant": variant}
    raise BadInput(_unreadable(path))


def _check_shards(path: Path, index: str) -> None:
    """Raises `BadInput` if a file that an index names is not there."""
    named = read_json(path / index)
    shards = named.get("weight_map") if isinstance(named, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
        raise BadInput(f"{path / index} names no files of weights; correct it")
    if missing := sorted(s for s in set(shards.values()) if not (path / s).is_file()):
        raise BadInput(f"{path} lacks {listed(missing)}, which {index} names; add what is missing")


def _unreadable(path: Path) -> str:
    """Why the weights of a directory cannot be read, and what to do."""
    files = weight_files(path)
    safe = [f for f in files if f.suffix == ".safetensors" and not f.name.startswith("adapter_")]
    if any("-of-" in file.name for file in safe):
        return f"{path} has parts of weights without {_INDEX}; add that file"
    if safe:
        name = safe[0].relative_to(path)
        return f"{path} has its weights in {name}; tlmd looks for {_SAFE}, so rename or move them"
    asked = "convert them to .safetensors, or ask for random ones with --random-weights"
    if not files:
        return f"{path} has no weights; add {_SAFE}"
    known = [f for f in files if f.suffix in _WEIGHTS or ".index." in f.name]
    name = (known or files)[0].relative_to(path)
    if name.suffix in _CODE:
        return f"{path} has weights in {name} only, a format that can run code; {asked}"
    has = "has weights in" if known else "may have weights in"
    return f"{path} {has} {name} only, which tlmd does not read; {asked}"


def listed(names: Iterable[str]) -> str:
    """The first two names, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 2} more" if len(ordered) > 2 else ""
    return " and ".join(ordered[:2]) if not more else ", ".join(ordered[:2]) + more
