"""What every child needs: what it inherits from the server, how it builds, how it gets the slot."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm

from tlmd.alternatives import catalogue
from tlmd.alternatives.prefetch import with_prefetches
from tlmd.data.config import MeasureConfig
from tlmd.data.types import Outcome, Status
from tlmd.measure.cores import suspension
from tlmd.measure.cores.core_plan import spread, threads
from tlmd.measure.cores.slot_lock import exclusively
from tlmd.measure.protocol import ChildStage, Setup, Stage, send
from tlmd.measure.server import sandbox, verify
from tlmd.measure.server.executable import Executable
from tlmd.measure.server.program import Program
from tlmd.measure.timing import noise
from tlmd.measure.timing.noise import Reading
from tlmd.measure.timing.reference import DriftMonitor
from tlmd.measure.timing.timing import Samples
from tlmd.processes import stage_times
from tlmd.space.hardware.target import for_building

_BIG_CORES = 1  # TVM's name for all cores that it may use
_QUIET = 1.15  # times the reference kernel's time of a quiet machine
_LOOK_S = 0.1
_PRODUCTS_PER_LANE = {"float32": 1, "bfloat16": 2}
"""Products of a lane in one instruction, by the dtype that is multiplied."""
_MAX_SPEED_CHANGE = 1.10  # a time is noisy if the machine's speed changed by more meanwhile


@dataclass(frozen=True)
class ServerContext:
    """What every child inherits from the server."""

    setup: Setup
    config: MeasureConfig
    target: Any
    """The TVM target."""
    store: verify.ReferenceStore
    drift_monitor: DriftMonitor | None
    """None for a target that is not this CPU."""
    lock_path: Path
    """The file whose lock means: this process has the slot."""

    def read(self) -> Reading:
        """How slow the machine is now."""
        return self.drift_monitor.read() if self.drift_monitor else Reading()

    def wait_quiet(self) -> None:
        """Wait until nothing slows the slot, at most ``measure.wait_quiet`` seconds."""
        end = time.monotonic() + self.config.wait_quiet
        while time.monotonic() < end and self.read().core > _QUIET:
            time.sleep(_LOOK_S)


@dataclass
class Stopwatch:
    """Seconds per stage, by the field names of `Timing`."""

    last: float
    stages: dict[str, float] = field(default_factory=dict)
    last_cpu: float = field(default_factory=time.process_time)

    def lap(self, stage: str) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        seconds = now - self.last
        stage_times.note(f"measure: {stage}", time.time() - seconds, seconds, cpu - self.last_cpu)
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        self.last, self.last_cpu = now, cpu


@dataclass(frozen=True)
class LoadedProgram:
    """A task's unscheduled program and its arguments."""

    program: Program
    inputs: list[Any] | None = None
    """TVM tensors that the child inherits; None where it makes them itself."""


@dataclass
class ChildContext:
    """What one child works with."""

    server: ServerContext
    loaded: tuple[LoadedProgram, ...]
    """One for each input of the request; without inputs the one whose time is wanted."""
    report_fd: int
    """Where the child reports its stages and its outcomes."""
    stopwatch: Stopwatch
    built: bool = False
    """The program is compiled: an error from now on is an error of the program."""

    def least_s(self, program: Program) -> float:
        """Seconds that the multiply-adds of a task take at least; 0 if that is not known."""
        monitor, setup = self.server.drift_monitor, self.server.setup
        faster = _PRODUCTS_PER_LANE.get(program.multiplied)
        alternative = catalogue.declared(program.task.alternative)
        if monitor is None or faster is None or alternative.by_matrix_unit:
            return 0.0
        return program.task.flops / (faster * monitor.gflops * 1e9 * len(setup.run))

    def prepare(
        self, scheduled: Sequence[tuple[LoadedProgram, Any]], positive: bool
    ) -> list[Executable]:
        """Compile scheduled modules as TVM's users do, and give them their arguments."""
        self.stopwatch.lap("schedule")
        executables = [self._build(loaded.program, module) for loaded, module in scheduled]
        self.built = True
        self.stopwatch.lap("build")
        for executable, (loaded, _) in zip(executables, scheduled, strict=True):
            executable.allocate(loaded.inputs, positive)
        self.stopwatch.lap("allocate")
        return executables

    def _build(self, program: Program, module: Any) -> Executable:
        server = self.server
        # The arguments are known to be right; building checks for them would take longer than
        # building many programs.
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            runtime = tvm.compile(with_prefetches(module), for_building(server.target)).jit()
        device = tvm.cpu() if server.drift_monitor else tvm.device(server.setup.target.device)
        return Executable(runtime, program, device, server.config.cache == "cold")

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Have the slot during the block."""
        send(self.report_fd, Stage(ChildStage.WAITING))
        with _slot(self.server):
            send(self.report_fd, Stage(ChildStage.SETTLING))
            self.server.wait_quiet()
            self.stopwatch.lap("wait")
            send(self.report_fd, Stage(ChildStage.RUNNING))
            yield
            self.stopwatch.lap("run")
            # Sent before the slot is given back: the child that has it next stops this one, and the
            # server would wait for a stopped child that it still takes for one that is timed.
            send(self.report_fd, Stage(ChildStage.CHECKING))


@contextlib.contextmanager
def _slot(server: ServerContext) -> Iterator[None]:
    """The slot, exclusively; on its cores."""
    setup, shares_cores = server.setup, server.config.build_on_run_cores
    with exclusively(server.lock_path):
        if setup.shared:  # the server lets them go on
            suspension.suspend([*suspension.siblings(), *suspension.joined(Path(setup.cache_dir))])
        elif shares_cores:
            sandbox.confine_siblings(setup.build)
        os.sched_setaffinity(0, setup.run)
        _pin_threads(server)
        yield
        os.sched_setaffinity(0, setup.build)
        if shares_cores:  # nothing is timed now, so the other children may build there
            sandbox.confine_siblings((*setup.build, *setup.run))


def _pin_threads(server: ServerContext) -> None:
    """Start TVM's thread pool, and pin each of its threads to one core of the slot."""
    cores = server.setup.run
    if len(cores) > 1 and server.drift_monitor:
        # TVM itself would start the pool in the first parallel loop, which is too late to pin it.
        before = threads()
        tvm.get_global_func("runtime.config_threadpool")(_BIG_CORES, len(cores))
        spread(cores, threads() - before)


def speed_change(readings: Sequence[Reading]) -> float:
    """How much the machine's speed changed, as a ratio of at least 1."""
    return max(r.core for r in readings) / min(r.core for r in readings)


def outcome_of(samples: Samples, speed_change: float, joules: float | None) -> Outcome:
    """The outcome of a program that ran; `joules` is for all its runs."""
    estimate = samples.estimate
    # One or two repeats show that a candidate is slow; they need not show how slow it is.
    is_wide = estimate.spread > noise.NOISY and len(samples.seconds) > 2
    return Outcome(
        Status.OK,
        samples=tuple(samples.seconds),
        drift=samples.drift,
        noisy=is_wide or speed_change > _MAX_SPEED_CHANGE,
        energy_j=joules / samples.runs if joules is not None else None,
        estimate=estimate.seconds,
        low=estimate.low,
        high=estimate.high,
    )
