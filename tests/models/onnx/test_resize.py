"""ONNX's Resize, rewritten: the same outputs as those of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.onnx_models import (
    check_import,
    node,
    onnx_model,
    operators,
    rewritten,
    run_in_onnx_runtime,
)

RANDOM = np.random.default_rng(0)
COORDINATES = (
    *("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"),
    "half_pixel_symmetric",
)
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def resized(shape: list[int], factors: Any, sizes: bool = False, **attributes: Any) -> Any:
    """A model of one node, and its input."""
    x = RANDOM.standard_normal(shape, np.float32)
    names = "x _ _ z" if sizes else "x _ z"
    constant = np.asarray(factors, np.int64 if sizes else np.float32)
    made = node("Resize", names, **attributes)
    return onnx_model(made, {"x": x}, {"z": constant}, opset=19), {"x": x}


@given(
    st.lists(st.integers(2, 7), min_size=2, max_size=2),
    st.lists(st.sampled_from([0.5, 0.6, 1.3, 1.5, 2.0, 2.5]), min_size=2, max_size=2)
    | st.lists(st.integers(1, 9), min_size=2, max_size=2),
    st.sampled_from(["nearest", "linear", "cubic"]),
    st.sampled_from(COORDINATES),
    st.sampled_from(ROUNDINGS),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rewritten_nodes_give_the_outputs_of_onnx_runtime(
    image: list[int], factors: list[float], mode: str, coordinates: str, rounding: str
) -> None:
    sizes = isinstance(factors[0], int)
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = rounding
    lead = [1, 2]
    model, inputs = resized(
        [*lead, *image], [*(lead if sizes else [1, 1]), *factors], sizes, **attributes
    )
    (want,) = run_in_onnx_runtime(model, inputs)
    (got,) = run_in_onnx_runtime(rewritten(model), inputs)
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)


CASES: dict[str, tuple[list[int], list[float], dict[str, Any]]] = {
    "linear": ([1, 2, 5, 3], [1, 1, 1.3, 2.5], {"mode": "linear"}),
    "cubic": ([1, 2, 5, 3], [1, 1, 0.6, 2.5], {"mode": "cubic", "exclude_outside": 1}),
    "nearest": ([1, 2, 5, 3], [1, 1, 1.5, 2.5], {"mode": "nearest"}),
    "channels last": ([1, 3, 4, 2], [1, 2, 2, 1], {"mode": "linear"}),
    "one dimension": ([1, 2, 5], [1, 1, 1.3], {"mode": "linear"}),
    "three dimensions": ([1, 1, 3, 4, 3], [1, 1, 1.5, 2.5, 0.7], {"mode": "linear"}),
    "smooth": ([1, 1, 17, 9], [1, 1, 0.3, 0.5], {"mode": "linear", "antialias": 1}),
    "smooth cubic": ([1, 1, 17, 9], [1, 1, 0.3, 2], {"mode": "cubic", "antialias": 1}),
    "named dimensions": ([1, 2, 5, 3], [1.5, 2], {"mode": "linear", "axes": [3, 2]}),
    "whole factor": (
        [1, 2, 5, 3],
        [1, 1, 3, 2],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_compiled_models_give_the_outputs_of_onnx_runtime(name: str) -> None:
    shape, factors, attributes = CASES[name]
    model, inputs = resized(shape, factors, **attributes)
    assert ("Resize" in operators(rewritten(model))) == (name == "whole factor")
    check_import(model, inputs)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_policies_keep_the_ratio_of_extents(policy: str) -> None:
    attributes = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    check_import(*resized([1, 1, 4, 6], [7, 8], True, **attributes))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_part_of_the_image_may_be_resized(mode: str) -> None:
    x = RANDOM.standard_normal((1, 1, 4, 6), np.float32)
    made = node(
        "Resize",
        "x roi _ z",
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
    )
    roi = np.asarray([0, 0, 0.2, 0.3, 1, 1, 0.8, 1.3], np.float32)
    constants = {"roi": roi, "z": np.asarray([1, 1, 3, 5])}
    check_import(onnx_model(made, {"x": x}, constants), {"x": x})


def test_upsample_of_older_files() -> None:
    x = RANDOM.standard_normal((1, 2, 5, 3), np.float32)
    made = node("Upsample", "x z", mode="linear")
    factors = np.asarray([1, 1, 1.5, 2.5], np.float32)
    check_import(onnx_model(made, {"x": x}, {"z": factors}, opset=9), {"x": x})
