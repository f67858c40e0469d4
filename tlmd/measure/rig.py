"""What every child inherits from the server and does alike: build, take the slot, sum up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm

from tlmd.measure import noise, sandbox, verify
from tlmd.measure.cores import spread, threads
from tlmd.measure.executable import Executable
from tlmd.measure.noise import Reading
from tlmd.measure.program import Program
from tlmd.measure.protocol import Setup, Stage, send
from tlmd.measure.reference import Gauge
from tlmd.measure.timing import Samples
from tlmd.types import Outcome, Status

_BIG_CORES = 1  # TVM's word for all it may use
_SWINGS = 1.10  # change of the machine's speed while a candidate was timed from which it is noisy


@dataclass(frozen=True)
class Environment:
    """What every child inherits from the server."""

    setup: Setup
    target: Any
    store: verify.ReferenceStore
    gauge: Gauge | None
    lock_path: Path

    def read(self) -> Reading:
        """How slow the machine is now."""
        return self.gauge.read() if self.gauge else Reading()


@dataclass
class Stopwatch:
    """Seconds per stage, by the field names of `Timing`."""

    last: float
    stages: dict[str, float] = field(default_factory=dict)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self.last
        self.last = now


@dataclass
class Workplace:
    """What a child works with: what it inherited, its task, and where it says how far it is.

    ``built`` says that an error is the program's and not the compiler's.
    """

    env: Environment
    program: Program
    inputs: list[Any] | None
    report_fd: int
    watch: Stopwatch
    built: bool = False

    def prepare(self, modules: Sequence[Any], positive: bool) -> list[Executable]:
        """Compile scheduled modules as TVM's users do, and give them their arguments."""
        self.watch.lap("schedule")
        found = [self._build(module) for module in modules]
        self.built = True
        self.watch.lap("build")
        for executable in found:
            executable.allocate(self.inputs, positive)
        self.watch.lap("allocate")
        return found

    def _build(self, module: Any) -> Executable:
        setup = self.env.setup
        # Arguments are ours and right; building their checks takes longer than many a program.
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            runtime = tvm.compile(module, self.env.target).jit()
        device = tvm.cpu() if self.env.gauge else tvm.device(setup.target.device)
        return Executable(runtime, self.program, device, setup.limits.cold)

    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """The slot is ours."""
        send(self.report_fd, Stage("waiting"))
        with _slot(self.env):
            self.watch.lap("wait")
            send(self.report_fd, Stage("running"))
            yield
            self.watch.lap("run")


@contextlib.contextmanager
def _slot(env: Environment) -> Iterator[None]:
    """The slot, exclusively; death gives it back because the descriptor is our own."""
    lock = os.open(env.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if env.setup.lend:
            sandbox.confine_siblings(env.setup.build)
        os.sched_setaffinity(0, env.setup.run)
        _pin_threads(env)
        yield
        os.sched_setaffinity(0, env.setup.build)
        if env.setup.lend:  # nobody times now, so others may build there
            sandbox.confine_siblings((*env.setup.build, *env.setup.run))
    finally:
        os.close(lock)


def _pin_threads(env: Environment) -> None:
    """Start TVM's pool, and put each of its threads on a core of the slot of its own."""
    if len(env.setup.run) > 1 and env.gauge:
        # By itself the pool would start with the first parallel loop, after it was pinned.
        tvm.get_global_func("runtime.config_threadpool")(_BIG_CORES, len(env.setup.run))
        spread(env.setup.run, threads() - {os.getpid()})


def swing(readings: Sequence[Reading]) -> float:
    """How much the machine's speed changed, as a ratio."""
    return max(r.core for r in readings) / min(r.core for r in readings)


def outcome_of(found: Samples, swing: float, joules: float | None) -> Outcome:
    """The outcome of a program that ran; `swing` is how much the machine's speed changed."""
    told = found.estimate
    return Outcome(
        Status.OK,
        samples=tuple(found.seconds),
        drift=found.drift,
        # One or two repeats show that a candidate is slow; how slow is not what they are for.
        noisy=(told.spread > noise.NOISY and len(found.seconds) > 2) or swing > _SWINGS,
        energy_j=joules / found.runs if joules is not None else None,
        estimate=told.seconds,
        low=told.low,
        high=told.high,
    )
