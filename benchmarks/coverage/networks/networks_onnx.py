"""ONNX models: networks of the other lists, exported; and the backend tests of the package onnx.

Each is written into a folder: ``model.onnx``, and ``inputs.npz`` and ``outputs.npz`` with what goes
in and what must come out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage.networks import lists

EXPORTED: dict[str, tuple[str, str, int]] = {
    f"{name}-{opset}": (group, name, opset)
    for group, name, opset in (
        ("torchvision", "resnet18", 13),
        ("torchvision", "mobilenet_v3_small", 14),
        ("torchvision", "densenet_small", 15),
        ("torchvision", "shufflenet_v2_x0_5", 16),
        ("torchvision", "efficientnet_b0", 17),
        ("torchvision", "convnext_tiny", 18),
        ("torchvision", "vit_small", 17),
        ("torchvision", "swin_small", 17),
        ("torchvision", "r3d_18", 13),
        ("timm", "edgenext_xx_small", 16),
        ("timm", "mixer_s32_224", 18),
        ("timm", "pvt_v2_b0", 14),
        ("timm", "levit_128s", 13),
        ("timm", "sequencer2d_s", 14),
        ("transformers", "albert", 14),
        ("transformers", "distilbert", 17),
        ("transformers", "t5_encoder", 18),
        ("transformers", "segformer", 15),
        ("transformers", "clip_vision", 16),
        ("transformers", "wav2vec2", 18),
    )
}
"""Name -> group and name of the network, and the opset it is exported with."""

BACKEND_KINDS = {"onnx-simple": "simple", "onnx-node": "node"}
_NUMBERS = "fiub"  # kinds of numpy: floats, integers with and without a sign, booleans


@dataclass(frozen=True)
class BackendTest:
    """One test of the package onnx: a model with inputs and expected outputs."""

    name: str
    model: Any
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]


def backend_tests(group: str, seed: int = 0) -> list[BackendTest]:
    """The backend tests of a group whose values are tensors of numbers, sorted by name."""
    from onnx.backend.test.loader import load_model_tests

    np.random.seed(seed)  # the tests draw their inputs when they are loaded
    with warnings.catch_warnings(action="ignore"):
        loaded = load_model_tests(kind=BACKEND_KINDS[group])
    cases = sorted(loaded, key=lambda case: str(case.name))
    return [test for case in cases for test in _numeric(case)]


def _numeric(case: Any) -> Iterator[BackendTest]:
    """The test, if its model is at hand and all its values are tensors of numbers."""
    import onnx

    if case.model is not None:
        model, sets = case.model, case.data_sets
    else:
        model = onnx.load(str(Path(case.model_dir) / "model.onnx"))
        sets = [_read_set(folder) for folder in Path(case.model_dir).glob("test_data_set_0")]
    if not sets:
        return
    inputs, outputs = sets[0]
    values = [*inputs, *outputs]
    numeric = all(
        isinstance(v, np.generic | np.ndarray) and v.dtype.kind in _NUMBERS for v in values
    )
    if numeric:
        name = str(case.name).removeprefix("test_")
        yield BackendTest(
            name, model, list(map(np.asarray, inputs)), list(map(np.asarray, outputs))
        )


def _read_set(folder: Path) -> tuple[list[Any], list[Any]]:
    """Inputs and expected outputs of a folder; None for what is not a tensor."""
    import onnx

    def read(kind: str) -> list[Any]:
        count = len(list(folder.glob(f"{kind}_*.pb")))
        return [tensor(folder / f"{kind}_{index}.pb") for index in range(count)]

    def tensor(path: Path) -> Any:
        try:
            return onnx.numpy_helper.to_array(onnx.load_tensor(str(path)))
        except Exception:  # a sequence, an optional value or text
            return None

    return read("input"), read("output")


def write_test(test: BackendTest, folder: Path) -> None:
    """Write a backend test into `folder`."""
    import onnx

    onnx.save(test.model, str(folder / "model.onnx"))
    _write_values(folder, test.inputs, test.outputs)


def write_export(name: str, folder: Path) -> None:
    """Export a network of `EXPORTED` into `folder`, with its example and PyTorch's outputs."""
    import torch
    from torch.utils import _pytree

    group, network, opset = EXPORTED[name]
    module, example = lists.factory(lists.networks(group), network)()
    arguments, keywords = ((), example) if isinstance(example, dict) else (example, {})
    # The exporter lacks the operators of the fast path.
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        outputs = module(*arguments, **keywords)
        torch.onnx.export(
            module,
            arguments,
            str(folder / "model.onnx"),
            kwargs=keywords,
            opset_version=opset,
            dynamo=False,  # the newer exporter needs the package onnxscript
        )
    leaves = [v for v in _pytree.tree_leaves(outputs) if isinstance(v, torch.Tensor)]
    values = list(keywords.values()) if keywords else arguments
    _write_values(folder, [v.numpy() for v in values], [v.numpy() for v in leaves])


def _write_values(folder: Path, inputs: list[Any], outputs: list[Any]) -> None:
    np.savez(folder / "inputs.npz", *inputs)
    np.savez(folder / "outputs.npz", *outputs)


def read_values(folder: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The inputs and the expected outputs of a folder."""
    inputs, outputs = (np.load(folder / f"{name}.npz") for name in ("inputs", "outputs"))
    return ([inputs[key] for key in inputs.files], [outputs[key] for key in outputs.files])
