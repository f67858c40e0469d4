"""A library that TVM compiled: flat lists of tensors in and out."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlmd.data.errors import BadInput
from tlmd.export.huge_pages import in_huge_pages
from tlmd.models.pytorch.tensors import is_torch, to_numpy
from tlmd.models.sources import InputInfo, numpy_dtype

CPU = "cpu"
_ALIGNED = 64  # bytes; TVM's programs read vectors from aligned memory

Entry = dict[str, Any]
"""How the model for one set of input shapes is run: a library, or parts."""


def library_entry(file: str, inputs: Sequence[InputInfo]) -> Entry:
    """The entry of a library that is the whole model, or of the part that it is."""
    return {"file": file, "inputs": [[i.name, list(i.shape), i.dtype] for i in inputs]}


class Library:
    """One compiled function for fixed shapes: flat lists of tensors in and out. Thread-safe.

    `device`: where `machine` runs, a kind of device of TVM.
    """

    def __init__(self, machine: Any, inputs: tuple[InputInfo, ...], device: str = CPU) -> None:
        self.inputs = inputs
        self._machine = machine
        self._device = device
        self._lock = threading.Lock()
        self._constants: frozenset[int] | None = None

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run it. Outputs are torch tensors if an input was one, else numpy arrays.

        They are on the card if the model runs there and an input was there, too.
        """
        pairs = zip(tensors, self.inputs, strict=True)
        arrays = [_as_tvm(value, info, self._device) for value, info in pairs]
        with self._lock:
            flat = _own(self._run(arrays), arrays, self._constants_of(arrays))
        torch_devices = {value.device.type for value in tensors if is_torch(value)}
        if not torch_devices:
            return [output.numpy() for output in flat]
        from_dlpack = sys.modules["torch"].from_dlpack
        if self._device not in torch_devices:
            flat = [_on_device(output, CPU) for output in flat]
        return [from_dlpack(output) for output in flat]

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        outputs = self._machine["main"](*arrays)
        return [outputs] if hasattr(outputs, "numpy") else list(outputs)

    def _constants_of(self, arrays: Sequence[Any]) -> frozenset[int]:
        """Addresses of outputs that are constants: two runs return the same memory."""
        if self._constants is None:
            first, second = self._run(arrays), self._run(arrays)
            self._constants = frozenset({t.data_ptr() for t in first}) & {
                t.data_ptr() for t in second
            }
        return self._constants


def _own(outputs: list[Any], inputs: Sequence[Any], constants: frozenset[int]) -> list[Any]:
    """The outputs, each in memory of its own, so that a caller may change it in place."""
    taken = {value.data_ptr() for value in inputs} | constants
    for index, output in enumerate(outputs):
        if output.data_ptr() in taken and output.numel():
            outputs[index] = output = output.copyto(output.device)
        taken.add(output.data_ptr())
    return outputs


def use_threads(count: int) -> None:
    """Let TVM start `count` threads in this process, on the process's cores. Call it first."""
    os.environ.setdefault("TVM_NUM_THREADS", str(count))
    os.environ.setdefault("TVM_BIND_THREADS", "0")


def load_machine(library: Path, device: str = CPU) -> Any:
    """A virtual machine of TVM that runs a library; weights of a CPU are in huge pages.

    `device` is a kind of device of TVM, such as ``cpu`` or ``cuda``: its first one.
    """
    import tvm
    from tvm import relax

    with in_huge_pages() if device == CPU else contextlib.nullcontext():
        return relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.device(device))


def _on_device(tensor: Any, device: str) -> Any:
    """A tensor of TVM on a kind of device; without a copy if it is there."""
    import tvm

    wanted = tvm.device(device)
    is_there = tensor.device.dlpack_device_type() == wanted.dlpack_device_type()
    return tensor if is_there else tensor.copyto(wanted)


def load_library(entry: Entry, directory: Path, device: str) -> Library:
    """The library of a file. Raises `BadInput`."""
    path = directory / entry["file"]
    infos = tuple(InputInfo(n, tuple(s), dtype) for n, s, dtype in entry["inputs"])
    try:
        machine = load_machine(path, device)
    except Exception as error:
        hint = "tune the model again" if device == CPU else f"is there a {device} card?"
        raise BadInput(f"cannot load {path}; {hint}") from error
    return Library(machine, infos, device)


def _as_tvm(value: Any, info: InputInfo, device: str) -> Any:
    """An input as TVM's tensor; without a copy where it is there, aligned and contiguous."""
    import tvm

    if is_torch(value):
        value = value.detach().contiguous()
        if value.device.type != device:
            value = value.cpu()
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype == info.dtype and value.data_ptr() % _ALIGNED == 0 and value.numel():
            return _on_device(tvm.runtime.from_dlpack(value), device)
        value = to_numpy(value)
    array = np.asarray(value)
    if array.dtype.name != info.dtype:
        wanted = numpy_dtype(info.dtype)
        if not np.can_cast(array.dtype, wanted):
            raise TypeError(f"{info.name} must have dtype {info.dtype}, not {array.dtype.name}")
        array = array.astype(wanted)
    return tvm.runtime.tensor(np.ascontiguousarray(array), tvm.device(device))
