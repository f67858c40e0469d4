"""Graphs that TVM cannot compile as a whole: it compiles parts of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tlmd
from tests.support.torch_graphs import Flat, Graphs
from tlmd.data.errors import BadInput
from tlmd.export.program_source import ProgramSource
from tlmd.integrations import partition
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.hot_swap import HotSwapped
from tlmd.integrations.partitioned import Partitioned, build
from tlmd.models.pytorch import operators
from tlmd.space.cache import SpaceCache

pytestmark = pytest.mark.slow


class Fourier(nn.Module):
    """A block of FNet: TVM has no Fourier transform and no complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.shared = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.as_tensor(self.shared(self.second(torch.relu(self.first(x)))))
        y: torch.Tensor = self.norm(torch.fft.fft2(x).real + x)
        return torch.as_tensor(self.shared(torch.tanh(self.shared(y))) + x)


class Solving(nn.Module):
    """It inverts a matrix in the middle, and raises an error if there is no inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden: torch.Tensor = torch.relu(self.first(x))
        square = hidden @ hidden.transpose(-1, -2)
        inverse = torch.linalg.inv(square + torch.eye(8) * x[0, 0])
        return torch.tanh(self.second(inverse @ torch.sigmoid(x))), square


class Counting(nn.Module):
    """It changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1.0
        return torch.relu(self.linear(torch.fft.fft2(x).real)) + self.count


@pytest.fixture(autouse=True)
def _prepare(small_tlm: Path) -> None:
    """These tests use a small TLM."""
    torch.manual_seed(0)
    torch._dynamo.reset()


def fails(*_: Any) -> list[Any]:
    raise RuntimeError("no memory")


def only(functions: Any) -> Any:
    (function,) = functions.values()
    return function


def test_a_split_graph_computes_the_same_and_holds_its_weights() -> None:
    model, x = Fourier().eval(), torch.randn(2, 8, 16)
    graph = partition.split("fourier", Flat(model), [x])
    names = partition.region_names(graph)
    assert len(names) == 2
    with torch.no_grad():
        torch.testing.assert_close(graph.forward(x)[0], model(x))
    inputs = partition.region_inputs(graph, [x])
    assert list(inputs) == names and len(inputs[names[0]]) == 1
    for name in names:
        assert {"bias", "folded_0"} <= {t.rpartition(".")[2] for t in attributes(graph, name)}
    assert "get_attr" not in {node.op for node in graph.graph.nodes}
    outside = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert "aten._fft_c2c.default" in outside and "aten.addmm.default" not in outside


def attributes(graph: torch.fx.GraphModule, region: str) -> list[str]:
    module = graph.get_submodule(region)
    assert isinstance(module, torch.fx.GraphModule)
    return [str(node.target) for node in module.graph.nodes if node.op == "get_attr"]


def test_complex_numbers_stay_as_they_are() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Fourier()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = torch.fft.rfft(x) * torch.exp(1j * x.mean(-1, keepdim=True))
            return torch.as_tensor(self.inner(torch.fft.irfft(turned)))

    model, x = Turning().eval(), torch.randn(2, 8, 16)
    graph = partition.split("turning", Flat(model), [x])
    with torch.no_grad():
        torch.testing.assert_close(graph.forward(x)[0], model(x))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(16, 16), nn.ReLU()), "no operator to leave to PyTorch"),
        (Counting(), "changes its buffer count"),
    ],
)
def test_what_is_not_split(model: nn.Module, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        partition.split("it", Flat(model), [torch.randn(8, 16)])


def test_a_graph_with_little_for_tvm_is_not_split() -> None:
    class Little(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.fft.fft2(x + 1.0).real) * 2.0

    with pytest.raises(BadInput, match="worth a library"):
        partition.split("it", Flat(Little()), [torch.randn(8, 16)])


@pytest.mark.usefixtures("libraries_are_faster")
def test_optimize_compiles_parts(tmp_path: Path) -> None:
    model, x = Fourier().eval(), torch.randn(2, 8, 16)
    fast = tlmd.optimize(model, x, state_dir=tmp_path, background=False)
    function = only(fast.functions)
    assert isinstance(function, Partitioned) and function.reason == ""
    assert [region.reason for region in function.regions] == ["", ""]
    with torch.no_grad():
        for given in (torch.randn(2, 8, 16), torch.randn(8, 2, 16).transpose(0, 1)):
            torch.testing.assert_close(fast(given), model(given), rtol=1e-4, atol=1e-4)
    assert function.improve() and not function.reason  # with the fake times, again and again
    function.save_tasks(tmp_path / "tasks")
    assert (tmp_path / "tasks").stat().st_size > 0


@pytest.mark.usefixtures("libraries_are_faster")
def test_errors_of_the_model_stay_errors(tmp_path: Path) -> None:
    model, x = Solving().eval(), torch.rand(8, 16) + 0.5
    function = build("solving", Flat(model), [x], GraphOptions(tmp_path, False))
    assert isinstance(function, Partitioned) and not function.reason
    with torch.no_grad():
        for found, expected in zip(function([x]), model(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        with pytest.raises(RuntimeError, match="singular"):
            function([torch.zeros(8, 16)])
    assert not function.reason


@pytest.mark.usefixtures("libraries_are_faster")
def test_regions_that_cannot_run_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Fourier().eval(), torch.randn(1, 8, 16)
    function = build("fourier", Flat(model), [x], GraphOptions(tmp_path, False))
    assert isinstance(function, Partitioned) and not function.reason
    monkeypatch.setattr(function, "_in_parts", fails)
    with torch.no_grad():
        torch.testing.assert_close(function([x])[0], model(x))
    assert "cannot run (no memory)" in str(function.reason)
    for region in function.regions:
        monkeypatch.setattr(region, "improve", lambda: True)
    assert function.improve() and "no memory" in function.reason


def test_parts_with_wrong_outputs_stay_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries_are_faster: None
) -> None:
    monkeypatch.setattr(Partitioned, "_in_parts", lambda self, tensors: [tensors[0] + 1.0])
    model, x = Fourier().eval(), torch.randn(1, 8, 16)
    function = build("fourier", Flat(model), [x], GraphOptions(tmp_path, False))
    assert isinstance(function, Partitioned) and "differs" in function.reason
    with torch.no_grad():
        torch.testing.assert_close(function([x])[0], model(x))


@pytest.mark.usefixtures("libraries_are_faster")
def test_an_operator_whose_converter_fails_stays_in_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = operators._own()
    monkeypatch.setattr(operators, "_own", lambda: {**own, "erf.default": fails})
    layers = [nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16)]
    model, x = nn.Sequential(*layers, Error(), *layers).eval(), torch.randn(8, 16)
    function = build("error", Flat(model), [x], GraphOptions(tmp_path, False))
    assert isinstance(function, Partitioned) and len(function.regions) == 2
    assert not function.reason and not any(region.reason for region in function.regions)
    with torch.no_grad():
        torch.testing.assert_close(function([x])[0], model(x), rtol=1e-4, atol=1e-4)


class Error(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x)


def test_a_guess_has_the_names_of_its_task(tmp_path: Path) -> None:
    layer = Flat(nn.Linear(16, 16).eval())
    tasks = HotSwapped("layer", layer, [torch.randn(4, 16)], GraphOptions(tmp_path, False)).tasks
    (task,) = (task for task in tasks if not task.alternative)
    other = dataclasses.replace(task, module=task.module.replace("matmul", "product"))
    programs = ProgramSource(tmp_path)
    traces = []
    for one in (task, other):
        spaces = SpaceCache()
        choice = programs.propose(one, spaces)
        assert choice is not None
        traces.append(spaces.get(one).trace_json(choice))
    first, second = traces
    assert "matmul" in first and "product" not in first
    assert second == first.replace("matmul", "product")


def test_what_changes_a_buffer_stays_eager(tmp_path: Path) -> None:
    model, x = Counting().eval(), torch.randn(8, 16)
    function = build("counting", Flat(model), [x], GraphOptions(tmp_path, False))
    assert isinstance(function, HotSwapped) and "changes its buffer count" in function.reason


@pytest.mark.usefixtures("libraries_are_faster")
def test_torch_compile_compiles_parts(tmp_path: Path) -> None:
    graphs = Graphs(tmp_path)
    model, x = Fourier().eval(), torch.randn(2, 8, 16)
    compiled = torch.compile(model, backend=graphs, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        function = only(graphs.functions[0])
        assert isinstance(function, Partitioned) and not function.reason
        model.shared.bias.add_(1.0)  # weights that change are never stale
        torch.testing.assert_close(compiled(x), model(x))
