"""The process in which `benchmarks.coverage` tries one network. It sends what it has reached.

The messages are dicts that the parent merges into the network's row. A process that dies or hangs
costs only its own row: the stages that it had sent are kept.
"""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import tvm
from torch.utils import _pytree
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program
from tvm_ffi import Shape

from benchmarks.coverage.networks import lists, networks_onnx
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo
from tlmd.lowering import acceptance, comparison, lowering
from tlmd.lowering.preparation import LoweredModel, PreparedModel
from tlmd.models import frontends
from tlmd.models.sources import SourceModel
from tlmd.space.hardware import target as targets

assert transformers  # imported for the children, which are forked from a process that has it

_LIMIT = 1e-3
_LIMIT_16_BITS = 1e-2
_CAUSE_LENGTH = 240
_SEED = 1
_OPERATOR = re.compile(r'ir\.Op\(.*?name="([^"]+)".*?support_level=\d+\)')

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Job:
    """One network to try."""

    group: str
    name: str

    folder: str
    """A scratch folder; it holds the model already if it is a backend test."""

    stock: bool
    """With stock TVM alone, instead of tlmd."""

    @property
    def spec(self) -> str:
        """What tlmd's users would name as the model."""
        if self.group in lists.LISTS:
            return f"{lists.LISTS[self.group]}:{self.name}"
        return str(Path(self.folder) / "model.onnx")


class Progress:
    """Sends stages and figures to the parent."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self.send = send

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, and send that it was reached if nothing is raised."""
        begin, cpu = time.monotonic(), time.process_time()
        yield
        seconds = round(time.monotonic() - begin, 2)
        message: dict[str, Any] = {"stage": name, "seconds": seconds}
        if name == "lowered":
            message["lower_cpu_s"] = round(time.process_time() - cpu, 2)
        self.send(message)


def examine(job: Job, channel: Any) -> None:
    """Try one network, and send what happens over the connection `channel`."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    torch.set_num_threads(1)
    try:
        if job.group == "onnx-exported":
            networks_onnx.write_export(job.name, Path(job.folder))
        (_with_stock if job.stock else _with_tlmd)(job, Progress(channel.send))
    except BaseException as error:  # also what ends a process: it is this network's result
        channel.send({"cause": cause(error, job.spec)})
    channel.close()


def _with_tlmd(job: Job, progress: Progress) -> None:
    target = targets.resolve("native", 1)
    given = _values(job) if job.spec.endswith(".onnx") else None
    with progress.stage("loaded"):
        spec = _spec(job, given[0] if given else [])
    with progress.stage("lowered"):  # whole or in parts, whatever its outputs are compared with
        accepted = acceptance.accept(spec, target)
    (model,) = accepted.models
    share = 1.0 if model.is_whole else model.flow.tuned_share
    progress.send({"tasks": len(accepted.tasks), "whole": model.is_whole, "share": share})
    with progress.stage("compiled"):
        programs = _programs(model, target)
    inputs = given[0] if given else model.source.random_inputs(_SEED)
    with progress.stage("run"):
        actual = comparison.run_once(model.flow, programs, inputs)
    with progress.stage("right"):
        reference: Any = model.source.reference
        if given is None and not _usable(reference, inputs):
            inputs = _leaves(_network(job)[1:])
            actual = comparison.run_once(model.flow, programs, inputs)
        expected = given[1] if given else list(reference(*inputs))
        if model.flow.repeatable:
            _compare(actual, expected, progress)


def _programs(model: PreparedModel, target: TargetInfo) -> list[Any]:
    """What runs each part of a model."""
    lowered = iter(model.lowered)
    return [
        comparison.for_arrays(_runner(next(lowered), target))
        if isinstance(part.program, SourceModel)
        else part.program
        for part in model.flow.parts
    ]


def _runner(model: LoweredModel, target: TargetInfo) -> comparison.Run:
    compiled = lowering.compile_model(model.lowered, targets.tvm_target(target))
    return comparison.runner(compiled.executable)


def _spec(job: Job, inputs: Arrays) -> ModelSpec:
    """The model; where tlmd asks for the shapes of its inputs, with those of `inputs`."""
    try:
        frontends.originals(ModelSpec(job.spec))
    except BadInput as error:
        if "--input-shape" not in str(error) or not inputs:
            raise
        return ModelSpec(job.spec, tuple(array.shape for array in inputs))
    return ModelSpec(job.spec)


def _usable(reference: Any, inputs: Arrays) -> bool:
    """Whether the original computes finite values from random inputs.

    Some cannot: boxes must have positive sizes, and images must have their places in the text.
    """
    try:
        outputs = reference(*inputs)
    except Exception:
        return False
    floats = [output for output in outputs if output.dtype.kind == "f"]
    return all(np.isfinite(output).any() for output in floats)


def _network(job: Job) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A PyTorch network with the positional and keyword inputs of its example."""
    module, example = lists.factory(lists.networks(job.group), job.name)()
    return (module, (), example) if isinstance(example, dict) else (module, example, {})


def _with_stock(job: Job, progress: Progress) -> None:
    """The same with TVM's importers and default pipeline, without anything of tlmd."""
    target = targets.tvm_target(targets.resolve("native", 1))
    if job.spec.endswith(".onnx"):
        module, inputs, expected = _stock_onnx(job)
    else:
        module, inputs, expected = _stock_torch(job)
    progress.send({"stage": "loaded", "seconds": 0.0})
    with progress.stage("compiled"):
        machine = _machine(tvm.compile(module, target))
    with progress.stage("run"):
        actual = _run(machine, inputs)
    with progress.stage("right"):
        _compare(actual, expected, progress)


def _stock_torch(job: Job) -> tuple[Any, Arrays, Arrays]:
    module, arguments, keywords = _network(job)
    with torch.no_grad():
        outputs = module(*arguments, **keywords)
        program = torch.export.export(module, arguments, keywords, strict=False)
    imported = from_exported_program(program, keep_params_as_input=False)
    return imported, _leaves((arguments, keywords)), _leaves(outputs)


def _stock_onnx(job: Job) -> tuple[Any, Arrays, Arrays]:
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    imported = from_onnx(onnx.load(job.spec), keep_params_in_input=False)
    return imported, *_values(job)


def _values(job: Job) -> tuple[Arrays, Arrays]:
    return networks_onnx.read_values(Path(job.folder))


def _leaves(values: Any) -> Arrays:
    """The tensors in a structure of PyTorch, in its order."""
    found = [v for v in _pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    return [(v.float() if v.dtype == torch.bfloat16 else v).detach().numpy() for v in found]


def _machine(executable: Any) -> Any:
    """A virtual machine. Creating it links the program."""
    return relax.VirtualMachine(executable, tvm.cpu())


def _run(machine: Any, inputs: Arrays) -> Arrays:
    outputs = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
    return list(_flat(outputs))


def _flat(value: Any) -> Iterator[np.ndarray]:
    if hasattr(value, "numpy"):
        yield value.numpy()
    elif isinstance(value, int | float | Shape):  # also a number or a shape can be an output
        yield np.asarray(value)
    else:
        for part in value:
            yield from _flat(part)


def _compare(actual: Arrays, expected: Iterable[Any], progress: Progress) -> None:
    """Send the largest relative error. Raises `ValueError` if it is too large."""
    wanted = [np.asarray(array) for array in expected]
    if len(actual) != len(wanted):
        raise ValueError(f"{len(actual)} outputs instead of {len(wanted)}")
    errors = [relative_error(a, e) for a, e in zip(actual, wanted, strict=True)]
    progress.send({"error": max(errors, default=0.0)})
    for index, (error, array) in enumerate(zip(errors, wanted, strict=True)):
        if not error < (_LIMIT_16_BITS if array.dtype.itemsize == 2 else _LIMIT):
            shapes = f"shape {actual[index].shape} for {array.shape}"
            what = shapes if actual[index].shape != array.shape else f"relative error {error:.2g}"
            raise ValueError(f"wrong output {index}: {what}")


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest expected value; equal infinities and NaN agree."""
    if actual.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, np.abs(a - e))
    finite = np.abs(e[np.isfinite(e)])
    scale = float(finite.max(initial=0.0)) or 1.0
    return float(np.nan_to_num(distance, nan=np.inf).max()) / scale


def cause(error: BaseException, spec: str) -> str:
    """One line: the exception, its text, and the function of TVM, tlmd or torch that raised it."""
    origin = error
    while origin.__cause__ is not None:
        origin = origin.__cause__
    line = _line_of(error).replace(spec, "the model")
    if "TVM cannot import" in line:  # tlmd's line has only the begin of TVM's
        line = f"TVM cannot import the model: {type(origin).__name__}: {_line_of(origin)}"
    places = [f.name for f in traceback.extract_tb(origin.__traceback__) if _telling(f.filename)]
    where = f" [{places[-1]}]" if places else ""
    return f"{type(error).__name__}: {line}"[:_CAUSE_LENGTH] + where


def _line_of(error: BaseException) -> str:
    """The telling line of an error, with operators of TVM as their names."""
    text = _OPERATOR.sub(r"\1", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no text"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _telling(path: str) -> bool:
    return any(part in path for part in ("/tvm/relax/", "/tlmd/", "/torch/export/"))


lists.provide_torchvision()
