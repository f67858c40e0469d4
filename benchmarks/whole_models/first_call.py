"""One model run once by what people deploy instead of tlmd, in a process of its own.

``python -m benchmarks.first_call PEER MODEL ONNX THREADS``; `time_to_model` times it. With
``export`` in the place of PEER it only writes the file ONNX.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main(peer: str, model: str, onnx: Path, threads: int) -> None:
    """Import, load or convert, run."""
    if peer == "onnxruntime":
        _onnxruntime(onnx, threads)
    elif peer == "openvino":
        _openvino(onnx, threads)
    else:
        _torch(peer, model, onnx, threads)


def _torch(peer: str, model: str, onnx: Path, threads: int) -> None:
    import torch

    from tlmd.data.model_spec import ModelSpec
    from tlmd.models import factories

    torch.set_num_threads(threads)
    module, example = factories.make(ModelSpec(model))
    if peer == "export":
        from benchmarks.whole_models import onnx_models

        onnx_models.export(module, tuple(example), onnx)
        return
    called: Any = torch.compile(module) if peer == "compile" else module
    with torch.inference_mode():
        called(*example)


def _onnxruntime(onnx: Path, threads: int) -> None:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(onnx, settings, ["CPUExecutionProvider"])
    session.run(None, {one.name: _input(one.shape, one.type) for one in session.get_inputs()})


def _openvino(onnx: Path, threads: int) -> None:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(onnx, "CPU", settings)
    compiled([_input(list(one.shape), str(one.element_type)) for one in compiled.inputs])


def _input(shape: list[int], name: str) -> Any:
    import numpy as np

    return np.ones(shape, np.int64 if "int64" in name or "i64" in name else np.float32)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
