"""`torch.compile(backend="tlmd")` and `tlmd.optimize`: right at once, faster later, never stale."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tlmd
from tests.support import difficult_models
from tlmd.data.errors import BadInput
from tlmd.integrations import hot_swap, torch_backend
from tlmd.integrations.graph_options import GraphOptions
from tlmd.models.pytorch import torch_frontend
from tlmd.space.hardware.target import has_bf16, resolve

pytestmark = pytest.mark.slow


class Slow(nn.Module):
    """A network whose eager form sleeps, so that any library is faster."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.02)
        return torch.as_tensor(self.second(torch.relu(self.first(x))))


@pytest.fixture(autouse=True)
def _small(small_tlm: Path) -> None:
    """Daemons of these tests use a small TLM."""


def test_optimize_compiles_compares_and_falls_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Slow().eval()
    x = torch.randn(3, 16)
    fast = tlmd.optimize(model, x, state_dir=tmp_path, background=False)
    (function,) = fast.functions.values()
    assert function.reason == "" and len(function.swaps) == 1 and function.swaps[0] < 0.02
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
        for _ in range(2):  # another shape is compiled as soon as it took as long as that takes
            torch.testing.assert_close(fast(x=x[:2]), model(x[:2]))
            fast.compile_now().compile_time.seconds = 0.03
    assert len(fast.functions) == 2
    assert fast(x).requires_grad  # with gradients the original runs


def test_optimize_keeps_the_structure(tmp_path: Path) -> None:
    model, example = difficult_models.structured()
    fast = tlmd.optimize(model, example, state_dir=tmp_path, background=False)
    with torch.no_grad():
        found, expected = fast(**example), model(**example)
        assert type(found) is difficult_models.Answer
        torch.testing.assert_close(found.scores, expected.scores)
        other = example | {"scale": 5.0}  # not what was compiled: the original runs
        torch.testing.assert_close(fast(**other).scores, model(**other).scores)


def test_a_wrong_import_stays_eager(tmp_path: Path) -> None:
    model, (x,) = difficult_models.wrong_when_compiled()
    flat = torch_frontend.flat_module(model, _call(model, x))
    function = hot_swap.HotSwapped("wrong", flat, [x], GraphOptions(tmp_path, False))
    assert "differs from the original" in function.reason and not function.swaps
    assert torch.equal(function([x])[0], x + 2.0)


def _call(model: nn.Module, x: torch.Tensor) -> Any:
    from tlmd.models.call_structure import describe_call

    return describe_call(model.forward, (x,), {}, torch.is_tensor)[0]


def test_a_precision_is_used_or_refused(tmp_path: Path) -> None:
    model, x = Slow().eval(), torch.randn(32, 16)
    for wrong in ({"precision": "half"}, {"precision": "bf16", "strict_numerics": True}):
        with pytest.raises(BadInput):
            tlmd.optimize(model, x, state_dir=tmp_path, background=False, **wrong)
        with pytest.raises(BadInput):
            torch_backend.backend(torch.fx.symbolic_trace(model.first), [x], options=wrong)
    if not has_bf16(resolve("native")):
        with pytest.raises(BadInput, match="bf16 needs a CPU with"):
            tlmd.optimize(model, x, state_dir=tmp_path, background=False, precision="bf16")
        return
    fast = tlmd.optimize(model, x, state_dir=tmp_path, background=False, precision="bf16")
    (function,) = fast.functions.values()
    assert isinstance(function, hot_swap.HotSwapped) and not function.reason
    assert any("bf16" in task.alternative for task in function.tasks)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), atol=0.05, rtol=0.05)


def test_the_backend_of_torch_compile(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Slow().eval()
    options: dict[str, Any] = {"state_dir": str(tmp_path), "background": False}
    compiled = torch.compile(model, backend="tlmd", options=options, dynamic=False)
    x = torch.randn(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.second.bias.add_(1.0)  # weights that change are never stale
        torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.first.weight.grad is not None
    with pytest.raises(ValueError, match="unknown option 'stat_dir'"):
        torch_backend.backend(
            torch.fx.symbolic_trace(nn.Linear(16, 4)), [x], options={"stat_dir": "x"}
        )
