"""A part that ONNX Runtime runs: a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import BadInput
from tlmd.models.onnx import onnx_runtime
from tlmd.models.parts.flow import Program
from tlmd.models.pytorch.tensors import as_array

if TYPE_CHECKING:
    import onnx

KIND = "onnx"
_LARGEST = 1_800_000_000  # bytes of weights in one file, which protobuf limits


class OnnxProgram:
    """A model of ONNX that takes and returns flat lists of values: arrays, or lists of them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._run: Program | None = None

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run it. Torch tensors become arrays."""
        if self._run is None:
            self._run = _runner(onnx_runtime.session(self._model.SerializeToString()))
        return list(self._run(values))

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write the model, and its weights beside it if they are too large for one file."""
        import onnx

        path, large = folder / f"{name}.onnx", self._model.ByteSize() > _LARGEST
        for file in (path, folder / f"{name}.weights"):
            file.unlink(missing_ok=True)  # ONNX would append to the weights
        onnx.save_model(
            self._model, str(path), save_as_external_data=large, location=f"{name}.weights"
        )
        return {"kind": KIND, "file": path.name}


def load(document: Mapping[str, Any], folder: Path, threads: int) -> Program:
    """The program of `save`, on `threads` cores. Raises `BadInput`."""
    path = folder / document["file"]
    if not onnx_runtime.is_installed():
        raise BadInput(f"{path.name} runs in ONNX Runtime; pip install 'tlmd[onnx]'")
    try:
        return _runner(onnx_runtime.session(str(path), threads))
    except Exception as error:
        raise BadInput(f"cannot load {path} ({error}); tune the model again"[:300]) from error


def _runner(session: Any) -> Program:
    names = [value.name for value in session.get_inputs()]

    def run(values: Sequence[Any]) -> list[Any]:
        arrays = map(as_array, values)
        return list(session.run(None, dict(zip(names, arrays, strict=True))))

    return run
