"""Transposed convolutions as matrix products and convolutions: equal numbers, and which ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from tvm import relax, te

from tlmd.lowering import lowering
from tlmd.lowering.passes import rewrites
from tlmd.lowering.passes.transposed_convolution import (
    Side,
    TransposedConvolutions,
    add_patches,
    as_convolution,
)
from tlmd.models.pytorch.torch_frontend import from_module
from tlmd.space.hardware.target import resolve, tvm_target

sides = st.builds(
    lambda stride, kernel, padding, inputs, extra: Side(
        stride,
        kernel,
        padding,
        inputs,
        (inputs - 1) * stride - 2 * padding + kernel + extra,
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(1, 5),
    st.integers(0, 2),
)


def layer(rows: Side, columns: Side, seed: int) -> tuple[Any, Any, Any]:
    """Random image and weights, and what PyTorch makes of them."""
    both = (rows, columns)
    extra = [s.outputs - (s.inputs - 1) * s.stride + 2 * s.padding - s.kernel for s in both]
    for side, pixels in zip(both, extra, strict=True):
        assume(side.outputs > 0 and side.padding < side.kernel and pixels < side.stride)
    rng = np.random.default_rng(seed)
    image = rng.standard_normal((2, 3, rows.inputs, columns.inputs)).astype("float32")
    weights = rng.standard_normal((3, 4, rows.kernel, columns.kernel)).astype("float32")
    want = nn.functional.conv_transpose2d(
        torch.from_numpy(image),
        torch.from_numpy(weights),
        stride=[s.stride for s in both],
        padding=[s.padding for s in both],
        output_padding=extra,
    ).numpy()
    return image, weights, want


@settings(deadline=None, max_examples=60)
@given(sides, sides, st.integers(0, 2**32 - 1))
def test_the_convolution_computes_the_same(rows: Side, columns: Side, seed: int) -> None:
    image, weights, want = layer(rows, columns, seed)
    both = (rows, columns)
    made = as_convolution(weights, both)
    (top, bottom), (left, right) = (side.pads for side in both)
    kernel = torch.from_numpy(made.reshape(*made.shape[:3], -1)).permute(3, 2, 0, 1)
    padded = nn.functional.pad(torch.from_numpy(image), (left, right, top, bottom))
    found = nn.functional.conv2d(padded, kernel).permute(0, 2, 3, 1).numpy()
    split = found.reshape(2, rows.steps, columns.steps, rows.stride, columns.stride, 4)
    placed = split.transpose(0, 5, 1, 3, 2, 4).reshape(
        2, 4, rows.steps * rows.stride, columns.steps * columns.stride
    )
    np.testing.assert_allclose(
        placed[:, :, : rows.outputs, : columns.outputs], want, rtol=1e-4, atol=1e-4
    )


@settings(deadline=None, max_examples=30)
@given(sides, sides, st.integers(0, 2**32 - 1))
@pytest.mark.slow
def test_the_patches_add_up_to_the_same(rows: Side, columns: Side, seed: int) -> None:
    image, weights, want = layer(rows, columns, seed)
    patches = np.einsum("nihw,iokl->nhwklo", image, weights)
    given_patches = te.placeholder(patches.shape, "float32")
    added = add_patches(given_patches, (rows, columns))
    built = tvm.compile(te.create_prim_func([given_patches, added]), target="llvm")
    found = tvm.runtime.tensor(np.empty([int(n) for n in added.shape], "float32"))
    built["main"](tvm.runtime.tensor(patches), found)
    np.testing.assert_allclose(found.numpy().transpose(0, 3, 1, 2), want, rtol=1e-4, atol=1e-4)


def operators(module: Any) -> set[str]:
    found: set[str] = set()

    def add(expr: Any) -> None:
        found.add(rewrites.op_name(expr))

    relax.analysis.post_order_visit(module["main"], add)
    return found


@pytest.mark.parametrize(
    ("layer", "replaced"),
    [
        (nn.ConvTranspose2d(6, 4, 4, 2, 1), True),
        (nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), True),
        (nn.ConvTranspose2d(6, 4, 2, 2), True),
        (nn.ConvTranspose2d(6, 4, 3, 1, 1), True),
        (nn.ConvTranspose2d(6, 4, 3, 2, groups=2), False),
        (nn.ConvTranspose2d(6, 4, 3, 1, dilation=2), False),
    ],
)
def test_those_without_groups_and_dilation_are_replaced(layer: nn.Module, replaced: bool) -> None:
    torch.manual_seed(0)
    image = torch.randn(1, 6, 5, 7)
    network = nn.Sequential(layer, nn.BatchNorm2d(4), nn.ReLU()).eval()
    source = from_module("network", network, (image,))
    made = rewrites.apply([TransposedConvolutions])(source.module)
    assert ("relax.nn.conv2d_transpose" not in operators(made)) is replaced
    target = tvm_target(resolve("native", 1))
    compiled = lowering.compile_model(lowering.lower(source.module, target), target)
    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(image.numpy()))
    got = got[0] if not hasattr(got, "numpy") else got
    np.testing.assert_allclose(got.numpy(), network(image).detach().numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kernel", [1, 4])
def test_one_pixel_is_a_matrix_product(kernel: int) -> None:
    torch.manual_seed(0)
    network = nn.ConvTranspose2d(6, 4, kernel, 1, 0).eval()
    image = torch.randn(3, 6, 1, 1)
    source = from_module("network", network, (image,))
    made = operators(rewrites.apply([TransposedConvolutions])(source.module))
    assert "relax.matmul" in made and not any("conv" in name for name in made)
    as_it_was = lowering.lower(source.module, tvm_target(resolve("native", 1)), restructure=False)
    assert any("conv2d_transpose" in str(var) for var in as_it_was.functions)


@pytest.mark.parametrize(("after", "apart"), [(nn.ReLU(), False), (nn.SiLU(), True)])
def test_a_polynomial_does_not_copy_the_sum_of_patches(after: nn.Module, apart: bool) -> None:
    """Fused, the sum of nine terms would stand in the program some twenty times."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.ConvTranspose2d(6, 4, 5, 2, 1), after).eval()
    image = torch.randn(1, 6, 5, 7)
    target = tvm_target(resolve("native", 1))
    lowered = lowering.lower(from_module("network", network, (image,)).module, target)
    names = {str(var.name_hint) for var in lowered.functions}
    assert ("add_patches" in names) is apart
    executable = lowering.compile_model(lowered, target).executable
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image.numpy()))
    got = got[0] if not hasattr(got, "numpy") else got
    np.testing.assert_allclose(got.numpy(), network(image).detach().numpy(), rtol=1e-3, atol=1e-4)
