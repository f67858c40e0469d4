"""`tlmd tune`: one model from end to end in this process.

model -> tasks -> TLM -> measured candidates -> verified best programs -> compiled model
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tlmd.config import Config
from tlmd.daemon import summary
from tlmd.daemon.state import make_state_dir
from tlmd.errors import BadInput, Failed
from tlmd.generate.generator import Generator, Policy, Proposal
from tlmd.measure.client import Job, Measurer
from tlmd.measure.cores import CoreLayout, plan_cores
from tlmd.measure.peak import peak_gflops
from tlmd.measure.protocol import Limits
from tlmd.model import checkpoint as checkpoints
from tlmd.pipeline.tuning import Progress, TaskState, Tuning
from tlmd.records import metaschedule
from tlmd.records.store import RecordStore
from tlmd.space import target as targets
from tlmd.types import Baseline, Outcome, TargetInfo, Task
from tlmd.workloads import frontends, lowering, whole_model

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Request:
    """What `tlmd tune` was asked for. `time_budget` is seconds for measuring, None for no limit."""

    model: str
    input_shapes: Shapes | None = None
    target: str = "native"
    time_budget: float | None = None
    out: Path | None = None
    state_dir: Path = Path()


@dataclass(frozen=True)
class TuneResult:
    """What came of a job: `summary` as in ``summary.json``, and where the files are.

    ``pytorch_ms`` is the original in PyTorch eager mode on the same cores, None where it is not a
    PyTorch model or nothing was exported; ``interrupted`` says that the job was stopped early.
    """

    summary: dict[str, Any]
    out: Path | None
    pytorch_ms: float | None
    interrupted: bool


@dataclass
class Display:
    """What a job tells while it runs; the defaults say nothing."""

    stage: Callable[[str], None] = field(default=lambda text: None)
    progress: Callable[[Progress], None] = field(default=lambda progress: None)
    stopping: Callable[[], None] = field(default=lambda: None)


class MeasuringDevice:
    """The measurer as the tuning loop sees it."""

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer

    def baseline(self, task: Task) -> Baseline:
        return self._measurer.baseline(task)

    def measure(
        self, task: Task, proposals: Iterable[Proposal], incumbent_s: float | None
    ) -> Iterator[tuple[Proposal, Outcome]]:
        by_id = {p.candidate.id: p for p in proposals}
        jobs = (Job(task, p.candidate, p.trace, incumbent_s) for p in by_id.values())
        for job, outcome in self._measurer.measure(jobs):
            yield by_id[job.candidate.id], outcome


def run(request: Request, config: Config, display: Display | None = None) -> TuneResult:
    """Tune `request.model`; see `TuneResult`.

    Raises `BadInput` for what the user gave and `Failed` where nothing can be exported. SIGINT and
    SIGTERM finish the batch in flight and keep everything; a second one ends at once.
    """
    display = display or Display()
    begin = time.monotonic()
    cores = plan_cores(run=config.measure.run_cores or None)
    target = targets.resolve(request.target, len(cores.run))
    frontends.check(request.model)
    _check_out(request.out)
    state = make_state_dir(request.state_dir)
    with RecordStore(state / "records.sqlite") as store, _yielding(cores):
        with _measurer(request, config, target, cores) as (measurer, started):
            display.stage("loading the model")
            source = frontends.load_model(request.model, request.input_shapes)
            tvm_target = targets.tvm_target(target)
            display.stage("lowering it to tasks")
            lowered = lowering.lower(source.module, tvm_target)
            tasks = lowering.extract(lowered, target)
            if not tasks:
                raise Failed(f"{request.model} has no tensor program to tune")
            store.add_tasks(tasks)
            generator = _generator(config)
            started.result()
            display.stage("measuring")
            with _stoppable(display) as stop:
                tuning = _tuning(tasks, store, generator, measurer, config, display)
                tuning.stop = stop.is_set
                if request.time_budget is not None:
                    tuning.deadline = time.monotonic() + request.time_budget
                tuning.run()
        result = summary.Result(
            request.model,
            target,
            generator.version,
            tuning.states,
        )
        if stop.is_set():
            return TuneResult(result.summary(time.monotonic() - begin, None), None, None, True)
        display.stage("comparing with the machine's peak")
        result.peak_gflops = peak_gflops(target, cores.run) if target.device == "cpu" else 0.0
        display.stage("compiling and timing the whole model")
        times, compiled = _finish(request, source, lowered, generator, result, cores)
        document = result.summary(time.monotonic() - begin, (times, compiled))
        if request.out is not None:
            summary.write(request.out, document, times.pytorch_ms)
        return TuneResult(document, request.out, times.pytorch_ms, False)


def _check_out(out: Path | None) -> None:
    """Find out before hours of measuring that the results cannot be written."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise BadInput(
            f"cannot write to --out {out}: {error.strerror}; choose another folder"
        ) from error


@contextmanager
def _yielding(cores: CoreLayout) -> Iterator[None]:
    """Keep this process and its threads off the run cores meanwhile."""
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(max(1, len(cores.build)))
    for thread in threading.enumerate():
        if thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, set(cores.build))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


@contextmanager
def _measurer(
    request: Request, config: Config, target: TargetInfo, cores: CoreLayout
) -> Iterator[tuple[Measurer, Future[None]]]:
    """The measurer, its server starting in the background while the model is loaded."""
    m = config.measure
    limits = Limits(
        build_s=m.build_timeout,
        run_s=m.run_timeout,
        budget_s=m.budget,
        baseline_s=m.baseline_timeout,
        memory_bytes=m.memory_bytes,
        repeats=m.repeats,
    )
    measurer = Measurer(target, cores, request.state_dir / "references", limits, m.builders, m.lend)
    try:
        with ThreadPoolExecutor(1, "measure") as pool:
            started = pool.submit(measurer.start)
            try:
                yield measurer, started
            finally:
                measurer.close()  # ends a start that is still going on
    finally:
        measurer.close()


def _generator(config: Config) -> Generator:
    g = config.generate
    source = Path(g.checkpoint) if g.checkpoint else checkpoints.SHIPPED
    policy = Policy(g.over, g.refined, g.explore, g.incumbents, g.temperature)
    return Generator(checkpoints.load(source), policy, config.tune.seed)


def _tuning(
    tasks: list[Task],
    store: RecordStore,
    generator: Generator,
    measurer: Measurer,
    config: Config,
    display: Display,
) -> Tuning:
    states = [
        TaskState(
            task,
            store.records(task.id, task.target.fingerprint),
            store.baseline(task.id, task.target.fingerprint),
        )
        for task in tasks
    ]
    device = MeasuringDevice(measurer)
    tuning = Tuning(states, generator, device, store, config.tune.trials, config.tune.batch)
    tuning.on_progress = display.progress
    return tuning


@contextmanager
def _stoppable(display: Display) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set once; the second signal acts as it would have."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, _frame: Any) -> None:
        stop.set()
        display.stopping()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _finish(
    request: Request,
    source: Any,
    lowered: Any,
    generator: Generator,
    result: summary.Result,
    cores: CoreLayout,
) -> tuple[whole_model.WholeModelTimes, lowering.Compiled]:
    """Export the records, compile the model with them, and time it against the untuned one."""
    target = targets.tvm_target(result.target)
    with tempfile.TemporaryDirectory(prefix="tlmd-") as scratch_name:
        scratch = Path(scratch_name)
        out = request.out or scratch / "out"
        database = metaschedule.create(out)
        for row in result.rows():
            candidate = row.record and row.record.candidate
            trace = (
                generator.space(row.task).trace_json(candidate)
                if candidate
                else metaschedule.UNSCHEDULED
            )
            metaschedule.commit(database, row.task, trace, row.seconds, target)
        metaschedule.check_written(out)
        compiled = lowering.compile_model(lowered, target, database)
        if compiled.missing:
            raise Failed(f"records were not applied to {', '.join(compiled.missing[:5])}")
        tuned = whole_model.export(compiled.executable, out, source.inputs)
        plain = lowering.compile_model(lowered, target)
        untuned = whole_model.export(plain.executable, scratch, source.inputs)
        times = whole_model.measure(
            untuned,
            tuned,
            request.model,
            request.input_shapes,
            source.random_inputs(0),
            cores.run,
            scratch,
        )
    return times, compiled
