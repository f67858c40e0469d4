"""A tuned model beside what people deploy instead, interleaved in one process.

Run by `end_to_end` in a process of its own: ``python -m benchmarks.deployments MODEL OUT THREADS
RESULT`` times the model in PyTorch eager, torch.compile, ONNX Runtime, OpenVINO, and the library
that `tlmd tune` wrote to the folder OUT. All of them compute in float32 and use THREADS threads.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import interleaved

TLMD = "tlmd"
_ROUNDS, _TURN_S = 15, 0.25
_DISCARDED = 2  # runs of each turn
_DRAWS = 2000  # of the bootstrap

Run = Callable[[], list[Any]]


def main(model: str, out: str, threads: int, result: str) -> None:
    """Load all, compare their outputs with PyTorch's, time them, write what was found."""
    import torch

    from tlmd.model_spec import ModelSpec
    from tlmd.workloads import factories

    torch.set_num_threads(threads)
    module, example = factories.make(ModelSpec(model))
    inputs = tuple(example)
    with torch.inference_mode(), tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        runs: dict[str, Run] = {TLMD: _tlmd(out, inputs), "eager": lambda: _flat(module(*inputs))}
        want = [value.numpy() for value in runs["eager"]()]
        failed: dict[str, str] = {}
        makers = {"compile": _compiled, "onnxruntime": _onnxruntime, "openvino": _openvino}
        for name, make in makers.items():
            try:
                runs[name] = make(module, inputs, threads, Path(scratch))
            except Exception as error:  # a peer that cannot run the model is said, not hidden
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        errors = {name: _error(run(), want) for name, run in runs.items()}
        times = _interleave(runs)
    found = {"ms": _medians(times), "ratios": _ratios(times), "errors": errors, "failed": failed}
    Path(result).write_text(json.dumps(found))


def _tlmd(out: str, inputs: Sequence[Any]) -> Run:
    import tlmd

    tuned = tlmd.load(out)
    return lambda: _flat(tuned(*inputs))


def _compiled(module: Any, inputs: Sequence[Any], _threads: int, _scratch: Path) -> Run:
    import torch
    from torch._inductor import config

    config.freezing = True
    compiled: Any = torch.compile(module, mode="max-autotune", dynamic=False)
    compiled(*inputs)
    return lambda: _flat(compiled(*inputs))


def _onnxruntime(module: Any, inputs: Sequence[Any], threads: int, scratch: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    path = _export(module, inputs, scratch)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = dict(zip(names, (value.numpy() for value in inputs), strict=True))
    return lambda: list(session.run(None, feed))


def _openvino(module: Any, inputs: Sequence[Any], threads: int, scratch: Path) -> Run:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    path = _export(module, inputs, scratch)
    request = openvino.Core().compile_model(path, "CPU", settings).create_infer_request()
    arrays = [value.numpy() for value in inputs]
    return lambda: list(request.infer(arrays).values())


def _export(module: Any, inputs: Sequence[Any], scratch: Path) -> str:
    import torch

    path = scratch / "model.onnx"
    if not path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, tuple(inputs), str(path), dynamo=False, opset_version=17)
    return str(path)


def _flat(value: Any) -> list[Any]:
    """The tensors of an output, whatever its structure."""
    if hasattr(value, "shape"):
        return [value]
    values = value.values() if hasattr(value, "values") else value
    return [tensor for part in values if part is not None for tensor in _flat(part)]


def _error(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest error of any output, relative to its largest value."""
    pairs = zip(got, want, strict=True)
    return max(float(np.abs(np.asarray(g) - w).max() / np.abs(w).max()) for g, w in pairs)


def _interleave(runs: dict[str, Run]) -> dict[str, list[float]]:
    """The median seconds of each one's runs in each round."""
    for run in runs.values():
        for _ in range(3):
            run()
    found = interleaved.rounds(runs, _ROUNDS, _TURN_S, _DISCARDED)
    return {name: [statistics.median(turn) for turn in turns] for name, turns in found.items()}


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(seconds) * 1e3 for name, seconds in times.items()}


def _ratios(times: dict[str, list[float]]) -> dict[str, tuple[float, float, float]]:
    """Each peer's time over tlmd's: the median over rounds, and its 95 % interval by bootstrap."""
    rng = random.Random(0)
    found = {}
    for name, seconds in times.items():
        if name == TLMD:
            continue
        pairs = [theirs / ours for theirs, ours in zip(seconds, times[TLMD], strict=True)]
        draws = sorted(statistics.median(rng.choices(pairs, k=len(pairs))) for _ in range(_DRAWS))
        low, high = draws[round(0.025 * _DRAWS)], draws[round(0.975 * _DRAWS) - 1]
        found[name] = statistics.median(pairs), low, high
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
