"""A tuned model in parts, of which PyTorch or ONNX Runtime runs some: writing and loading."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tlmd.data.errors import BadInput, Failed
from tlmd.export.library import CPU, Entry, library_entry, load_library
from tlmd.models.parts.flow import FlowRunner, Program
from tlmd.models.pytorch.tensors import as_array, as_tensor, is_torch, to_numpy, to_torch
from tlmd.models.sources import InputInfo, SourceModel, numpy_dtype

if TYPE_CHECKING:  # it loads TVM's compiler, which who loads a model does not need
    from tlmd.lowering.preparation import PreparedModel

_STATE = "state"


def save(model: PreparedModel, libraries: Sequence[Path], folder: Path, number: int) -> Entry:
    """Write the parts that the framework runs; the entry of the model with these libraries.

    `number` is that of its set of input shapes. Raises `Failed`.
    """
    if model.is_whole:
        return library_entry(libraries[0].name, model.source.inputs)
    flow, files = model.flow, iter(libraries)
    parts = []
    try:
        for place, part in enumerate(flow.parts, 1):
            if isinstance(part.program, SourceModel):
                entry = {"kind": "library"} | library_entry(next(files).name, part.program.inputs)
            else:
                entry = part.program.save(folder, f"part-{number}-{place}")
            parts.append({"takes": part.takes, "gives": part.gives} | entry)
        state = _save_state(flow.state, folder, f"{_STATE}-{number}.safetensors")
    except OSError as error:
        raise Failed(f"cannot write to {folder}: {error.strerror or error}") from error
    return {
        "inputs": [[i.name, list(i.shape), i.dtype] for i in model.source.inputs],
        "parts": parts,
        "results": flow.results,
        _STATE: state,
        "writes": flow.writes,
    }


def _save_state(state: Sequence[np.ndarray], folder: Path, name: str) -> str:
    """Write the first values of the state; the name of the file, empty if there is none."""
    if not state:
        return ""
    from safetensors.torch import save_file

    save_file({str(place): to_torch(value) for place, value in enumerate(state)}, folder / name)
    return name


def with_libraries(entry: Entry, libraries: Sequence[Path], folder: Path) -> Entry:
    """The entry with other libraries; its other files are in `folder`. All paths are absolute."""
    if "parts" not in entry:
        return entry | {"file": str(libraries[0].absolute())}
    files, parts = iter(libraries), []
    for part in entry["parts"]:
        names = {key: folder / part[key] for key in ("file", "weights") if key in part}
        if part["kind"] == "library":
            names["file"] = next(files)
        parts.append(part | {key: str(path.absolute()) for key, path in names.items()})
    state = str((folder / entry[_STATE]).absolute()) if entry[_STATE] else ""
    return entry | {"parts": parts, _STATE: state}


class ModelInParts:
    """Runs a model in parts for fixed shapes: flat lists of tensors in and out. Thread-safe."""

    def __init__(self, run: FlowRunner, inputs: tuple[InputInfo, ...]) -> None:
        self.inputs = inputs
        self._run = run
        self._lock = threading.Lock()

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run it. Outputs are torch tensors if an input was one, else numpy arrays."""
        pairs = zip(tensors, self.inputs, strict=True)
        values = [_fitting(value, info) for value, info in pairs]
        with self._lock:
            outputs = self._run(values)
        if any(map(is_torch, tensors)):
            return list(map(as_tensor, outputs))
        return list(map(as_array, outputs))


def load(entry: Entry, folder: Path, device: str, threads: int) -> ModelInParts:
    """The model of an entry whose files are in `folder`. Raises `BadInput`."""
    parts = entry["parts"]
    infos = tuple(InputInfo(n, tuple(s), dtype) for n, s, dtype in entry["inputs"])
    state = []
    if entry[_STATE]:
        from safetensors.torch import load_file

        saved = load_file(folder / entry[_STATE])
        state = [saved[str(place)] for place in range(len(saved))]
    run = FlowRunner(
        [(part["takes"], part["gives"]) for part in parts],
        [_program(part, folder, device, threads) for part in parts],
        entry["results"],
        state,
        [(place, number) for place, number in entry["writes"]],
    )
    return ModelInParts(run, infos)


def _program(part: Entry, folder: Path, device: str, threads: int) -> Program:
    kind = part["kind"]
    if kind == "library":
        return load_library(part, folder, device)
    if kind == "torch":
        from tlmd.models.parts import torch_program

        return torch_program.load(part, folder)
    if kind == "onnx":
        from tlmd.models.parts import onnx_program

        return onnx_program.load(part, folder, threads)
    if kind == "original":
        from tlmd.models.parts import original_program

        return original_program.load(part)
    raise BadInput(f"a part of the model is of the kind {kind!r}, which this tlmd does not know")


def _fitting(value: Any, info: InputInfo) -> Any:
    """An input in the dtype of the model. Raises `TypeError` for one that cannot be that."""
    if is_torch(value):
        value = value.detach().to(CPU)
        if str(value.dtype).removeprefix("torch.") == info.dtype:
            return value
        value = to_numpy(value)
    if isinstance(value, list):  # a sequence of ONNX
        return value
    array, wanted = np.asarray(value), numpy_dtype(info.dtype)
    if array.dtype == wanted or wanted.kind == "O":
        return array
    if not np.can_cast(array.dtype, wanted):
        raise TypeError(f"{info.name} must have dtype {info.dtype}, not {array.dtype.name}")
    return array.astype(wanted)
