"""A tuned model beside what people deploy instead, interleaved in one process.

Run by `end_to_end` in a process of its own: ``python -m benchmarks.deployments MODEL OUT THREADS
RESULT PRECISION ONNX STOCK`` times the model in PyTorch eager, torch.compile, ONNX Runtime,
OpenVINO, the library that `tlmd tune` wrote to the folder OUT, and the one that
`metaschedule_model` wrote to the folder STOCK, where there is one. All of them use THREADS threads
and compute in float32, or in bfloat16 where the PRECISION is ``bf16``: then PyTorch and
torch.compile get the model in bfloat16, OpenVINO its hint, and ONNX Runtime, which cannot on CPUs,
stays as it is. With ``int8`` ONNX Runtime and OpenVINO get the file ONNX, a quantised model, and
PyTorch stays in float32. Errors are those against PyTorch in float32. A kernel that only multiplies
and adds in float32 takes turns with them: it says what the cores can compute at that time.
"""

from __future__ import annotations

import copy
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import interleaved
from benchmarks.whole_models import onnx_models

TLMD, METASCHEDULE = "tlmd", "metaschedule"
PEERS = ("eager", "compile", "onnxruntime", "openvino")
"""Methods of `Peers`."""
_ARITHMETIC = "arithmetic"
_ROUNDS, _TURN_S = 15, 0.25
_DISCARDED = 2  # runs of each turn
_DRAWS = 2000  # of the bootstrap

Run = Callable[[], list[Any]]


def main(
    model: str, out: str, threads: int, result: str, precision: str, onnx: str, stock: str
) -> None:
    """Load all, compare their outputs with PyTorch's, time them, write what was found."""
    import torch

    from tlmd.data.model_spec import BF16, ModelSpec
    from tlmd.models import factories

    torch.set_num_threads(threads)
    module, example = factories.make(ModelSpec(model))
    inputs = tuple(example)
    with torch.inference_mode():
        want = [value.numpy() for value in _flat(module(*inputs))]
        peers = Peers(module, inputs, threads, Path(onnx), precision == BF16)
        runs: dict[str, Run] = {TLMD: _tlmd(out, inputs)}
        failed: dict[str, str] = {}
        for name in PEERS:
            try:
                runs[name] = getattr(peers, name)()
            except Exception as error:  # a peer that cannot run the model is said, not hidden
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if Path(stock).exists():
            runs[METASCHEDULE] = _metaschedule(Path(stock), inputs)
        errors = {name: _error(run(), want) for name, run in runs.items()}
        arithmetic, operations = _arithmetic(threads)
        times = _interleave({**runs, _ARITHMETIC: arithmetic})
    gflops = operations / statistics.median(times.pop(_ARITHMETIC)) / 1e9
    found = {
        "ms": _medians(times),
        "ratios": _ratios(times),
        "errors": errors,
        "failed": failed,
        "gflops": gflops,
    }
    Path(result).write_text(json.dumps(found))


def _tlmd(out: str, inputs: Sequence[Any]) -> Run:
    import tlmd

    tuned = tlmd.load(out)
    return lambda: _flat(tuned(*inputs))


def _metaschedule(folder: Path, inputs: Sequence[Any]) -> Run:
    import tvm

    library = tvm.runtime.load_module(str(folder / "model.so"))
    machine = tvm.relax.VirtualMachine(library, tvm.cpu())
    tensors = [tvm.runtime.from_dlpack(value.contiguous()) for value in inputs]
    return lambda: [part.numpy() for part in _flat(machine["main"](*tensors))]


class Peers:
    """What people deploy instead of tlmd, for one model."""

    def __init__(
        self, module: Any, inputs: Sequence[Any], threads: int, onnx: Path, bf16: bool
    ) -> None:
        self._module, self._inputs = module, inputs
        self._threads, self._onnx, self._bf16 = threads, onnx, bf16

    def eager(self) -> Run:
        module, inputs = self._of_torch()
        return lambda: _flat(module(*inputs))

    def compile(self) -> Run:
        import torch
        from torch._inductor import config

        config.freezing = True
        module, inputs = self._of_torch()
        compiled: Any = torch.compile(module, mode="max-autotune", dynamic=False)
        compiled(*inputs)
        return lambda: _flat(compiled(*inputs))

    def onnxruntime(self) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(self._exported(), options, providers=providers)
        names = [value.name for value in session.get_inputs()]
        feed = dict(zip(names, (value.numpy() for value in self._inputs), strict=True))
        return lambda: list(session.run(None, feed))

    def openvino(self) -> Run:
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": self._threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if self._bf16 else "f32",
        }
        model = openvino.Core().compile_model(self._exported(), "CPU", settings)
        request = model.create_infer_request()
        arrays = [value.numpy() for value in self._inputs]
        return lambda: list(request.infer(arrays).values())

    def _of_torch(self) -> tuple[Any, list[Any]]:
        """The module and its inputs, in bfloat16 where this was asked for."""
        import torch

        if not self._bf16:
            return self._module, list(self._inputs)
        short = [x.bfloat16() if x.is_floating_point() else x for x in self._inputs]
        return copy.deepcopy(self._module).to(torch.bfloat16), short

    def _exported(self) -> str:
        if not self._onnx.exists():
            onnx_models.export(self._module, self._inputs, self._onnx)
        return str(self._onnx)


def _arithmetic(threads: int) -> tuple[Run, float]:
    """A call that multiplies and adds on all cores of this process, and its operations."""
    from tlmd.measure.timing import peak_kernels
    from tlmd.space.hardware import target as targets

    info = targets.resolve("native", threads)
    return peak_kernels.arithmetic(targets.tvm_target(info), info, threads)


def _flat(value: Any) -> list[Any]:
    """The tensors of an output, whatever its structure."""
    if hasattr(value, "shape"):
        return [value]
    values = value.values() if hasattr(value, "values") else value
    return [tensor for part in values if part is not None for tensor in _flat(part)]


def _error(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest error of any output, relative to its largest value."""
    pairs = zip(got, want, strict=True)
    return max(float(np.abs(_array(g) - w).max() / np.abs(w).max()) for g, w in pairs)


def _array(value: Any) -> Any:
    return np.asarray(value.float() if hasattr(value, "float") else value)


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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:8])
