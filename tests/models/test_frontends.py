"""Loading models: each kind once, and one clear line for each kind of mistake."""

from __future__ import annotations

import builtins
import importlib.util
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec, Shapes
from tlmd.lowering import acceptance
from tlmd.models.frontends import load_model
from tlmd.models.sources import SourceModel
from tlmd.space.hardware import target as targets


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x) + self.offset)


def factory() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Small().eval(), (torch.randn(2, 8),)


def broken() -> None:
    raise RuntimeError("no weights\nsecond line")


def wrong_shape() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Small(), (torch.randn(2, 9),)


def no_module() -> tuple[int, tuple[()]]:
    return 3, ()


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.special.bessel_j0(x)


def unsupported() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Unsupported(), (torch.randn(4),)


def save_onnx(path: Path, dims: tuple[int | str, int] = (2, 8), op: str = "Relu") -> str:
    weight = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node(op, ["y"], ["z"])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [dims[0], 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


def save_quantised_onnx(path: Path) -> str:
    """A product between QuantizeLinear and DequantizeLinear, with its weights in another file."""
    weight = np.random.default_rng(0).integers(-90, 90, (8, 4)).astype("int8")
    constants = {
        "w": weight,
        "scale": np.float32(0.02),
        "zero": np.int8(0),
        "y_scale": np.float32(0.1),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "y_scale", "zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "y_scale", "zero"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, (2, 4))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(
        model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=16
    )
    return str(path)


def save_hard_onnx(path: Path) -> str:
    """A reshape to a computed shape, an `Expand` to a smaller one, and an operator TVM lacks."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["new"], axis=0),
        helper.make_node("Reshape", ["x", "new"], ["r"]),
        helper.make_node("Expand", ["r", "one"], ["e"]),
        helper.make_node("CenterCropPad", ["e", "crop"], ["z"], axes=[2]),
    ]
    constants = {"zero": [0], "rest": [2, -1], "one": [1], "crop": [3]}
    graph = helper.make_graph(
        nodes,
        "hard",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 8))],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ("n", 2, 3))],
        [numpy_helper.from_array(np.asarray(v, np.int64), n) for n, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(path))
    return str(path)


def save_pt2(path: Path, dynamic: Any = None) -> str:
    module, example = factory()
    program = torch.export.export(module, example, strict=False, dynamic_shapes=dynamic)
    torch.export.save(program, str(path))
    return str(path)


def message(spec: str, shapes: Shapes | None = None) -> str:
    with pytest.raises(BadInput) as error:
        load_model(spec, shapes)
    text = str(error.value)
    assert "\n" not in text and len(text) < 400
    return text


def check(model: SourceModel, shape: tuple[int, ...]) -> np.ndarray:
    (info,) = model.inputs
    assert (info.shape, info.dtype) == (shape, "float32")
    (value,) = model.random_inputs(0)
    assert value.shape == shape
    assert model.reference is not None
    (output,) = model.reference(value)
    assert output.shape == (shape[0], 4)
    return output


def test_onnx(tmp_path: Path) -> None:
    check(load_model(save_onnx(tmp_path / "small.onnx")), (2, 8))


def test_onnx_with_open_dimension(tmp_path: Path) -> None:
    path = save_onnx(tmp_path / "open.onnx", dims=("batch", 8))
    check(load_model(path, ((3, 8),)), (3, 8))
    assert "batch" in message(path)
    assert "--input-shape" in message(path)
    assert "3,9 does not fit input x" in message(path, ((3, 9),))
    assert "1 input but 2 shapes" in message(path, ((3, 8), (3, 8)))


def test_onnx_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in message(str(tmp_path / "none.onnx"))
    corrupt = tmp_path / "corrupt.onnx"
    corrupt.write_bytes(b"\x00\x01garbage" * 10)
    assert "not a valid ONNX model" in message(str(corrupt))
    path = save_onnx(tmp_path / "odd.onnx", op="Det")
    assert "Det" in message(path)

    found = importlib.util.find_spec
    hidden = lambda name, *args: None if name == "onnx" else found(name, *args)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert "pip install 'tlmd[onnx]'" in message(path)


def test_a_quantised_onnx_file_with_external_weights(tmp_path: Path) -> None:
    path = save_quantised_onnx(tmp_path / "quantised.onnx")
    assert (tmp_path / "weights.bin").stat().st_size >= 32
    target = targets.resolve("native", 1)
    accepted = acceptance.accept(ModelSpec(path), target)
    assert accepted.error is not None and accepted.error < 1e-5 and not accepted.notes
    (tmp_path / "weights.bin").unlink()
    assert "is not a valid ONNX model" in message(path)


def test_one_model_in_several_sets_of_shapes(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    path = save_pt2(tmp_path / "open.pt2", dynamic=({0: batch},))
    spec = ModelSpec(path, ((5, 8), (3, 8), (5, 8)))
    accepted = acceptance.accept(spec, targets.resolve("native", 1))
    assert [m.spec.input_shapes for m in accepted.models] == [((5, 8),), ((3, 8),)]
    assert accepted.error is not None and accepted.error < 1e-5
    ids = [task.id for task in accepted.tasks]
    assert len(ids) == len(set(ids)) > len(accepted.models[0].lowered[0].tasks)
    calls = [sum(task.weight for task in m.lowered[0].tasks) for m in accepted.models]
    assert sum(task.weight for task in accepted.tasks) == sum(calls)


def test_shapes_that_are_computed_and_operators_that_tvm_lacks(tmp_path: Path) -> None:
    path = save_hard_onnx(tmp_path / "hard.onnx")
    accepted = acceptance.accept(ModelSpec(path, ((3, 8),)), targets.resolve("native", 1))
    assert accepted.error == 0 and not accepted.notes


def test_pt2(tmp_path: Path) -> None:
    output = check(load_model(save_pt2(tmp_path / "small.pt2")), (2, 8))
    assert (output >= 0).all()


def test_pt2_with_dynamic_batch(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    path = save_pt2(tmp_path / "open.pt2", dynamic=({0: batch},))
    check(load_model(path, ((5, 8),)), (5, 8))
    check(load_model(path), (2, 8))  # the size of its example


def test_pt2_mistakes(tmp_path: Path) -> None:
    path = save_pt2(tmp_path / "small.pt2")
    assert "2 shapes were given" in message(path, ((2, 8), (2, 8)))
    assert "cannot run on inputs 2,9" in message(path, ((2, 9),))

    damaged = tmp_path / "damaged.pt2"
    damaged.write_bytes((tmp_path / "small.pt2").read_bytes()[:700])
    assert "corrupt" in message(str(damaged))

    other = tmp_path / "other.pt2"
    torch.save({"a": 1}, other)
    assert "not an archive of torch.export" in message(str(other))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return builtins.exec, ("import tests_workloads_bomb_went_off",)


@pytest.mark.parametrize("where", ["data/constants/opaque_obj_0", "data/sample_inputs/model.pt"])
def test_pt2_never_unpickles(tmp_path: Path, where: str) -> None:
    buffer = io.BytesIO()
    torch.save(Bomb(), buffer) if where.endswith(".pt") else buffer.write(pickle.dumps(Bomb()))
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(save_pt2(tmp_path / "small.pt2")) as source:
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_STORED) as target:
            for name in source.namelist():
                if not name.endswith(where):
                    target.writestr(name, source.read(name))
            target.writestr(f"small/{where}", buffer.getvalue())
    assert "is not loaded" in message(str(bomb))


def test_factory() -> None:
    check(load_model(f"{__name__}:factory"), (2, 8))
    check(load_model(f"{__name__}:factory", ((5, 8),)), (5, 8))


def test_factory_mistakes() -> None:
    assert "cannot import no_such_module" in message("no_such_module:make")
    assert "cannot import" in message(f"{__name__}:missing")
    assert "no weights" in message(f"{__name__}:broken")
    assert "cannot run on inputs 2,9" in message(f"{__name__}:wrong_shape")
    assert "must return (module, example inputs)" in message(f"{__name__}:no_module")
    assert "bessel_j0" in message(f"{__name__}:unsupported")


def test_zoo_mistakes() -> None:
    assert "did you mean 'resnet50'" in message("resnet_50")
    assert "`tlmd zoo`" in message("qqqqqqqq")
    assert "1,100,1,1 does not fit resnet18" in message("resnet18", ((1, 100, 1, 1),))
    assert "1 input but 2 shapes" in message("resnet18", ((1, 3, 8, 8), (1,)))
    assert "must end in .onnx or .pt2" in message("models/net.pth")


@pytest.mark.slow
def test_integer_inputs_are_valid_indices() -> None:
    model = load_model("bert-tiny", ((1, 16),))
    (ids,) = model.random_inputs(3)
    assert ids.dtype == np.int64 and ids.min() >= 0 and ids.max() < 30522
    assert np.array_equal(ids, model.random_inputs(3)[0])
    assert model.reference is not None
    assert model.reference(ids)[0].shape == (1, 16, 128)


def test_zoo_weights_are_always_the_same() -> None:
    before = torch.random.get_rng_state()
    first = load_model("gemm", ((2, 16),))
    assert torch.equal(before, torch.random.get_rng_state())
    second = load_model("gemm", ((2, 16),))
    inputs = first.random_inputs(0)
    assert first.reference is not None and second.reference is not None
    assert np.array_equal(first.reference(*inputs)[0], second.reference(*inputs)[0])
