"""Models that TVM cannot compile as a whole: parts of it do, and the rest stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.support import models_in_parts
from tests.support.onnx_models import node, onnx_model
from tlmd.data.errors import BadInput, NotImportable
from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance, trial_inputs
from tlmd.models.parts.flow import runner
from tlmd.models.parts.onnx_program import OnnxProgram
from tlmd.models.parts.torch_graph import TorchGraph
from tlmd.models.pytorch import operators, torch_frontend
from tlmd.models.sources import SourceModel
from tlmd.space.hardware import target as targets

HERE = "tests.support.models_in_parts"
DIFFICULT = "tests.support.difficult_models"


def accepted(name: str) -> acceptance.Accepted:
    return acceptance.accept(ModelSpec(name), targets.resolve("native", 1))


def kinds(found: acceptance.Accepted) -> list[str]:
    return [type(part.program).__name__ for part in found.models[0].flow.parts]


@pytest.mark.parametrize(
    ("factory", "parts", "stays"),
    [
        ("fourier", ["SourceModel", "TorchProgram", "SourceModel"], "aten._fft_r2c"),
        ("drawing", ["SourceModel", "TorchProgram", "SourceModel"], "aten.rand_like"),
        ("selecting", ["SourceModel", "TorchProgram"], "aten.index"),
        ("counting", ["SourceModel"], ""),
        ("writing", ["SourceModel"], ""),
        ("branching", ["OriginalProgram"], ""),
    ],
)
def test_what_tvm_cannot_compile_stays_in_pytorch(
    factory: str, parts: list[str], stays: str
) -> None:
    found = accepted(f"{HERE}:{factory}")
    assert kinds(found) == parts
    assert found.error is not None and found.error < 1e-5
    flow = found.models[0].flow
    assert any(name.startswith(stays) for name in flow.stays) or not stays
    assert bool(found.tasks) == ("SourceModel" in parts)
    assert len(found.notes) == 1 and len(found.notes[0].splitlines()) == 1
    if "SourceModel" in parts:
        assert flow.tuned_share > 0.9 and "% of the arithmetic is tuned" in found.notes[0]


@pytest.mark.parametrize("kind", models_in_parts.ONNX)
def test_what_tvm_cannot_compile_stays_in_onnx_runtime(kind: str, tmp_path: Path) -> None:
    found = accepted(str(models_in_parts.onnx_file(kind, tmp_path)))
    assert kinds(found)[:2] == ["SourceModel", "OnnxProgram"] and found.tasks
    if kind == "random":
        assert found.error is None and not found.models[0].flow.repeatable
    else:
        assert found.error is not None and found.error < 1e-5
    assert "left to ONNX Runtime: " in found.notes[0]


def test_a_model_whose_export_is_another_one_stays_as_it_is() -> None:
    found = accepted(f"{DIFFICULT}:wrong_when_compiled")
    assert kinds(found) == ["OriginalProgram"] and found.error == 0.0 and not found.tasks
    assert "all of it stays in PyTorch" in found.notes[0]


def test_an_operator_that_is_imported_wrongly_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrongly(node: Any, importer: Any) -> Any:
        return importer.env[node.args[0]]

    right = operators.converters

    def converters() -> Any:
        return right() | {"sin.default": wrongly}

    monkeypatch.setattr("tlmd.models.pytorch.importer.converters", converters)
    monkeypatch.setattr("tlmd.models.parts.torch_graph.converters", converters)
    found = accepted(f"{HERE}:normed")
    assert found.error is not None and found.error < 1e-5
    flow = found.models[0].flow
    assert [name.split(" ")[0] for name in flow.stays] == ["aten.sin"]
    assert flow.tuned_share > 0.9 and len(found.models[0].lowered) == 2


def test_what_nothing_can_run_is_refused(tmp_path: Path) -> None:
    path = models_in_parts.onnx_file("custom", tmp_path)
    model = onnx.load(path)
    for one in model.graph.node:
        one.op_type = one.op_type.replace("CDist", "NobodyHasIt")
    onnx.save(model, path)
    with pytest.raises(BadInput, match="ONNX Runtime cannot run") as caught:
        accepted(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_the_state_is_not_changed_by_looking() -> None:
    model, example = models_in_parts.counting()
    flat = torch_frontend.flattened("counting", model, example)
    with pytest.raises(NotImportable, match="changes its buffer"):
        flat.imported()
    graph = TorchGraph(flat, [[value.numpy() for value in example]])
    assert len(graph.state) == len(graph.writes) == 1
    assert isinstance(graph.source(range(len(graph.takes))), SourceModel)
    assert torch.equal(torch.as_tensor(model.count), torch.zeros(32))


def test_a_model_for_which_no_inputs_are_known_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "reshape.onnx"
    x, shape = np.ones((2, 6), np.float32), np.array([3, 4], np.int64)
    onnx.save(onnx_model(node("Reshape", "x s"), {"x": x, "s": shape}), path)
    found = accepted(str(path))
    assert kinds(found) == ["OnnxProgram"] and not found.models[0].can_be_run
    assert found.error is None and "outputs were not compared" in found.notes[0]


def test_an_attribute_that_the_importer_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "infinite.onnx"
    nodes = [node("IsInf", "x", "i", detect_negative=0), node("Where", "i x h", "y")]
    x = np.ones((2, 6), np.float32)
    onnx.save(onnx_model(nodes, {"x": x}, {"h": np.full((2, 6), 7, np.float32)}), path)
    found = accepted(str(path))
    assert found.error == 0.0 and found.models[0].flow.stays == ("IsInf",)
    (part,) = found.models[0].flow.parts
    assert isinstance(part.program, OnnxProgram)
    run = runner(found.models[0].flow, [part.program])
    x[0, :3] = [np.inf, -np.inf, np.nan]
    (y,) = run([x])
    assert np.array_equal(y[0], [np.inf, 7, 7, 7, 7, 7])


def test_masks_that_hide_all_are_tried() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = x.masked_fill(~mask, float("-inf"))
            return torch.softmax(hidden, -1).nan_to_num(0.0)

    example = (torch.randn(3, 8), torch.ones(3, 8, dtype=torch.bool))
    flat = torch_frontend.flattened("masked", Masked().eval(), example)
    sets, _ = trial_inputs.expected(flat.unimported())
    assert [bool(mask.any()) for (_, mask), _ in sets] == [True, False]
    assert not sets[1][1][0].any()


def test_operators_that_tvm_misreads_for_some_values_stay(tmp_path: Path) -> None:
    path = tmp_path / "boxes.onnx"
    corners = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    inputs = {
        "b": corners,
        "s": np.array([[[0.9, 0.75, 0.6]]], np.float32),
        "k": np.array([3], np.int64),
        "i": np.array([0.5], np.float32),
        "t": np.array([0.0], np.float32),
    }
    onnx.save(onnx_model(node("NonMaxSuppression", "b s k i t"), inputs), path)
    found = accepted(str(path))
    assert kinds(found) == ["OnnxProgram"] and "NonMaxSuppression" in found.notes[-1]
