"""The networks and the changes of `behaviours`."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

X = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A network with a keyword, a buffer and an attribute that change what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.second = nn.Linear(256, 64)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.ones(64))
        self.shift = 0.0

    def forward(self, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x))) * self.scale + self.shift
        return torch.as_tensor(y * 2 if double else y)


class Outputs(nn.Module):
    """Returns its input, a constant, and an output with other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, torch.arange(6) + 1, self.net(x).t()


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return torch.as_tensor(self.net(x) * self.count)


Case = Callable[[Any, Any], tuple[Any, Any]]
"""Takes the fast model and its original; returns the fast answer and the right one."""


def _after(change: Callable[[Any], Any]) -> Case:
    def case(fast: Any, net: Any) -> tuple[Any, Any]:
        fast(X)
        change(net)
        return fast(X), net(X)

    return case


def _hook(fast: Any, net: Any) -> tuple[Any, Any]:
    def without_output(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 0

    fast(X)
    net.first.register_forward_hook(without_output)
    return fast(X), net(X)


def _gradient(fast: Any, net: Any) -> tuple[Any, Any]:
    fast(X)
    net.requires_grad_(False)
    slopes = []
    with torch.enable_grad():
        for model in (fast, net):
            x = X.clone().requires_grad_()
            slopes.append(torch.autograd.grad(model(x).sum(), x)[0])
    return slopes[0], slopes[1]


def _autocast(fast: Any, net: Any) -> tuple[Any, Any]:
    fast(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fast(X), net(X)
    return (inside[0], fast(X)), (inside[1], net(X))


def _functional(fast: Any, net: Any) -> tuple[Any, Any]:
    fast(X)
    prefix = "_orig_mod." if hasattr(fast, "_orig_mod") else ""
    twice = {name: 2 * value for name, value in net.named_parameters()}
    given = {prefix + name: value for name, value in twice.items()}
    return (
        torch.func.functional_call(fast, given, (X,)),
        torch.func.functional_call(net, twice, (X,)),
    )


def _twice(fast: Any, net: Any) -> tuple[Any, Any]:
    answers = []
    for model in (fast, net):
        for output in model(X)[1:]:
            output.add_(7)
        same, constant, moved = model(X)
        answers.append((constant, moved, torch.tensor(moved.stride()), torch.tensor(same is X)))
    return answers[0], answers[1]


def _counted(fast: Any, net: Any) -> tuple[Any, Any]:
    other = copy.deepcopy(net)
    return [fast(X) for _ in range(3)], [other(X) for _ in range(3)]


def _threads(fast: Any, net: Any) -> tuple[Any, Any]:
    answers: list[Any] = []

    def call() -> None:
        with torch.no_grad():
            try:
                answers.append(fast(X[:5]))
            except Exception as error:
                answers.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers, [net(X[:5])] * 4


def keyword(fast: Any, net: Any) -> tuple[Any, Any]:
    fast(X, double=True)
    return (fast(X), fast(X, double=True)), (net(X), net(X, double=True))


def _traced(model: Any) -> Any:
    trace: Any = torch.jit.trace
    return trace(model, (X,))


CASES: dict[str, tuple[Callable[[], nn.Module], Case]] = {
    "weights in place": (Net, _after(lambda n: n.first.weight.add_(0.5))),
    "weights through .data": (Net, _after(lambda n: n.first.weight.data.add_(0.5))),
    "one row through .data": (Net, _after(lambda n: n.first.weight.data[100].add_(0.5))),
    "weights through numpy": (Net, _after(lambda n: n.first.weight.numpy().fill(1.0))),
    "new .data": (
        Net,
        _after(lambda n: setattr(n.first.weight, "data", torch.ones(256, 64))),
    ),
    "share_memory": (Net, _after(lambda n: n.share_memory().first.weight.data.mul_(2))),
    "load_state_dict": (
        Net,
        _after(lambda n: n.load_state_dict({k: 2 * v for k, v in n.state_dict().items()})),
    ),
    "a buffer": (Net, _after(lambda n: n.scale.mul_(3))),
    "a layer replaced": (Net, _after(lambda n: setattr(n, "first", nn.Linear(64, 256)))),
    "a forward patched": (
        Net,
        _after(lambda n: setattr(n.first, "forward", lambda x: torch.zeros(16, 256))),
    ),
    "an attribute": (Net, _after(lambda n: setattr(n, "shift", 3.0))),
    "a forward hook": (Net, _hook),
    "another keyword": (Net, keyword),
    "autocast entered and left": (Net, _autocast),
    "gradient of the input, frozen weights": (Net, _gradient),
    "functional_call": (Net, _functional),
    "outputs changed by the caller; strides": (Outputs, _twice),
    "a module that counts": (Counting, _counted),
    "batch norm in training": (lambda: nn.Sequential(Net(), nn.BatchNorm1d(64)), _counted),
    "four threads, a new shape": (Net, _threads),
    "vmap": (Net, lambda fast, net: (torch.vmap(fast)(X), net(X))),
    "deepcopy": (Net, lambda fast, net: (copy.deepcopy(fast)(X), net(X))),
    "pickle": (Net, lambda fast, net: (pickle.loads(pickle.dumps(fast))(X), net(X))),
    "export": (
        Net,
        lambda fast, net: (torch.export.export(fast, (X,)).module()(X), net(X)),
    ),
    "jit.trace": (Net, lambda fast, net: (_traced(fast)(X), net(X))),
}
