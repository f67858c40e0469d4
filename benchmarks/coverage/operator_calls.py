"""Calls of PyTorch operators at their edges, for `operators.py`.

Negative indices and steps, promotion of dtypes, rounding modes, NaN and infinity, the limits of
integers, indices as outputs, empty dimensions and those of size one, broadcasting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.coverage.operator_samples import Call


def _calls() -> list[Call]:
    torch.manual_seed(0)
    return [*_indexing(), *_promotion(), *_arithmetic(), *_reductions(), *_networks(), *_sizes()]


def _call(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    return Call(name, function, args, kwargs)


def _indexing() -> list[Call]:
    x, index = torch.randn(4, 5, 6), torch.tensor([-1, 0, -3])
    mask = torch.rand(4, 5, 6) > 0.5
    return [
        _call("negative select", lambda x: x[:, -1], x),
        _call("negative select", lambda x: x[-2, ..., -3], x),
        _call("negative slice", lambda x: x[:, -3:-1, ::2], x),
        _call("slice past the end", lambda x: x[2:100, -100:3], x),
        _call("empty slice", lambda x: x[:, 3:3], x),
        _call("index", lambda x, i: x[i], x, index),
        _call("index", lambda x, i: x[:, i], x, index),
        _call("index", lambda x, i: x[i, :, i], x, index),
        _call("index", lambda x, i: x[:, i, i], x, index),
        _call("index", lambda x, i, j: x[i, j], x, index[:, None], index[None]),
        _call("index", lambda x, i, j: x[:, i, j], x, index[:, None], index[None]),
        _call("index by a constant", lambda x: x[[0, -1], 1:, [-2, 2]], x),
        _call("index by int32", lambda x, i: x[i], x, index.int()),
        _call("index_select", lambda x, i: x.index_select(1, i), x, index.abs()),
        _call("gather", lambda x, i: x.gather(1, i), x, torch.randint(0, 5, (2, 3, 4))),
        _call("gather", lambda x, i: x.gather(-1, i), x, torch.randint(0, 6, (4, 5, 2))),
        _call("take", lambda x, i: x.take(i), x, index),
        _call("take_along_dim", torch.take_along_dim, x, torch.randint(0, 4, (1, 5, 6)), 0),
        _call("masked_fill", lambda x, m: x.masked_fill(m, float("-inf")), x, mask),
        _call("masked_fill of int", lambda x, m: x.masked_fill(m, -5), x.long(), mask[:1]),
        _call("where mixed", lambda m, x: torch.where(m, x, 0), mask, x.long()),
        _call("where mixed", lambda m, x, y: torch.where(m, x, y), mask, x, x.long()),
        _call("scatter", lambda x, i, s: x.scatter(1, i, s), x, torch.randint(0, 5, (4, 1, 6)), x),
        _call(
            "scatter value", lambda x, i: x.scatter(1, i, 2.0), x, torch.randint(0, 5, (4, 1, 6))
        ),
        _call("index_put", lambda x, i: x.index_put((i,), torch.ones(())), x, index),
        _call("roll", lambda x: x.roll((-1, 2), (0, -1)), x),
        _call("flip", lambda x: x.flip((-1, 0)), x),
        _call("unfold", lambda x: x.unfold(-1, 3, 2), x),
        _call("diagonal", lambda x: x.diagonal(1, -2, -1), x),
        _call("diagonal", lambda x: x.diagonal(-2, 0, 1), x),
        _call("narrow", lambda x: x.narrow(1, -3, 2), x),
        _call("topk", lambda x: x.topk(3, 1), x),
        _call("topk smallest", lambda x: x.topk(2, 0, largest=False), x),
        _call("sort", lambda x: x.sort(1, descending=True), x),
        _call("argsort stable", lambda x: x.argsort(dim=0, stable=True), x.long()),
        _call("one_hot", lambda i: F.one_hot(i, 5), index.abs()),
        _call("embedding", F.embedding, index.abs(), torch.randn(4, 3)),
    ]


def _promotion() -> list[Call]:
    values = {
        torch.bool: torch.rand(3, 4) > 0.5,
        torch.uint8: torch.randint(1, 9, (3, 4)).to(torch.uint8),
        torch.int32: torch.randint(1, 9, (3, 4)).int(),
        torch.int64: torch.randint(1, 9, (3, 4)),
        torch.float32: torch.rand(3, 4) + 0.5,
        torch.float64: torch.rand(3, 4).double() + 0.5,
    }

    def names(dtype: torch.dtype) -> str:
        return str(dtype).removeprefix("torch.")

    def several(x: Any, y: Any) -> tuple[Any, ...]:
        return x + y, x * y, x / y, torch.maximum(x, y), x == y, x < y, torch.stack([x, y])

    calls = [
        _call(f"promote {names(a)} {names(b)}", several, values[a], values[b])
        for a in values
        for b in values
        if a != b
    ]
    calls += [
        _call(f"scalar {names(dtype)}", lambda x: (x + 1, x * 1.5, 2 - x, x / 2, x > 0.5), value)
        for dtype, value in values.items()
        if dtype != torch.bool
    ]
    for name in ("exp", "log", "sqrt", "rsqrt", "sin", "tanh", "sigmoid", "erf", "reciprocal"):
        calls.append(_call("function of int", getattr(torch, name), values[torch.int64]))
    scalar = torch.tensor(2.5, dtype=torch.float64)
    calls.append(_call("tensor of rank 0", lambda x, s: x * s, values[torch.float32], scalar))
    calls.append(
        _call("mean of dtype", lambda x: x.mean(1, dtype=torch.float32), values[torch.int64])
    )
    return calls


def _arithmetic() -> list[Call]:
    x = torch.tensor([-7.5, -2.0, -0.5, 0.0, 0.5, 1.5, 2.5, 7.0])
    whole, by = torch.tensor([-7, -3, -1, 0, 1, 3, 7]), torch.tensor([2, -2, 3, 5, -3, 2, -7])
    odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e30, -1e-30])
    limits = torch.tensor([-(2**63), 2**63 - 1, 0, -1])
    calls = [_call("round", torch.round, x), _call("round", lambda x: x.round(decimals=1), x)]
    for mode in (None, "floor", "trunc"):
        calls.append(
            _call(f"div {mode}", lambda a, b, m=mode: torch.div(a, b, rounding_mode=m), whole, by)
        )
        calls.append(
            _call(f"div {mode}", lambda a, m=mode: torch.div(a, 3, rounding_mode=m), whole)
        )
        calls.append(_call(f"div {mode}", lambda a, m=mode: torch.div(a, 1.5, rounding_mode=m), x))
    for name in ("remainder", "fmod"):
        calls.append(_call(name, getattr(torch, name), whole, by))
        calls.append(_call(name, getattr(torch, name), x, 2.0))
        calls.append(_call(name, getattr(torch, name), x, -2.0))
    for name in (
        "isnan",
        "isinf",
        "isfinite",
        "sign",
        "abs",
        "exp",
        "sigmoid",
        "tanh",
        "neg",
    ):
        calls.append(_call("nan and inf", getattr(torch, name), odd))
    for name in ("maximum", "minimum", "fmax", "fmin", "eq", "lt", "ge", "ne"):
        calls.append(_call("nan and inf", getattr(torch, name), odd, odd.flip(0)))
    return [
        *calls,
        _call("relu and clamp of nan", lambda x: (x.relu(), x.clamp(-1, 1)), odd),
        _call("nan_to_num", torch.nan_to_num, odd),
        _call("clamp of int", lambda x: x.clamp(max=1), whole),
        _call("clamp of int", lambda x: x.clamp(min=-1), whole),
        _call("clamp of int", lambda x: x.clamp(-1.5, 1.5), whole),
        _call("clamp by tensors", lambda x, y: x.clamp(y, y + 1), whole, by),
        _call("integer limits", lambda x: (x + 1, x // 2, x.abs(), x > 0, -x), limits),
        _call("floor_divide", lambda a, b: a // b, whole, by),
        _call("bitwise", lambda a, b: (a & b, a | b, a ^ b, ~a), whole, by),
        _call("shift", lambda a: (a << 2, a >> 1), whole),
        _call("pow", lambda x: (x**2, x**3, x**0, x**1), whole),
        _call("pow", lambda x: (x.abs() ** 0.5, x**-1, x**2), x + 0.1),
        _call("pow", lambda x: 2**x, x),
        _call(
            "logical", lambda a, b: (torch.logical_and(a, b), torch.logical_xor(a, b)), whole, x[:7]
        ),
        _call("to int", lambda x: (x.long(), x.int(), x.bool(), x.char()), x),
        _call("to bool", lambda x: x.bool(), torch.tensor([0.5, 0.0, -0.1])),
        _call("expm1 and log1p", lambda x: (x.expm1(), x.abs().log1p()), x * 1e-6),
    ]


def _reductions() -> list[Call]:
    x, whole = torch.randn(3, 4, 5), torch.randint(-4, 9, (3, 4, 5))
    flags = torch.rand(3, 4, 5) > 0.5
    calls = []
    for name in ("sum", "prod", "cumsum", "cumprod"):
        calls.append(_call(f"{name} of int", lambda x, n=name: getattr(x, n)(1), whole.int()))
        calls.append(_call(f"{name} of bool", lambda x, n=name: getattr(x, n)(-1), flags))
    for name in (
        "amax",
        "amin",
        "argmax",
        "argmin",
        "any",
        "all",
        "sum",
        "logsumexp",
        "var",
        "std",
    ):
        calls.append(_call(name, lambda x, n=name: getattr(x, n)(-1), x))
        calls.append(_call(name, lambda x, n=name: getattr(x, n)(1, keepdim=True), x))
    for name in ("max", "min", "sum", "mean", "argmax", "any", "all", "prod", "var", "median"):
        calls.append(_call(f"{name} of all", lambda x, n=name: getattr(x, n)(), x))
    for name in ("max", "min", "sum", "argmax", "any", "all", "prod", "amax"):
        calls.append(_call(f"{name} of all int", lambda x, n=name: getattr(x, n)(), whole))
    for name in ("any", "all", "sum", "argmax", "amax"):
        value = flags if name != "argmax" else flags.int()
        calls.append(_call(f"{name} of flags", lambda x, n=name: getattr(x, n)(0), value))
    return [
        *calls,
        _call("max along", lambda x: x.max(1), x),
        _call("min along", lambda x: x.min(-1, keepdim=True), x),
        _call("median along", lambda x: x.median(1), x),
        _call("var_mean", lambda x: torch.var_mean(x, (1, 2), correction=0), x),
        _call("argmax of equals", lambda x: x.argmax(0), torch.ones(4, 3)),
        _call("norm", lambda x: (x.norm(), x.norm(1, 1), x.norm(float("inf"), 0)), x),
        _call("softmax", lambda x: (x.softmax(0), x.log_softmax(-1)), x),
        _call("softmax with inf", lambda x: x.softmax(0), torch.tensor([0.0, float("-inf"), 1.0])),
        _call("count_nonzero", lambda x: x.count_nonzero(1), flags),
        _call("cummax", lambda x: x.cummax(1), x),
        _call("histc", lambda x: torch.histc(x, 5, -2, 2), x),
    ]


def _networks() -> list[Call]:
    x, image = torch.randn(2, 6, 9), torch.randn(2, 3, 9, 11)
    grid = torch.rand(2, 5, 4, 2) * 2 - 1
    calls = []
    for name in ("selu", "elu", "celu", "gelu", "mish", "softplus", "hardswish", "hardsigmoid"):
        calls.append(_call(name, getattr(F, name), x * 3))
    for name in ("silu", "relu6", "softsign", "tanhshrink", "logsigmoid", "hardtanh", "softshrink"):
        calls.append(_call(name, getattr(F, name), x * 3))
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            kind = {"mode": mode, "padding_mode": padding, "align_corners": False}
            calls.append(_call(f"grid_sample {mode}", F.grid_sample, image, grid, **kind))
    for size in ((1, 1), (3, 3), (4, 5), (9, 11), (13, 2)):
        calls.append(_call("adaptive_avg_pool2d", F.adaptive_avg_pool2d, image, size))
        calls.append(_call("adaptive_max_pool2d", F.adaptive_max_pool2d, image, size))
    for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
        calls.append(_call(f"interpolate {mode}", F.interpolate, image, (13, 7), mode=mode))
        calls.append(_call(f"interpolate {mode}", F.interpolate, image, scale_factor=2, mode=mode))
    for mode in ("constant", "reflect", "replicate", "circular"):
        calls.append(_call(f"pad {mode}", F.pad, image, (1, 2, 0, 3), mode=mode))
    pool = {"kernel_size": 3, "stride": 2, "padding": 1}
    return [
        *calls,
        _call("negative pad", F.pad, image, (-1, 2, 1, -3)),
        _call("max_pool2d indices", F.max_pool2d, image, return_indices=True, **pool),
        _call("max_pool2d ceil", F.max_pool2d, image, ceil_mode=True, **pool),
        _call("max_pool2d dilated", F.max_pool2d, image, 3, 1, 1, 2),
        _call("max_pool1d indices", F.max_pool1d, x, return_indices=True, **pool),
        _call("avg_pool2d", F.avg_pool2d, image, ceil_mode=True, **pool),
        _call("avg_pool2d", F.avg_pool2d, image, count_include_pad=False, **pool),
        _call("avg_pool2d", F.avg_pool2d, image, divisor_override=2, **pool),
        _call("adaptive_avg_pool1d", F.adaptive_avg_pool1d, x, 4),
        _call("adaptive_max_pool1d", F.adaptive_max_pool1d, x, 4),
        _call("unfold image", F.unfold, image, 3, padding=1, stride=2),
        _call("fold image", F.fold, torch.randn(1, 12, 12), (4, 5), 2),
        _call("pixel_shuffle", F.pixel_shuffle, torch.randn(1, 8, 3, 3), 2),
        _call("layer_norm", F.layer_norm, x, (6, 9)),
        _call("group_norm", F.group_norm, x, 3),
        _call("instance_norm", F.instance_norm, image),
        _call("rms_norm", F.rms_norm, x, (9,)),
        _call("attention", F.scaled_dot_product_attention, *(torch.randn(2, 3, 8, 4),) * 3),
        _call("attention causal", F.scaled_dot_product_attention, *(x,) * 3, is_causal=True),
        _call(
            "conv_transpose2d", F.conv_transpose2d, image, torch.randn(3, 4, 3, 3), None, 2, 1, 1
        ),
        _call("conv1d", F.conv1d, x, torch.randn(4, 3, 3), None, 2, 2, 1, 2),
        _call("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), x, x),
        _call("fft", lambda x: torch.fft.rfft(x).abs(), x),
        _call("grouped_mm", _grouped, torch.randn(6, 8), torch.randn(3, 8, 8)),
    ]


def _grouped(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    return torch._grouped_mm(x.bfloat16(), weights.bfloat16(), offs=ends).float()


def _sizes() -> list[Call]:
    empty, one, x = torch.randn(0, 3), torch.randn(1, 4, 1), torch.randn(2, 1, 3)
    return [
        _call("empty", lambda x: (x + 1, x.t(), x.sum(), x.sum(0)), empty),
        _call("empty matmul", lambda x: x @ torch.ones(3, 2), empty),
        _call("empty cat", lambda x, y: torch.cat([x, y]), empty, torch.randn(2, 3)),
        _call("squeeze", lambda x: (x.squeeze(), x.squeeze(-1), x.squeeze(1)), one),
        _call("unsqueeze", lambda x: (x.unsqueeze(-1), x.unsqueeze(0), x.unsqueeze(-3)), one),
        _call("broadcast", lambda x, y: (x + y, torch.maximum(x, y[0])), x, torch.randn(4, 3)),
        _call("expand", lambda x: x.expand(5, 2, 4, 3), x),
        _call("rank 0", lambda x: (x + 1, x.exp(), x.reshape(1, 1), x.sum()), torch.tensor(1.5)),
        _call("reshape", lambda x: (x.reshape(-1), x.view(3, -1), x.flatten(1)), x),
        _call("repeat", lambda x: (x.repeat(2, 1, 3), x.tile(2), x.repeat_interleave(2, -1)), x),
        _call("as_strided", lambda x: x.as_strided((2, 2), (1, 2), 1), x),
        _call("tril", lambda x: (x.tril(-1), x.triu(1)), torch.randn(4, 5)),
        _call("arange", lambda x: x + torch.arange(3, 0, -1), x),
        _call("linspace", lambda x: x + torch.linspace(0, 1, 3), x),
        _call("split", lambda x: (*x.split(2, -1), *x.chunk(2), *x.unbind(-1)), x),
    ]


CALLS = _calls()
