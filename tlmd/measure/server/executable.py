"""A built program with its arguments on the device, ready to run."""

from __future__ import annotations

import statistics
import time
from typing import Any

import tvm

from tlmd.measure.server import verify
from tlmd.measure.server.program import Program, make_inputs
from tlmd.measure.server.verify import Array
from tlmd.measure.timing.timing import REPEAT_S

_CLOCKED_S = 0.2e-3  # Python's clock times a program that is at least this slow to 1 %
_COLD_RUNS = 8  # per repeat at most


class Executable:
    """A candidate or the unscheduled program of a task, after building.

    With `cold`, the model's weights are evicted from the caches before every timed run, as other
    layers evict them in a model; what the layer before has just written stays where it is.
    """

    def __init__(
        self,
        runtime: tvm.runtime.Executable,
        program: Program,
        device: tvm.runtime.Device,
        cold: bool,
    ) -> None:
        self._runtime = runtime
        self._function = runtime["main"]
        self._program = program
        self._device = device
        self._on_cpu = device.dlpack_device_type() == tvm.cpu().dlpack_device_type()
        self._constants = program.task.constants if cold and self._on_cpu else ()
        flushes = cold and not self._on_cpu
        self._flushed_bytes = 2 * program.task.target.l2_bytes if flushes else 0
        self._tensors: list[Any] = []

    def allocate(self, inputs: list[Any] | None, positive: bool = False) -> None:
        """Put `inputs` (made where there are none) and empty outputs on the device."""
        self._tensors = []
        given = inputs or make_inputs(self._program, positive)
        for argument, tensor in zip(self._program.arguments, given, strict=True):
            if tensor is None:
                tensor = tvm.runtime.empty(argument.shape, argument.dtype, self._device)
            elif not self._on_cpu:
                tensor = tensor.copyto(self._device)
            self._tensors.append(tensor)
        # TVM's own function evicts all arguments but the first.
        self._evicted = [self._tensors[0], *(self._tensors[i] for i in self._constants)]
        self._evict = tvm.get_global_func("cache_flush_cpu_non_first_arg")

    def first_run(self) -> tuple[float, list[Array]]:
        """Seconds and outputs of a run on poisoned outputs; it warms up at the same time."""
        for index in self._program.outputs:
            argument = self._program.arguments[index]
            if not argument.reads:
                self._tensors[index].copyfrom(verify.poison(argument))
        seconds = self.once()
        # `numpy` copies, because later runs overwrite the outputs.
        return seconds, [self._tensors[index].numpy() for index in self._program.outputs]

    def once(self) -> float:
        """Seconds of one run by Python's clock."""
        begin = time.perf_counter()
        self._function(*self._tensors)
        if not self._on_cpu:
            self._device.sync()
        return time.perf_counter() - begin

    def run(self, number: int) -> float:
        """Mean seconds of `number` runs in a row; with cold caches of a few runs."""
        if self._constants:
            return self._run_cold(min(number, _COLD_RUNS))
        if self._on_cpu and number * _CLOCKED_S <= REPEAT_S:
            return sum(self.once() for _ in range(number)) / number
        if self._flushed_bytes:
            return self._run_flushed(min(number, _COLD_RUNS))
        timer = self._runtime.time_evaluator("main", self._device, number=number, repeat=1)
        return float(timer(*self._tensors).results[0])

    def _run_flushed(self, number: int) -> float:
        """Each run is timed by the card's own events, after its cache was overwritten."""
        timer = self._runtime.time_evaluator(
            "main", self._device, number=1, repeat=number, cache_flush_bytes=self._flushed_bytes
        )
        return float(statistics.fmean(timer(*self._tensors).results))

    def _run_cold(self, number: int) -> float:
        seconds = 0.0
        for _ in range(number):
            self._evict(*self._evicted)
            seconds += self.once()
        return seconds / number
