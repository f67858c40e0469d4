"""Finds out, in microseconds, whether tensors still have the values that a library was made of.

PyTorch counts the changes that it makes itself (`Tensor._version`). What is written through
``.data``, through numpy or by another process is not counted. So a part of the bytes is compared,
too: a few of each tensor at each call, and all of them in turn over several calls.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import tvm
from tvm.script import from_source, tirx

_LINE = 64  # bytes that are compared at one place of a tensor
_PLACES = 3  # of each tensor
_CHUNK = 1 << 16  # bytes that are summed in one step
_LEAST = 1 << 18  # bytes that are summed at each call: in 10 microseconds
_RATE = 2e10  # bytes a second that one core sums; measured: 1.7e10 to 4.5e10
_SHARE = 0.005  # of the time of a call may be spent on sums
_version, _pointer = attrgetter("_version"), torch.Tensor.data_ptr
_COMPARE = """
@T.prim_func(s_tir=True)
def main(places: T.handle, copies: T.handle, sizes: T.handle, differs: T.handle):
    n = T.int64()
    place = T.match_buffer(places, (n,), "int64")
    copy = T.match_buffer(copies, (n,), "int64")
    size = T.match_buffer(sizes, (n,), "int64")
    result = T.match_buffer(differs, (1,), "int32")
    result[0] = 0
    for i in range(n):
        if T.call_extern("int32", "memcmp", place[i], copy[i], size[i]) != 0:
            result[0] = 1
"""


class Weights:
    """The state of some tensors on the CPU, as it was when this was made.

    It holds a few bytes of each tensor and, after `keep_sums`, a sum of each 64 KiB. Two threads
    that use it at once may find a change that only a sum shows some calls later.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        unique = {id(tensor): tensor for tensor in tensors}
        self._tensors = [t for t in unique.values() if t.numel()]
        self._counted = [t for t in self._tensors if not t.is_inference()]
        self._versions = list(map(_version, self._counted))
        self._pointers = list(map(_pointer, self._tensors))
        bytes_of = [raw for raw in map(_bytes, self._tensors) if raw is not None]
        self._places = _Places(bytes_of)
        self._bytes = bytes_of
        self._chunks: list[np.ndarray] = []
        self._sums: list[int] = []
        self._next = 0

    def keep_sums(self) -> None:
        """Read all bytes, so that a change of any of them is found later."""
        self._chunks = [chunk for raw in self._bytes for chunk in _chunks(raw)]
        self._sums = [int(np.add.reduce(chunk)) for chunk in self._chunks]

    def have_moved(self) -> bool:
        """Whether a tensor has another place in memory, or PyTorch has changed it."""
        return (
            list(map(_pointer, self._tensors)) != self._pointers
            or list(map(_version, self._counted)) != self._versions
        )

    def have_changed(self, seconds: float = 0.0) -> bool:
        """Whether a tensor has changed. `seconds`: how long the call takes that is to follow.

        A change that PyTorch does not count is found at once if it is at one of the places that
        are compared, else when the sum of its 64 KiB is looked at again.
        """
        return self.have_moved() or self._places.differ() or self._sums_differ(seconds)

    def _sums_differ(self, seconds: float) -> bool:
        budget = _LEAST + seconds * _SHARE * _RATE
        for _ in self._chunks:
            index = self._next = (self._next + 1) % len(self._chunks)
            if np.add.reduce(self._chunks[index]) != self._sums[index]:
                return True
            budget -= self._chunks[index].nbytes
            if budget <= 0:
                break
        return False


class _Places:
    """Copies of a few bytes of each array, which are compared in one call."""

    def __init__(self, arrays: Iterable[np.ndarray]) -> None:
        parts = [part for array in arrays for part in _parts(array)]
        self._copy = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        sizes = [part.nbytes for part in parts]
        starts = self._copy.ctypes.data + np.cumsum([0, *sizes])[:-1]
        self._arguments = [
            tvm.runtime.tensor(np.array(values, dtype=np.int64))
            for values in ([part.ctypes.data for part in parts], starts, sizes)
        ]
        result = tvm.runtime.tensor(np.zeros(1, dtype=np.int32))
        self._differs = np.from_dlpack(result)
        self._arguments.append(result)
        self._compare = _comparison() if parts else None

    def differ(self) -> bool:
        """Whether one of the copies differs from its place. The places must still be there."""
        if self._compare is None:
            return False
        self._compare(*self._arguments)
        return bool(self._differs[0])


@functools.cache
def _comparison() -> Any:
    function = from_source(_COMPARE, extra_vars={"T": tirx})
    return tvm.compile(tvm.IRModule({"main": function}), target="llvm").jit()["main"]


def _bytes(tensor: torch.Tensor) -> np.ndarray | None:
    """The memory of a dense tensor as bytes; None for others, which no library reads."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return None
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    flat = tensor.detach().as_strided((extent,), (1,))
    return np.asarray(flat.view(torch.uint8).numpy())


def _chunks(raw: np.ndarray) -> list[np.ndarray]:
    """The array in chunks, as integers of 8 bytes where that is possible."""
    whole = raw[: raw.nbytes // 8 * 8].view(np.uint64)
    steps = range(0, whole.size, _CHUNK // 8)
    rest = [raw[whole.nbytes :]] if whole.nbytes < raw.nbytes else []
    return [whole[start : start + _CHUNK // 8] for start in steps] + rest


def _parts(raw: np.ndarray) -> list[np.ndarray]:
    """A small array as a whole, else a few lines of it, the first and the last among them."""
    if raw.nbytes <= _LINE * _PLACES:
        return [raw]
    starts = np.linspace(0, raw.nbytes - _LINE, _PLACES).astype(int)
    return [raw[start : start + _LINE] for start in starts]
