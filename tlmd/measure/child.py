"""What a forked child does with one candidate: build, wait for the slot, time, check, report.

The child of a single-threaded server inherits TVM, the parsed task and its inputs. It ends with
`os._exit`, so nothing of the server's is flushed or closed twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tlmd.measure import noise, sandbox, timing, verify
from tlmd.measure.energy import EnergyMeter
from tlmd.measure.executable import Executable
from tlmd.measure.program import Program
from tlmd.measure.protocol import NO_REFERENCE, Setup, Stage, Verdict, Work, send
from tlmd.measure.reference import ReferenceKernel
from tlmd.space.schedule import InvalidCandidate, build_module
from tlmd.types import Outcome, Status, Timing

_SWINGS = 1.10  # change of the machine's speed while a candidate was timed from which it is noisy
_NONSENSE = 0.10  # share of NaN and infinity in the reference from which positive inputs are tried
_BASELINE_REPEATS, _BASELINE_S = 3, 0.2


FirstRun = tuple[float, list[Any]]
"""Seconds and outputs of a program's first run."""


@dataclass(frozen=True)
class Environment:
    """What every child inherits from the server."""

    setup: Setup
    target: Any
    store: verify.ReferenceStore
    kernel: ReferenceKernel | None
    reference_s: float
    lock_path: Path

    def drift(self) -> float:
        """How slow the machine is now; 1.0: as when the server started."""
        return self.kernel.seconds() / self.reference_s if self.kernel else 1.0


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
        send(report_fd, Verdict(outcome, time.perf_counter()))


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

    def blame(self, error: Exception) -> Status:
        if sandbox.says_out_of_memory(str(error)):
            return Status.OUT_OF_MEMORY
        return Status.RUN_ERROR if self._built else Status.BUILD_ERROR

    def measure(self) -> Outcome:
        module = self._schedule()
        self._watch.lap("schedule")
        executable = build(self._env, self._program, module)
        self._built = True
        self._watch.lap("build")
        reference = self._env.store.get(self._program.task_id)
        positive = reference.positive if reference else False
        executable.allocate(self._inputs, positive)
        self._watch.lap("allocate")
        send(self._report_fd, Stage("waiting"))
        with slot(self._env):
            self._watch.lap("wait")
            send(self._report_fd, Stage("running"))
            first = self._first_run(executable)
            if self._work.is_baseline and reference is None:
                first, positive = self._sensible(executable, first)
            outcome, outputs = self._time(executable, first)
            self._watch.lap("run")
        send(self._report_fd, Stage("checking"))
        outcome = self._check(outcome, outputs, reference, positive)
        self._watch.lap("check")
        return outcome

    def _schedule(self) -> Any:
        if not self._work.is_baseline:
            return build_module(self._program.module, self._work.trace, self._env.target)
        if self._env.setup.target.device == "cpu":
            return self._program.module
        with self._env.target:  # a GPU cannot run what is bound to no thread
            return tvm.s_tir.transform.DefaultGPUSchedule()(self._program.module)

    def _first_run(self, executable: Executable) -> FirstRun:
        switches = _forced_switches()
        seconds, outputs = executable.first_run()
        if _forced_switches() != switches and not self._work.is_baseline:  # we were preempted
            seconds = min(seconds, executable.once())
        return seconds, outputs

    def _sensible(self, executable: Executable, first: FirstRun) -> tuple[FirstRun, bool]:
        """Take positive inputs where signed ones give NaN, so that comparing says something."""
        arguments = [self._program.arguments[i] for i in self._program.outputs]
        bad = size = 0
        for argument, array in zip(arguments, first[1], strict=True):
            if argument.is_float:
                bad += array.size - int(np.isfinite(verify.widen(array)).sum())
                size += array.size
        if bad <= _NONSENSE * size:
            return first, False
        executable.allocate(None, positive=True)
        return self._first_run(executable), True

    def _time(self, executable: Executable, first: FirstRun) -> tuple[Outcome, list[Any] | None]:
        limits, drift = self._env.setup.limits, self._env.drift
        before = drift()
        if self._work.is_baseline:  # may take seconds, and nobody needs to know to the percent
            race = timing.Race(repeats=_BASELINE_REPEATS, budget_s=_BASELINE_S)
        else:
            race = timing.Race(self._work.incumbent_s, limits.repeats, limits.budget_s)
        meter = EnergyMeter()
        meter.start()
        found = timing.sample(executable.run, drift, first[0], race)
        joules = meter.stop()
        drifts = [before, *found.drifts]
        return outcome_of(
            found.seconds, found.drifts, max(drifts) / min(drifts), joules, found.runs
        ), None if found.slow else first[1]

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


def build(env: Environment, program: Program, module: Any) -> Executable:
    """Compile a scheduled module as TVM's users do, but for the checks of its arguments."""
    # Arguments are ours and right; building their checks takes longer than many a program.
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        runtime = tvm.compile(module, env.target).jit()
    device = tvm.cpu() if env.kernel else tvm.device(env.setup.target.device)
    return Executable(runtime, program, device, env.setup.limits.cold)


@contextlib.contextmanager
def slot(env: Environment) -> Iterator[None]:
    """The slot, exclusively; death gives it back because the descriptor is our own."""
    lock = os.open(env.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if env.setup.lend:
            sandbox.confine_siblings(env.setup.build)
        os.sched_setaffinity(0, env.setup.run)
        yield
        os.sched_setaffinity(0, env.setup.build)
        if env.setup.lend:  # nobody times now, so others may build there
            sandbox.confine_siblings((*env.setup.build, *env.setup.run))
    finally:
        os.close(lock)


def outcome_of(
    samples: Sequence[float], drifts: Sequence[float], swing: float, joules: float | None, runs: int
) -> Outcome:
    """The outcome of a program that ran; `swing` is how much the machine's speed changed."""
    found = noise.estimate(samples, drifts)
    return Outcome(
        Status.OK,
        samples=tuple(samples),
        drift=statistics.fmean(drifts),
        noisy=found.spread > noise.NOISY or swing > _SWINGS,
        energy_j=joules / runs if joules is not None else None,
        estimate=found.seconds,
        low=found.low,
        high=found.high,
    )


def _forced_switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "failed" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1][:300]
