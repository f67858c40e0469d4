"""PyTorch operators: the normalised program gives the same outputs, and so does the lowered one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.operators import Calls, lowered_outputs, normalised
from tlmd.data.errors import BadInput
from tlmd.models.pytorch.torch_frontend import from_module

SOME = settings(max_examples=10, deadline=None, derandomize=True)
aten = torch.ops.aten


def calls(program: Any) -> list[Any]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


@st.composite
def indices(draw: Any) -> tuple[Any, ...]:
    """What can stand in the brackets of a tensor of shape (4, 5, 6)."""
    count = draw(st.integers(1, 3))
    found: list[Any] = []
    for extent in (4, 5, 6)[:count]:
        number = st.integers(-extent, extent - 1)
        bound = st.none() | st.integers(-extent - 2, extent + 2)
        found.append(
            draw(
                number
                | st.builds(slice, bound, bound, st.none() | st.integers(1, 3))
                | st.lists(number, min_size=2, max_size=2).map(torch.tensor)
            )
        )
    return tuple(found)


@given(indices())
@SOME
@pytest.mark.slow
def test_every_index_is_written_out_from_the_start(index: tuple[Any, ...]) -> None:
    program = normalised(Calls(lambda x: x[index].clone()), torch.randn(4, 5, 6))
    for node in calls(program):
        assert node.target not in (aten.index.Tensor, aten.gather.default)
        if node.target in (aten.select.int, aten.slice.Tensor):
            assert all(argument >= 0 for argument in node.args[1:])


@given(st.lists(st.integers(-5, 4), min_size=1, max_size=6))
@SOME
@pytest.mark.slow
def test_indices_that_only_the_run_knows_are_counted_from_the_start(numbers: list[int]) -> None:
    index = torch.tensor(numbers)
    module = Calls(lambda x, i: (x[:, i], x[i % 4, i], x.index_put((i % 4, i), x[0, 0])))
    normalised(module, torch.randn(4, 5, 3), index)


DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32)
BINARY = (torch.add, torch.mul, torch.div, torch.maximum, torch.eq, torch.lt, torch.remainder)


@given(
    st.sampled_from(DTYPES),
    st.sampled_from([*DTYPES, bool, int, float]),
    st.sampled_from(BINARY),
    st.booleans(),
)
@SOME
@pytest.mark.slow
def test_operands_get_the_dtype_that_pytorch_computes_in(
    left: Any, right: Any, function: Any, scalar: bool
) -> None:
    x = torch.arange(1, 7).reshape(2, 3).to(left)
    number = right in (bool, int, float)
    y = right(3) if number else torch.full(() if scalar else (3,), 3).to(right)
    try:
        function(x, y)
    except (RuntimeError, TypeError):
        return  # PyTorch refuses it too
    inputs = (x,) if number else (x, y)
    module = Calls((lambda x: function(x, y)) if number else function)
    for node in calls(normalised(module, *inputs)):
        sources = [source.meta["val"].dtype for source in node.all_input_nodes]
        if node.target not in (aten._to_copy.default, aten.where.self):
            assert len(set(sources)) <= 1


def test_what_depends_on_weights_only_is_computed_and_shared() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            mask = torch.arange(3)[None] <= torch.arange(3)[:, None]
            again = torch.arange(3)[None] <= torch.arange(3)[:, None]
            scaled = x @ torch.tanh(self.weight).t()
            return scaled.masked_fill(~mask, 0.0), scaled.masked_fill(~again, 1.0)

    program = normalised(Masked(), torch.randn(2, 3, 4))
    names = {node.target.__name__ for node in calls(program)}
    assert not names & {"tanh.default", "arange.start_step", "le.Tensor", "bitwise_not.default"}
    folded = [n for n in program.graph.nodes if n.name.startswith("folded")]
    assert len(folded) == 2


class Everything(nn.Module):
    """Operators that TVM's importer lacks or reads wrongly, one output each."""

    def forward(self, x: Any, i: Any, m: Any, image: Any) -> tuple[Any, ...]:
        whole = i * 3 - 4
        grid = torch.tanh(image[:, :2, :4, :5]).permute(0, 2, 3, 1)
        pooled, places = F.max_pool2d(image, 3, 2, 1, return_indices=True)
        adapted, cells = F.adaptive_max_pool2d(image, (4, 3), return_indices=True)
        return (
            *(x[:, -1], x[..., -2], x[i - 3], x[:, i, i], x.unfold(1, 3, 2), x.take(i - 2)),
            *(
                x + whole[0],
                whole / 2,
                whole // 2,
                whole % 3,
                torch.div(x, 2, rounding_mode="trunc"),
            ),
            *(torch.add(x, x, alpha=3), whole.clamp(max=1), m.cumsum(1), m.sum(-1), i.exp(), ~m),
            *(x.amax(1), x.logsumexp(-1), *torch.var_mean(x, 1), x.any(-1), x.min(1)[1], x.prod(1)),
            *(F.selu(x), F.celu(x, 0.5), torch.where(m, x, 0), x.masked_fill(m, 2), x.cummax(1)[1]),
            *(
                torch.maximum(x.log(), x),
                torch.histc(x, 4, -2, 2),
                i << 1,
                whole**2,
                x.median(1)[1],
            ),
            *(F.grid_sample(image, grid, align_corners=False), pooled, places, adapted, cells),
            *(F.interpolate(image, (5, 11)), F.unfold(image, 3), F.pad(image, (-1, 1))),
            *(torch.cat([x, m]), torch.stack([x, m]), x.scatter(1, i[:, None, None], 2.0)),
            *(
                x.diagonal(1, 1, 2),
                x.expm1(),
                x.sort(dim=0, stable=True)[1],
                F.group_norm(image, 3),
            ),
        )


@pytest.mark.slow
def test_lowered_operators_give_the_outputs_of_pytorch() -> None:
    torch.manual_seed(0)
    x, image = torch.randn(3, 5, 4), torch.randn(2, 3, 8, 9)
    inputs = (x, torch.tensor([2, 0, 1]), torch.rand(3, 5, 4) > 0.5, image)
    module = Everything()
    got = lowered_outputs(module, *inputs)
    for number, (value, right) in enumerate(zip(got, module(*inputs), strict=True)):
        assert value.dtype == right.numpy().dtype, number
        np.testing.assert_allclose(value, right.numpy(), 1e-3, 1e-4, err_msg=str(number))


class Squeezed(nn.Module):
    """Dimensions of extent 1 come and go after a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.relu(self.conv(x))
        line = F.adaptive_avg_pool1d(x.flatten(2), 1)
        return line.squeeze(-1), x.mean((2, 3), keepdim=True).squeeze(), x.unsqueeze(-1).squeeze(0)


def test_dimensions_come_and_go_after_a_convolution() -> None:
    torch.manual_seed(0)
    module, image = Squeezed(), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        wanted = module(image)
    for value, right in zip(lowered_outputs(module, image), wanted, strict=True):
        np.testing.assert_allclose(value, right.numpy(), 1e-3, 1e-4)


def test_grouped_products_are_those_of_the_groups() -> None:
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    module = Calls(lambda x, w: torch._grouped_mm(x.bfloat16(), w.bfloat16(), offs=ends).float())
    normalised(module, torch.randn(6, 8), torch.randn(3, 8, 8))


class Layer(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (torch.linalg.svdvals, "model uses aten._linalg_svd in layers.1 (test_"),
        (lambda x: x + torch.rand(4, 4), "draws random numbers (aten.rand) in layers.1 (test_"),
        (lambda x: x[x > 0], "has a shape that depends on data"),
    ],
)
def test_a_refusal_says_which_operator_and_where(function: Any, text: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(Layer(torch.relu), Layer(function))

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers(x)

    with pytest.raises(BadInput) as caught:
        from_module("model", Model().eval(), (torch.randn(4, 4),))
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_nan_is_kept_where_pytorch_keeps_it() -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([nan, inf, -inf, 0.0, 7.0, -9.0, nan, 0.25] * 4)
    functions: list[Callable[[Any], Any]] = [
        *(F.relu, F.relu6, F.hardtanh, F.hardswish, F.softshrink, torch.aminmax),
        lambda x: (x.clamp(-1, 1), x.clamp(min=-1), x.clamp(max=1), x.clamp(x * 0, x + 1)),
        lambda x: (x.view(8, 4).amax(1), x.view(8, 4).min(0).values, x * 0),
        lambda x: torch.addr(x[:12].view(3, 4), x[:3], x[1:5]),
        lambda x: F.conv1d(x.view(1, 1, -1), torch.ones(8, 1, 3)).relu(),
    ]
    module = Calls(*functions)
    for got, right in zip(lowered_outputs(module, x), module(x), strict=True):
        np.testing.assert_allclose(got, right.numpy(), rtol=1e-5, atol=1e-6)
