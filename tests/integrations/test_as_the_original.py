"""An optimised model does what the original does, whatever changes after it was compiled."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tlmd
from benchmarks.coverage.behaviour_cases import Counting
from tests.support.eager_models import Net, X, optimized
from tests.support.torch_graphs import Graphs
from tlmd.integrations.optimized_model import OptimizedModel

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries_are_faster")]


@pytest.fixture(autouse=True)
def _prepare(small_tlm: Path) -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


def add_to_data(net: Net) -> None:
    net.first.weight.data += 0.5


def write_numpy(net: Net) -> None:
    net.second.weight.detach().numpy()[:] = 1.0


def replace_layer(net: Net) -> None:
    net.first = nn.Linear(64, 256)


def patch_forward(net: Net) -> None:
    net.first.forward = lambda x: torch.zeros(16, 256)  # type: ignore[method-assign, assignment]


def set_attribute(net: Net) -> None:
    net.shift = 3.0


def set_dtype(net: Net) -> None:
    net.double()


def hook(net: Net) -> None:
    net.first.register_forward_hook(lambda module, inputs, output: output * 0)


def share_memory(net: Net) -> None:
    net.share_memory()
    junk = [torch.full((256, 64), 9.0) for _ in range(50)]
    net.first.weight.data.mul_(2)
    del junk


CHANGES = (
    *(add_to_data, write_numpy, replace_layer, patch_forward, set_attribute, set_dtype),
    *(hook, share_memory),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_is_seen_at_once(change: Callable[[Net], None], state: Path) -> None:
    net = Net().eval()
    fast = optimized(net, (X,), state)
    before = fast(X)
    change(net)
    x = X.double() if net.scale.dtype == torch.float64 else X
    after = fast(x)
    assert after.dtype == net(x).dtype
    torch.testing.assert_close(after, net(x))
    assert not torch.allclose(after.float(), before) or change is set_dtype


@pytest.mark.parametrize("change", [add_to_data, write_numpy, share_memory])
def test_the_backend_sees_changed_weights(change: Callable[[Net], None], tmp_path: Path) -> None:
    net, graphs = Net().eval(), Graphs(tmp_path)
    fast = torch.compile(net, backend=graphs)
    fast(X)
    assert all(not f.reason for functions in graphs.functions for f in functions.values())
    change(net)
    torch.testing.assert_close(fast(X), net(X))


def test_it_is_compiled_anew_when_the_new_state_stays(state: Path) -> None:
    net = Net().eval()
    fast = optimized(net, (X,), state)
    fast.compile_now().compile_time.seconds = 0.0
    (old,) = fast.functions.values()
    add_to_data(net)
    for _ in range(3):
        torch.testing.assert_close(fast(X), net(X), atol=1e-4, rtol=1e-4)
    (new,) = fast.functions.values()
    assert new is not old and new.reason == ""


def test_keywords_hooks_and_modes(state: Path) -> None:
    net = Net().eval()
    fast = optimized(net, {"x": X, "double": True}, state)
    torch.testing.assert_close(fast(x=X), net(x=X))
    torch.testing.assert_close(fast(X, True), net(X, True))
    plain = net(X, double=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fast(X, double=True), net(X, double=True))
        assert not torch.equal(fast(X, double=True), plain)
    torch.testing.assert_close(fast(X, double=True), plain, atol=1e-4, rtol=1e-4)
    calls: list[Any] = []
    handle = net.first.register_forward_hook(lambda *_: calls.append(1))
    fast(X, double=True)
    fast(X, double=True)
    assert len(calls) == 2
    handle.remove()
    assert fast.reason == ""
    net.requires_grad_(False)
    with torch.enable_grad():
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(fast(x).sum(), x)
        (expected,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(slope, expected)


def test_it_is_the_original_for_who_looks(state: Path) -> None:
    net = Net().eval()
    fast: Any = optimized(net, (X,), state)
    assert isinstance(fast, Net) and fast.config is net.config
    assert list(fast.state_dict()) == list(net.state_dict())
    torch.testing.assert_close(fast.twice(X), net.twice(X), atol=1e-4, rtol=1e-4)
    fast.load_state_dict({name: value * 2 for name, value in net.state_dict().items()})
    fast.shift = 1.0
    assert net.shift == 1.0
    torch.testing.assert_close(fast(X), net(X))
    assert fast.train() is fast and net.training and net.first.training
    fast.eval()
    for other in (
        copy.deepcopy(fast),
        pickle.loads(pickle.dumps(fast)),
        _saved(fast),
    ):
        assert isinstance(other, OptimizedModel) and other.original is not net
        torch.testing.assert_close(other(X), net(X), atol=1e-4, rtol=1e-4)
        assert other.reason == ""


def _saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_pytorch_takes_it_for_the_original(state: Path) -> None:
    net = Net().eval()
    fast = optimized(net, (X,), state)
    expected = net(X)
    program = torch.export.export(fast, (X,))
    torch.testing.assert_close(program.module()(X), expected)
    torch.testing.assert_close(torch.vmap(fast)(X), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.compile(fast, backend="eager")(X), expected)
    twice = {name: value * 2 for name, value in net.named_parameters()}
    for _ in range(2):
        torch.testing.assert_close(
            torch.func.functional_call(fast, twice, (X,)),
            torch.func.functional_call(net, twice, (X,)),
        )
    torch.testing.assert_close(fast(X), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", [Counting(), nn.Sequential(Net(), nn.BatchNorm1d(64)).train()])
def test_a_module_with_state_is_left_as_it_is(model: nn.Module, tmp_path: Path) -> None:
    twin, example = copy.deepcopy(model), X.clone()
    fast = tlmd.optimize(model, (example,), state_dir=tmp_path, background=False)
    assert "changes the module" in fast.reason
    for _ in range(3):
        torch.testing.assert_close(fast(X), twin(X))
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)
    assert model.training == twin.training and torch.equal(example, X)
    if isinstance(model, nn.Sequential):  # it changes itself in training mode only
        model.eval()
        for _ in range(3):
            torch.testing.assert_close(fast(X), twin.eval()(X), atol=1e-4, rtol=1e-4)
        assert fast.reason == ""


def test_threads_may_call_it_first(state: Path) -> None:
    net, x = Net().eval(), torch.randn(5, 64)
    fast = optimized(net, (X,), state)
    results: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            results.append(fast(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, net(x), atol=1e-4, rtol=1e-4)


class Data(torch.utils.data.Dataset[torch.Tensor]):
    """Calls a model in the worker that loads it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            return torch.as_tensor(self._model(X + index))


def test_workers_of_a_loader_may_call_it(state: Path) -> None:
    net = Net().eval()
    loader = torch.utils.data.DataLoader(
        Data(optimized(net, (X,), state)), num_workers=1, timeout=60
    )
    for index, batch in enumerate(loader):
        torch.testing.assert_close(batch[0], net(X + index), atol=1e-4, rtol=1e-4)


def test_a_model_made_in_inference_mode(state: Path) -> None:
    with torch.inference_mode():
        net = Net().eval()
        fast = tlmd.optimize(net, (X,), state_dir=state, background=False)
        torch.testing.assert_close(fast(X), net(X), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fast(X), net(X), atol=1e-4, rtol=1e-4)
