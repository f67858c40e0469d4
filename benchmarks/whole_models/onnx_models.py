"""Models as ONNX files, for the peers that take no others; in float32, or quantised (QDQ)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CALIBRATED = 8  # inputs by which the ranges of activations are found


def export(module: Any, inputs: Sequence[Any], path: Path) -> None:
    """Write a PyTorch module in float32."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"dynamo": False, "opset_version": 17}
        options["input_names"] = _names(inputs)
        torch.onnx.export(module, tuple(inputs), str(path), **options)


def quantise(module: Any, inputs: Sequence[Any], path: Path) -> None:
    """Write a PyTorch module as ONNX Runtime quantises it: eight bits, weights by channel.

    The ranges of activations are those of random normal inputs of the same shapes.
    """
    import numpy as np
    from onnxruntime import quantization

    plain, prepared = path.with_suffix(".fp32.onnx"), path.with_suffix(".prepared.onnx")
    export(module, inputs, plain)
    quantization.quant_pre_process(str(plain), str(prepared))
    rng = np.random.default_rng(0)

    class Random(quantization.CalibrationDataReader):  # type: ignore[misc]
        """A few random inputs."""

        def __init__(self) -> None:
            self.left = _CALIBRATED

        def get_next(self) -> dict[str, Any] | None:
            self.left -= 1
            if self.left < 0:
                return None
            arrays = [rng.standard_normal(value.shape, dtype=np.float32) for value in inputs]
            return dict(zip(_names(inputs), arrays, strict=True))

    quantization.quantize_static(
        str(prepared),
        str(path),
        Random(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )


def _names(inputs: Sequence[Any]) -> list[str]:
    return [f"input{index}" for index in range(len(inputs))]
