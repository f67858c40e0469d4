"""Open dimensions of ONNX files: what is proposed, and who takes it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlmd import cli
from tlmd.client.default_shapes import with_shapes
from tlmd.data.job_request import JobRequest
from tlmd.models.onnx import open_dimensions

onnx = pytest.importorskip("onnx")
FLOAT = onnx.TensorProto.FLOAT


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        (["batch_size", 3, "height", "width"], (1, 3, 224, 224)),
        (["N", "?", "?", "?"], (1, 3, 224, 224)),
        (["batch", "sequence_length"], (1, 128)),
        (["?", "?"], (1, 128)),
        ([1, 80, "time"], (1, 80, 128)),
        (["unk__0", 16], (1, 16)),
        ([4, 8], (4, 8)),
        ([], ()),
    ],
)
def test_numbers_follow_names_and_places(dims: list[int | str], shape: tuple[int, ...]) -> None:
    assert open_dimensions.proposed(dims) == shape


@given(st.lists(st.integers(0, 9) | st.text(max_size=12), max_size=6))
def test_every_open_dimension_gets_a_number(dims: list[int | str]) -> None:
    numbers = open_dimensions.proposed(dims)
    assert len(numbers) == len(dims)
    for dim, number in zip(dims, numbers, strict=True):
        assert number == dim if isinstance(dim, int) else number >= 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    helper = onnx.helper
    value = [helper.make_tensor_value_info(name, FLOAT, ["batch", 8]) for name in "xy"]
    node = helper.make_node("Softmax", ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", value[:1], value[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 10
    path = tmp_path / "open.onnx"
    onnx.save(model, str(path))
    return path


def test_without_a_terminal_the_proposal_is_in_the_error(
    file: Path, run: Callable[..., str]
) -> None:
    said = run("check", file)
    assert "input x has open dimensions (batch,8)" in said and "such as 1,8, or --yes" in said


def test_yes_takes_them(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "state")
    assert cli.main(["check", str(file), "--yes", "--json", "--state-dir", state]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["inputs"] == [["x", [1, 8], "float32"]]
    assert "get the shapes 1,8; --input-shape gives others" in printed.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "taken"), [("\n", True), ("y\n", True), ("no\n", False)])
def test_a_terminal_is_asked(
    answer: str, taken: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", said := Terminal())
    shapes = with_shapes(JobRequest(str(file)), agreed=False).input_shapes
    assert shapes == (((1, 8),) if taken else None)
    assert "Take the shapes 1,8? [Y/n]" in said.getvalue()


def test_what_is_given_stays(file: Path) -> None:
    request = JobRequest(str(file), ((2, 8),))
    assert with_shapes(request, agreed=True) is request
    named = JobRequest("resnet18")
    assert with_shapes(named, agreed=True) is named
