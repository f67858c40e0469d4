"""Damaged ONNX files and exported programs: refused in one line before anything is measured."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import damaged, few, one_line
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.lowering import acceptance
from tlmd.models import frontends
from tlmd.space.hardware import target as targets

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def onnx_file() -> bytes:
    """A matrix product, a bias and a relu."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    bias = numpy_helper.from_array(np.ones(3, np.float32), "b")
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], alpha=1.0),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [2, 4])]
    outputs = [info("z", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight, bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


@pytest.fixture(scope="module")
def pt2_file(folder: Path) -> bytes:
    import torch

    program = torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.ones(2, 4),))
    torch.export.save(program, folder / "whole.pt2")
    data = (folder / "whole.pt2").read_bytes()
    (folder / "whole.pt2").unlink()
    return data


def load(folder: Path, name: str, data: bytes, whole: bool) -> None:
    """What the process that holds the user's model does with a file, up to its tasks or to the end.

    Whatever else a library raises, `accept` says in one line.
    """
    path = folder / name
    path.write_bytes(data)
    spec = ModelSpec(str(path))
    try:
        if whole:
            acceptance.accept(spec, targets.resolve("native", 1))
        else:
            frontends.load_sets(spec)
    except BadInput:
        raise
    except Exception as error:
        assert not whole, error
        raise BadInput(f"{type(error).__name__}: {str(error)[:100].splitlines()[:1]}") from error
    finally:
        path.unlink()
        assert list(folder.iterdir()) == [], "nothing else is written"


@few(30)
@given(st.data())
def test_a_damaged_onnx_file(folder: Path, onnx_file: bytes, data: st.DataObject) -> None:
    new = data.draw(damaged(onnx_file))
    one_line(lambda: load(folder, "model.onnx", new, whole=False))


@few(4)
@given(st.data())
def test_a_damaged_onnx_file_is_never_accepted_with_another_error(
    folder: Path, onnx_file: bytes, data: st.DataObject
) -> None:
    new = data.draw(damaged(onnx_file))
    one_line(lambda: load(folder, "model.onnx", new, whole=True))


@few(12)
@given(st.data())
def test_a_damaged_exported_program(folder: Path, pt2_file: bytes, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        new = data.draw(damaged(pt2_file))
    else:  # an intact archive, one of whose members is damaged
        made = BytesIO()
        with zipfile.ZipFile(BytesIO(pt2_file)) as old, zipfile.ZipFile(made, "w") as archive:
            chosen = data.draw(st.sampled_from(old.namelist()))
            for name in old.namelist():
                content = old.read(name)
                archive.writestr(name, data.draw(damaged(content)) if name == chosen else content)
        new = made.getvalue()
    one_line(lambda: load(folder, "model.pt2", new, whole=False))
