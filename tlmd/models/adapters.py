"""Adapters of peft (LoRA) beside a model of transformers, merged into its weights.

An adapter adds ``scale * B @ A`` to a weight. The sum is a weight as any other, so the model that
is tuned has no trace of the adapter, and its outputs are those of the model with it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import BadInput
from tlmd.models.directories import ADAPTER, CONFIG, has_weights, listed, read_json, weight_files
from tlmd.models.sources import first_line

if TYPE_CHECKING:
    from torch import Tensor

_ADVICE = "merge it with peft (`merge_and_unload`) and save the whole model"
_FILE = "adapter_model.safetensors"
_FACTOR = re.compile(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.default)?(?:\.weight)?")
# What an adapter was trained for, as a task of tlmd, where its head is its own.
_TASKS = {
    "FEATURE_EXTRACTION": "feature-extraction",
    "QUESTION_ANS": "question-answering",
    "SEQ_CLS": "text-classification",
    "TOKEN_CLS": "token-classification",
}


def read(path: Path) -> dict[str, Any]:
    """The description of the adapter in a directory; empty if there is none.

    Raises `BadInput` if it cannot be merged.
    """
    if not (path / ADAPTER).is_file():
        return {}
    adapter = read_json(path / ADAPTER)
    kind = adapter.get("peft_type") if isinstance(adapter, dict) else None
    if kind != "LORA" or adapter.get("use_dora"):
        name = "DORA" if kind == "LORA" else kind
        raise BadInput(f"{path / ADAPTER} describes an adapter of type {name}; {_ADVICE}")
    if not (path / _FILE).is_file():
        raise BadInput(f"{path} has an adapter without {_FILE}; add it, or {_ADVICE}")
    return dict(adapter)


def base_of(path: Path, adapter: dict[str, Any]) -> Path:
    """The directory of the model that an adapter belongs to. Raises `BadInput`."""
    own = [file for file in weight_files(path) if not file.name.startswith("adapter_")]
    if (path / CONFIG).is_file() and any(file.name.startswith("model") for file in own):
        return path
    name = str(adapter.get("base_model_name_or_path") or "")
    for folder in (path / name, Path(name).expanduser()):
        if name and (folder / CONFIG).is_file() and has_weights(folder) and folder != path:
            return folder
    raise BadInput(
        f"{path} is an adapter of {name or 'a model without a name'}, which is no directory here; "
        f"write its directory as base_model_name_or_path into {ADAPTER}, or {_ADVICE}"
    )


@contextmanager
def set_aside(path: Path) -> Iterator[Path]:
    """A directory with the files of `path` without its adapter, while they are loaded.

    Where peft is installed, transformers would add the adapter by itself, in its own layers.
    """
    if not (path / ADAPTER).is_file():
        yield path
        return
    with tempfile.TemporaryDirectory() as name:
        for file in path.absolute().iterdir():
            if not file.name.startswith("adapter_"):
                (Path(name) / file.name).symlink_to(file)
        yield Path(name)


def task_of(adapter: dict[str, Any]) -> str:
    """The task that an adapter was trained for; empty if its base has that task already."""
    return _TASKS.get(str(adapter.get("task_type")), "")


def merge(module: Any, path: Path, adapter: dict[str, Any]) -> set[str]:
    """Add an adapter to the weights of `module`; return the names of those that it replaced.

    Raises `BadInput` if it does not fit.
    """
    import safetensors.torch
    import torch

    try:
        tensors = safetensors.torch.load_file(str(path / _FILE))
    except Exception as error:
        reason = first_line(error)
        raise BadInput(f"{path / _FILE} cannot be read ({reason}); copy it again") from error
    factors: dict[str, dict[str, Tensor]] = {}
    replaced = {}
    for key, value in tensors.items():
        name = key.removeprefix("base_model.model.")
        if match := _FACTOR.fullmatch(name):
            factors.setdefault(match[1], {})[match[2]] = value
        else:
            replaced[re.sub(r"\.(modules_to_save(\.default)?|base_layer)\b", "", name)] = value
    weights = dict(module.named_parameters(remove_duplicate=False))
    wanted = {*replaced, *(f"{name}.weight" for name in factors)}
    if strange := wanted - weights.keys():
        raise BadInput(
            f"the adapter in {path} changes {listed(strange)}, which the model lacks; {_ADVICE}"
        )
    with torch.no_grad():
        for name, value in replaced.items():
            _check_shape(path, name, value, weights[name])
            weights[name].copy_(value)
        for name, pair in factors.items():
            if pair.keys() != {"A", "B"}:
                raise BadInput(f"the adapter in {path} has one factor only of {name}; {_ADVICE}")
            _add(path, name, module, adapter, pair["A"], pair["B"])
    return set(replaced)


def _add(path: Path, name: str, module: Any, adapter: dict[str, Any], a: Tensor, b: Tensor) -> None:
    part = module.get_submodule(name)
    weight: Tensor = part.weight
    # In float32, because 16 bits would round the sum twice.
    change = b.float().flatten(1) @ a.float().flatten(1)
    if type(part).__name__ in ("Conv1D", "Embedding"):  # both have the inputs first
        change = change.T
    elif weight.dim() > 2:
        change = change.reshape(weight.shape) if change.numel() == weight.numel() else change
    _check_shape(path, name, change, weight)
    weight.copy_(weight.float() + _scale(name, adapter, len(a)) * change)


def _scale(name: str, adapter: dict[str, Any], rank: int) -> float:
    """The factor of one product, as peft has it."""
    alpha = float(adapter.get("lora_alpha", rank))
    for pattern, other in (adapter.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", name):
            alpha = float(other)
            break
    return alpha / (rank**0.5 if adapter.get("use_rslora") else rank)


def _check_shape(path: Path, name: str, given: Tensor, weight: Tensor) -> None:
    if given.shape != weight.shape:
        raise BadInput(
            f"the adapter in {path} has shape {tuple(given.shape)} for {name}, whose shape is "
            f"{tuple(weight.shape)}; it belongs to another model, correct base_model_name_or_path"
        )
