"""Models that TVM cannot compile as a whole: parts of it do, and the rest stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import models_in_parts
from tlmd.data.errors import BadInput, NotImportable
from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance
from tlmd.models.parts.torch_graph import TorchGraph
from tlmd.models.pytorch import operators
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
    import onnx

    path = models_in_parts.onnx_file("custom", tmp_path)
    model = onnx.load(path)
    for node in model.graph.node:
        node.op_type = node.op_type.replace("CDist", "NobodyHasIt")
    onnx.save(model, path)
    with pytest.raises(BadInput, match="ONNX Runtime cannot run") as caught:
        accepted(str(path))
    assert len(str(caught.value).splitlines()) == 1


def test_the_state_is_not_changed_by_looking() -> None:
    model, example = models_in_parts.counting()
    from tlmd.models.pytorch import torch_frontend

    flat = torch_frontend.flattened("counting", model, example)
    with pytest.raises(NotImportable, match="changes its buffer"):
        flat.imported()
    graph = TorchGraph(flat)
    assert len(graph.state) == len(graph.writes) == 1
    assert isinstance(graph.source(range(len(graph.takes))), SourceModel)
    assert torch.equal(torch.as_tensor(model.count), torch.zeros(32))
