"""PyTorch operators that TVM lacks: what is compiled gives the outputs of the original."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.operators import Calls, lowered_outputs, normalised

torch.manual_seed(0)
VOLUME, IMAGE = torch.randn(2, 4, 3, 4, 5), torch.randn(1, 2, 9, 8)
ROWS = torch.sort(torch.randn(3, 6))[0]
PLACES = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 3, 3]])
NUMBERS = torch.tensor([-3.5, -2, -0.3, 0, 0.2, 1, 2, 5.5, 30, 200, math.inf])


def resized(**options: Any) -> Callable[..., Any]:
    return lambda x: F.interpolate(x, **options)


def transposed(shape: tuple[int, ...], **options: Any) -> Callable[..., Any]:
    weight, bias = torch.randn(shape), torch.randn(shape[1] * options.get("groups", 1))
    return lambda x: F.conv_transpose3d(x, weight, bias, **options)


def scattered(reduce: str, include_self: bool) -> Callable[..., Any]:
    return lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self)


def distances(p: float) -> Callable[..., Any]:
    return lambda x, y: torch.cdist(x, y, p=p)


class Bags(nn.Module):
    """Embedding bags in all modes."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(10, 4, mode=m) for m in ("sum", "mean", "max"))
        self.ended = nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)
        self.padded = nn.EmbeddingBag(10, 4, padding_idx=4)

    def forward(self, i: Any, starts: Any, w: Any) -> tuple[Any, ...]:
        weighted = F.embedding_bag(i, self.ended.weight, starts, mode="sum", per_sample_weights=w)
        return (
            *(bag(i, starts) for bag in self.bags),
            self.bags[1](i[:4].reshape(2, 2)),
            self.ended(i, starts),
            self.padded(i, starts),
            weighted,
        )


class Bilinear(nn.Module):
    """Bilinear products with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Bilinear(3, 4, 5), nn.Bilinear(3, 4, 2, bias=False)

    def forward(self, x: Any, y: Any) -> tuple[Any, ...]:
        return self.first(x, y), self.second(x[0], y[0])


CASES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "resizing": (
        Calls(
            resized(scale_factor=(2.5, 1.3), mode="bilinear"),
            resized(scale_factor=0.5, mode="bilinear"),
            resized(scale_factor=2, mode="bilinear"),
            resized(scale_factor=1.3, mode="bilinear", align_corners=True),
            resized(size=(7, 1), mode="bilinear", align_corners=True),
            resized(scale_factor=1.3, mode="bicubic"),
            resized(scale_factor=0.3, mode="bilinear", antialias=True),
            resized(scale_factor=0.3, mode="bicubic", antialias=True),
        ),
        (IMAGE,),
    ),
    "transposed volumes": (
        Calls(
            transposed(
                (4, 3, 3, 2, 3), stride=(2, 1, 3), padding=(1, 0, 2), output_padding=(1, 0, 1)
            ),
            transposed((4, 3, 2, 2, 2), stride=2),
            transposed((4, 2, 2, 3, 2), stride=2, groups=2, dilation=(2, 1, 1)),
        ),
        (VOLUME,),
    ),
    "special functions": (
        Calls(
            *(torch.lgamma, torch.digamma, torch.erfinv, lambda x: torch.lgamma(x.half())),
            lambda x: torch.erfinv(torch.tanh(x)),
            lambda x: torch.i0(x.clamp(-80, 80)),
        ),
        (NUMBERS,),
    ),
    "logarithms of running sums": (
        Calls(
            lambda x: torch.logcumsumexp(x * 50, 1),
            lambda x: torch.logcumsumexp(x.masked_fill(x < 0, -math.inf), 0),
        ),
        (ROWS,),
    ),
    "searches": (
        Calls(
            *(torch.searchsorted, lambda s, x: torch.searchsorted(s, x, right=True)),
            lambda s, x: torch.searchsorted(s[0].contiguous(), x, side="right", out_int32=True),
            lambda s, x: torch.searchsorted(s[0].contiguous(), 0.3),
        ),
        (ROWS, torch.randn(3, 4)),
    ),
    "repetitions": (
        Calls(
            *(lambda x: x.repeat_interleave(2), lambda x: x.repeat_interleave(3, 1)),
            lambda x: torch.repeat_interleave(x, torch.tensor([1, 0, 2]), 0),
        ),
        (ROWS,),
    ),
    "bags": (Bags(), (torch.tensor([1, 2, 4, 5, 4, 9]), torch.tensor([0, 2, 2, 6]), ROWS[0])),
    "scattered reductions": (
        Calls(
            *(scattered(name, kept) for name in ("amax", "mean", "prod") for kept in (True, False)),
            lambda x, i, s: (x * 9).int().scatter_reduce(1, i, (s * 9).int(), "mean"),
        ),
        (torch.randn(4, 4), PLACES, torch.randn(3, 3)),
    ),
    "distances": (
        Calls(*map(distances, (0, 1, 2, 3, math.inf))),
        (torch.randn(2, 30, 3), torch.randn(2, 26, 3)),
    ),
    "bilinear": (Bilinear(), (torch.randn(2, 6, 3), torch.randn(2, 6, 4))),
    "rrelu": (nn.RReLU().eval(), (ROWS,)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_compiled_operators_give_the_outputs_of_the_original(name: str) -> None:
    module, inputs = CASES[name]
    with torch.no_grad():
        wanted = module.eval()(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, want in zip(lowered_outputs(module, *inputs), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.numpy().dtype, tuple(want.shape))
        exact = 2e-3 if want.dtype == torch.float16 else 1e-4
        np.testing.assert_allclose(got, want.numpy(), exact, 1e-5)


def test_integers_are_summed_in_64_bits_and_cast_after_it() -> None:
    module = Calls(
        lambda x: (x.sum(dtype=torch.int8), x.prod(1, dtype=torch.int16)),
        lambda x: torch.prod(x, dtype=torch.bool),
    )
    x = torch.tensor([[100, 100, 3], [7, -128, 127]], dtype=torch.int8)
    for got, want in zip(lowered_outputs(module, x), module(x), strict=True):
        assert got.dtype == want.numpy().dtype
        np.testing.assert_array_equal(got, want)


def test_resizing_by_whole_factors_stays_an_operator_of_tvm() -> None:
    program = normalised(Calls(resized(scale_factor=2, mode="bilinear")), IMAGE)
    targets = {node.target for node in program.graph.nodes}
    assert torch.ops.aten.upsample_bilinear2d.vec in targets
