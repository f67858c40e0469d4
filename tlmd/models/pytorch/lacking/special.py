"""Decompositions of special functions that TVM lacks, into polynomials, logarithms and roots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# Lanczos' approximation of the gamma function, with g = 7.
_LANCZOS = (
    *(676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)
# Giles' approximation of the inverse of the error function, near zero and near one.
_INVERSE_ERF = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_INVERSE_ERF_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
# Abramowitz and Stegun, 9.8.1 and 9.8.2.
_BESSEL = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_BESSEL_FAR = (
    *(0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565),
    *(0.00225319, 0.01328592, 0.39894228),
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `run_decompositions`."""
    return {
        aten.lgamma.default: _in_floats(_log_gamma),
        aten.digamma.default: _in_floats(_digamma),
        aten.erfinv.default: _in_floats(_inverse_erf),
        aten.i0.default: _in_floats(_bessel),
        aten.special_i0.default: _in_floats(_bessel),
        aten.logcumsumexp.default: _log_of_running_sum,
        aten.rrelu_with_noise_functional.default: _leaky_relu,
    }


def _in_floats(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Compute narrow floats in float32, and integers in PyTorch's default."""

    def decomposition(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return function(x.to(torch.get_default_dtype()))
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return function(x.to(wide)).to(x.dtype)

    return decomposition


def _polynomial(x: Tensor, factors: Sequence[float]) -> Tensor:
    """The value of a polynomial; the factor of the highest power is the first."""
    total: Any = factors[0]
    for factor in factors[1:]:
        total = total * x + factor
    return total  # type: ignore[no-any-return]


def _log_gamma(x: Tensor) -> Tensor:
    reflected = x < 0.5
    z = torch.where(reflected, 1 - x, x) - 1
    series: Any = 0.99999999999980993
    for place, factor in enumerate(_LANCZOS):
        series = series + factor / (z + (place + 1))
    t = z + 7.5
    log = (z + 0.5) * torch.log(t) - t + torch.log(series) + 0.5 * math.log(2 * math.pi)
    sine = torch.sin(math.pi * (x - torch.floor(x))).abs()
    log = torch.where(reflected, math.log(math.pi) - torch.log(sine) - log, log)
    return torch.where(x.isinf(), math.inf, log)


def _digamma(x: Tensor) -> Tensor:
    reflected = x < 0
    z = torch.where(reflected, 1 - x, x)
    below: Any = 0.0
    for step in range(6):
        below = below + 1 / (z + step)
    far = z + 6
    square = 1 / (far * far)
    tail = square * (1 / 12 - square * (1 / 120 - square / 252))
    value = torch.log(far) - 0.5 / far - tail - below
    angle = math.pi * (x - torch.floor(x))
    value = torch.where(reflected, value - math.pi * torch.cos(angle) / torch.sin(angle), value)
    value = torch.where(reflected & (x == torch.floor(x)), math.nan, value)
    return torch.where(x == 0, -math.inf, value)


def _inverse_erf(x: Tensor) -> Tensor:
    w = -torch.log((1 - x) * (1 + x))
    near = _polynomial(w - 2.5, _INVERSE_ERF)
    far = _polynomial(torch.sqrt(w.clamp(min=5)) - 3, _INVERSE_ERF_FAR)
    value = torch.where(w < 5, near, far) * x
    return torch.where(x.abs() == 1, x * math.inf, value)


def _bessel(x: Tensor) -> Tensor:
    size = x.abs()
    near = _polynomial((size.clamp(max=3.75) / 3.75) ** 2, _BESSEL)
    safe = size.clamp(min=3.75)
    # In two factors, because exp(x) overflows before the result does.
    half = torch.exp(safe / 2)
    far = half * (_polynomial(3.75 / safe, _BESSEL_FAR) / torch.sqrt(safe)) * half
    return torch.where(size < 3.75, near, far)


def _log_of_running_sum(x: Tensor, dim: int) -> Tensor:
    """By doubling the distance looked back."""
    if x.dim() == 0:
        return x.clone()
    extent, step = x.shape[dim], 1
    value = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    while step < extent:
        now, before = value.narrow(dim, step, extent - step), value.narrow(dim, 0, extent - step)
        high, low = torch.maximum(now, before), torch.minimum(now, before)
        both = high + torch.log1p(torch.exp(low - high))
        both = torch.where(high.isinf(), high, both)
        value = torch.cat([value.narrow(dim, 0, step), both], dim)
        step *= 2
    return value.to(x.dtype)


def _leaky_relu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Without training no number is drawn."""
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise
