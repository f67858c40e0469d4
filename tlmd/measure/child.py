"""What a forked child does with one candidate: build, wait for the slot, time, check, report.

The child of a single-threaded server inherits TVM, the parsed task and its inputs. It ends with
`os._exit`, so nothing of the server's is flushed or closed twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tlmd.measure import sandbox, timing, verify
from tlmd.measure.energy import EnergyMeter
from tlmd.measure.program import Program, make_inputs
from tlmd.measure.protocol import NO_REFERENCE, Setup, Stage, Verdict, Work, send
from tlmd.measure.reference import ReferenceKernel
from tlmd.space.schedule import InvalidCandidate, build_module
from tlmd.types import Outcome, Status, Timing

_NOISY = 0.10  # relative change of the reference kernel while a candidate was timed
_NONSENSE = 0.10  # share of NaN and infinity in the reference from which positive inputs are tried
_BASELINE_REPEATS = 3


@dataclass(frozen=True)
class Environment:
    """What every child inherits from the server."""

    setup: Setup
    target: Any
    store: verify.ReferenceStore
    kernel: ReferenceKernel | None
    reference_s: float
    lock_path: Path


@dataclass
class Stopwatch:
    """Seconds per stage, by the field names of `Timing`."""

    last: float
    stages: dict[str, float] = field(default_factory=dict)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self.last
        self.last = now


def run(
    env: Environment,
    work: Work,
    program: Program,
    inputs: list[Any] | None,
    forked_s: float,
    report_fd: int,
    log_fd: int,
) -> None:
    """Measure `work` and report; never raises. `forked_s` is `time.perf_counter` at the fork."""
    sandbox.shield(env.setup, work.is_baseline, log_fd)
    watch = Stopwatch(forked_s)
    watch.lap("start")
    attempt = _Attempt(env, work, program, inputs, report_fd, watch)
    try:
        outcome = attempt.measure()
    except InvalidCandidate as error:
        outcome = Outcome(Status.INVALID, detail=_one_line(error))
    except MemoryError as error:
        outcome = Outcome(Status.OUT_OF_MEMORY, detail=_one_line(error) or "MemoryError")
    except Exception as error:
        outcome = Outcome(attempt.blame(error), detail=_one_line(error))
    outcome = replace(outcome, timing=Timing(**watch.stages))
    with contextlib.suppress(OSError):
        send(report_fd, Verdict(outcome))


class _Attempt:
    """One candidate on its way through the stages."""

    def __init__(
        self,
        env: Environment,
        work: Work,
        program: Program,
        inputs: list[Any] | None,
        report_fd: int,
        watch: Stopwatch,
    ) -> None:
        self._env = env
        self._work = work
        self._program = program
        self._inputs = inputs
        self._report_fd = report_fd
        self._watch = watch
        self._built = False
        self._on_cpu = env.setup.target.device == "cpu"
        self._device = tvm.cpu() if self._on_cpu else tvm.device(env.setup.target.device)

    def blame(self, error: Exception) -> Status:
        if sandbox.says_out_of_memory(str(error)):
            return Status.OUT_OF_MEMORY
        return Status.RUN_ERROR if self._built else Status.BUILD_ERROR

    def measure(self) -> Outcome:
        module = self._schedule()
        self._watch.lap("schedule")
        runtime = tvm.compile(module, self._env.target).jit()
        function = runtime["main"]
        self._built = True
        self._watch.lap("build")
        reference = self._env.store.get(self._program.task_id)
        positive = reference.positive if reference else False
        tensors = self._tensors(positive)
        self._watch.lap("start")
        send(self._report_fd, Stage("waiting"))
        with self._slot():
            self._watch.lap("wait")
            send(self._report_fd, Stage("running"))
            if self._work.is_baseline and reference is None:
                tensors, positive = self._sensible_inputs(function, tensors)
            outcome, outputs = self._time(runtime, function, tensors)
            self._watch.lap("run")
        send(self._report_fd, Stage("checking"))
        outcome = self._check(outcome, outputs, reference, positive)
        self._watch.lap("check")
        return outcome

    def _schedule(self) -> Any:
        if not self._work.is_baseline:
            return build_module(self._program.module, self._work.trace, self._env.target)
        if self._on_cpu:
            return self._program.module
        with self._env.target:  # a GPU cannot run what is bound to no thread
            return tvm.s_tir.transform.DefaultGPUSchedule()(self._program.module)

    def _tensors(self, positive: bool) -> list[Any]:
        inputs = self._inputs or make_inputs(self._program, positive)
        tensors = []
        for argument, tensor in zip(self._program.arguments, inputs, strict=True):
            if tensor is None:
                tensor = tvm.runtime.empty(argument.shape, argument.dtype, self._device)
            elif not self._on_cpu:
                tensor = tensor.copyto(self._device)
            tensors.append(tensor)
        return tensors

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """The slot, exclusively; death gives it back because the descriptor is our own."""
        lock = os.open(self._env.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            run, build, lend = self._env.setup.run, self._env.setup.build, self._env.setup.lend
            if lend:
                sandbox.confine_siblings(build)
            os.sched_setaffinity(0, run)
            yield
            os.sched_setaffinity(0, build)
            if lend:  # nobody times now, so others may build there
                sandbox.confine_siblings((*build, *run))
        finally:
            os.close(lock)

    def _first_run(self, function: Any, tensors: list[Any]) -> tuple[float, list[Any]]:
        """Seconds and outputs of a run on poisoned outputs; it warms up at the same time."""
        for index in self._program.outputs:
            argument = self._program.arguments[index]
            if not argument.reads:
                tensors[index].copyfrom(verify.poison(argument))
        begin = time.perf_counter()
        function(*tensors)
        if not self._on_cpu:
            self._device.sync()
        seconds = time.perf_counter() - begin
        # A copy (`numpy` copies): the runs to come write again.
        return seconds, [tensors[index].numpy() for index in self._program.outputs]

    def _sensible_inputs(self, function: Any, tensors: list[Any]) -> tuple[list[Any], bool]:
        """Positive inputs where signed ones give NaN, so that comparing says something."""
        fresh = self._tensors(False) if self._rewrites_inputs else tensors
        _, outputs = self._first_run(function, fresh)
        arguments = [self._program.arguments[i] for i in self._program.outputs]
        bad = size = 0
        for argument, array in zip(arguments, outputs, strict=True):
            if argument.is_float:
                bad += array.size - int(np.isfinite(verify.widen(array)).sum())
                size += array.size
        if bad > _NONSENSE * size:
            self._inputs = None
            return self._tensors(True), True
        return (self._tensors(False) if self._rewrites_inputs else tensors), False

    @property
    def _rewrites_inputs(self) -> bool:
        return any(a.reads and a.writes for a in self._program.arguments)

    def _time(
        self, runtime: Any, function: Any, tensors: list[Any]
    ) -> tuple[Outcome, list[Any] | None]:
        limits, kernel = self._env.setup.limits, self._env.kernel
        before = kernel.seconds() if kernel else 1.0
        switches = _forced_switches()
        first_s, outputs = self._first_run(function, tensors)
        if self._on_cpu and _forced_switches() != switches:  # we were preempted
            begin = time.perf_counter()
            function(*tensors)
            first_s = min(first_s, time.perf_counter() - begin)
        incumbent_s = self._work.incumbent_s
        meter = EnergyMeter()
        meter.start()
        samples = timing.sample(
            lambda number, repeat: (
                runtime.time_evaluator("main", self._device, number=number, repeat=repeat)(
                    *tensors
                ).results
            ),
            first_s,
            # The incumbent's time is drift-corrected, the samples are not yet.
            incumbent_s=incumbent_s and incumbent_s * before / self._env.reference_s,
            repeats=_BASELINE_REPEATS if self._work.is_baseline else limits.repeats,
            budget_s=limits.budget_s,
        )
        joules = meter.stop()
        after = kernel.seconds() if kernel else 1.0
        outcome = Outcome(
            Status.OK,
            samples=samples.seconds,
            drift=(before + after) / 2 / self._env.reference_s,
            noisy=abs(before - after) > _NOISY * min(before, after),
            energy_j=joules / samples.runs if joules is not None else None,
        )
        return outcome, None if samples.slow else outputs

    def _check(
        self,
        outcome: Outcome,
        outputs: list[Any] | None,
        reference: verify.Reference | None,
        positive: bool,
    ) -> Outcome:
        """Compare with the reference; the first baseline becomes the reference."""
        if outputs is None:
            return outcome
        if reference is None:
            if not self._work.is_baseline:
                return replace(outcome, detail=NO_REFERENCE)
            self._env.store.put(self._program.task_id, outputs, positive)
            return replace(outcome, verified=True, max_abs_err=0.0)
        worst, right = 0.0, len(outputs) == len(reference.outputs)
        for index, got, want in zip(
            self._program.outputs, outputs, reference.outputs, strict=False
        ):
            ok, error = verify.compare(
                verify.widen(got),
                want,
                self._program.arguments[index].dtype,
                self._program.reduction,
                self._program.has_floats,
            )
            right, worst = right and ok, max(worst, error)
        if right:
            return replace(outcome, verified=True, max_abs_err=worst)
        detail = f"outputs differ from the unscheduled program's by up to {worst:.3g}"
        return replace(outcome, status=Status.WRONG_OUTPUT, detail=detail, max_abs_err=worst)


def _forced_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "failed" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1][:300]
