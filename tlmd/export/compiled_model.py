"""A tuned model as a function: `tlmd.load` returns one. It is called as the original model is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.export import model_in_parts
from tlmd.export.library import CPU, Entry, Library, load_library, use_threads
from tlmd.export.model_in_parts import ModelInParts
from tlmd.models import structure
from tlmd.models.call_structure import CallStructure
from tlmd.models.sources import InputInfo, SourceModel
from tlmd.models.structure import Node

_FILE = "model.json"
_SCHEMA, _IN_PARTS = 1, 2  # a model in parts is nothing that an older tlmd can load


def write(
    directory: Path, source: SourceModel, entries: Sequence[Entry], threads: int, device: str
) -> None:
    """Write ``model.json``: how the files of `directory` are called, and on which device."""
    document = {
        "schema": _IN_PARTS if any("parts" in entry for entry in entries) else _SCHEMA,
        "model": source.name,
        "device": device,
        "threads": threads,
        "libraries": list(entries),
        "call": source.call.to_json(),
        "outputs": source.outputs.to_json(),
    }
    (directory / _FILE).write_text(json.dumps(document, indent=1) + "\n")


class CompiledModel:
    """Takes numpy arrays or torch tensors as the original takes them, and returns its structure.

    Outputs are torch tensors if an input was one, else numpy arrays. Calls from several threads
    run one after the other.
    """

    def __init__(self, directory: Path) -> None:
        document = _read(directory)
        use_threads(document["threads"])
        device = document.get("device", CPU)
        self._call = CallStructure.from_json(document["call"])
        self._outputs = Node.from_json(document["outputs"])
        threads = document["threads"]
        self._libraries: list[Library | ModelInParts] = [
            model_in_parts.load(entry, directory, device, threads)
            if "parts" in entry
            else load_library(entry, directory, device)
            for entry in document["libraries"]
        ]

    @property
    def inputs(self) -> list[tuple[InputInfo, ...]]:
        """For each library, the inputs that it was compiled for."""
        return [library.inputs for library in self._libraries]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model. Raises `TypeError` and `ValueError` for inputs that do not fit."""
        tensors = self._call.bind(args, kwargs)
        library = self._library([tuple(getattr(t, "shape", ())) for t in tensors])
        return structure.rebuild(self._outputs, library(tensors))

    def _library(self, shapes: list[tuple[int, ...]]) -> Library | ModelInParts:
        """The library that was compiled for these shapes."""
        for library in self._libraries:
            if [info.shape for info in library.inputs] == shapes:
                return library
        names = [info.name for info in self.inputs[0]]
        given = ", ".join(f"{n} {s}" for n, s in zip(names, shapes, strict=True))
        compiled_for = " or ".join(
            ", ".join(f"{info.name} {info.shape}" for info in infos) for infos in self.inputs
        )
        raise ValueError(f"the model was compiled for {compiled_for}, not for {given}")


def _read(directory: Path) -> Mapping[str, Any]:
    try:
        document: Mapping[str, Any] = json.loads((directory / _FILE).read_text())
    except FileNotFoundError as error:
        raise BadInput(
            f"{directory} holds no tuned model ({_FILE} is missing); `tlmd tune --out` writes one"
        ) from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{directory / _FILE} is damaged; tune the model again") from error
    if document.get("schema") not in (_SCHEMA, _IN_PARTS):
        raise BadInput(f"{directory / _FILE} is of another version of tlmd; tune the model again")
    return document
