"""From records to files: compile a job's model with its best programs, time it, write it out.

Done in the process of whoever asks, from the store, with or without a daemon.
"""

from __future__ import annotations

import fcntl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlmd.daemon import jobs as files
from tlmd.daemon import summary
from tlmd.daemon.jobs import JobSpec
from tlmd.errors import BadInput, Failed
from tlmd.measure.cores import plan_cores, slot_lock
from tlmd.measure.peak import roof
from tlmd.measure.program import traffic
from tlmd.pipeline.jobs import TaskState
from tlmd.records import metaschedule
from tlmd.records.store import RecordStore
from tlmd.space import target as targets
from tlmd.space.space import TaskSpace
from tlmd.types import Shapes, TargetInfo, Task
from tlmd.workloads import frontends, lowering, whole_model
from tlmd.workloads.corpus import load_tasks


@dataclass(frozen=True)
class TuneResult:
    """What came of a job: `summary` as in ``summary.json``, and where the files are.

    ``pytorch_ms`` is the original in PyTorch eager mode on the same cores, None where it is not a
    PyTorch model or nothing was exported; ``interrupted`` says that the job was stopped early.
    ``limits`` names for each task what its ``peak_fraction`` is a share of: ``compute`` or
    ``memory``, whichever is nearer (the roofline).
    """

    summary: dict[str, Any]
    out: Path | None
    pytorch_ms: float | None
    interrupted: bool
    limits: tuple[str, ...] = ()


@dataclass
class Prepared:
    """A model and its tasks; `source` and `lowered` are those of the process that lowered it."""

    model: str
    input_shapes: Shapes | None
    source: Any
    lowered: Any
    tasks: list[Task]


def export(state_dir: Path, job_id: str, out: Path | None) -> TuneResult:
    """Compile and write what a job has found so far. Raises `BadInput` and `Failed`."""
    begin = time.monotonic()
    check_out(out)
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        spec = next((s for s, _ in files.stored(store) if s.id == job_id), None)
        if spec is None:
            raise BadInput(f"no job {job_id!r} in {state_dir}; `tlmd jobs` lists them")
        states = read_states(store, _tasks(spec))
    if not spec.model:
        raise BadInput("a corpus has no model to export; `tlmd checkpoints` lists what it made")
    prepared = prepare(spec.model, spec.input_shapes, states[0].task.target)
    return deliver(prepared, states, state_dir, out, begin)


def _tasks(spec: JobSpec) -> list[Task]:
    if not spec.tasks:
        raise Failed(f"the model of job {spec.id} is not lowered yet; wait for it")
    return load_tasks(Path(spec.tasks))


def check_out(out: Path | None) -> None:
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


def prepare(model: str, shapes: Shapes | None, target: TargetInfo) -> Prepared:
    """Load and lower a model in this process. Raises `BadInput` and `Failed`."""
    return lower(model, shapes, frontends.load_model(model, shapes), target)


def lower(model: str, shapes: Shapes | None, source: Any, target: TargetInfo) -> Prepared:
    """Lower a model that is loaded to its tasks. Raises `Failed` where it has none."""
    lowered = lowering.lower(source.module, targets.tvm_target(target))
    tasks = lowering.extract(lowered, target)
    if not tasks:
        raise Failed(f"{model} has no tensor program to tune")
    return Prepared(model, shapes, source, lowered, tasks)


def read_states(store: RecordStore, tasks: list[Task]) -> list[TaskState]:
    """What is known of the tasks."""
    return [TaskState(task, store.records(*task.key), store.baseline(*task.key)) for task in tasks]


def interrupted(model: str, states: list[TaskState], begin: float) -> TuneResult:
    """The result of a job that was stopped: nothing is compiled."""
    result = summary.Result(model, states[0].task.target, _version(states), states)
    return TuneResult(result.summary(time.monotonic() - begin, None), None, None, True)


def deliver(
    prepared: Prepared, states: list[TaskState], state_dir: Path, out: Path | None, begin: float
) -> TuneResult:
    """Compile, verify, time and write; `begin` (monotonic) is when the job began."""
    target = states[0].task.target
    result = summary.Result(prepared.model, target, _version(states), states)
    cores = plan_cores(run=target.cores).run
    with _the_slot(state_dir, cores):
        if target.device == "cpu":
            roofs = roof(target, cores)
            result.shares = {
                row.task.id: roofs.share(traffic(row.task), row.seconds) for row in result.rows()
            }
        times, compiled = _compile(prepared, result, out, cores)
    document = result.summary(time.monotonic() - begin, (times, compiled))
    limits = tuple(result.shares.get(s.task.id, (0.0, ""))[1] for s in states)
    if out is not None:
        summary.write(out, document, times.pytorch_ms, limits)
    return TuneResult(document, out, times.pytorch_ms, False, limits)


def _version(states: list[TaskState]) -> int:
    """The newest checkpoint that has written for these tasks."""
    return max((r.version for s in states for r in s.own), default=0)


@contextmanager
def _the_slot(state_dir: Path, cores: tuple[int, ...]) -> Iterator[None]:
    """Have the run cores to ourselves: candidates of other jobs wait meanwhile."""
    lock = slot_lock(state_dir / "references", cores)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(
    prepared: Prepared, result: summary.Result, out: Path | None, cores: tuple[int, ...]
) -> tuple[whole_model.WholeModelTimes, lowering.Compiled]:
    """Export the records, compile the model with them, and time it against the untuned one."""
    target = targets.tvm_target(result.target)
    source = prepared.source
    with tempfile.TemporaryDirectory(prefix="tlmd-") as scratch_name:
        scratch = Path(scratch_name)
        folder = out or scratch / "out"
        database = _database(folder, result, target)
        compiled = lowering.compile_model(prepared.lowered, target, database)
        if compiled.missing:
            raise Failed(f"records were not applied to {', '.join(compiled.missing[:5])}")
        tuned = whole_model.export(compiled.executable, folder, source.inputs)
        plain = lowering.compile_model(prepared.lowered, target)
        untuned = whole_model.export(plain.executable, scratch, source.inputs)
        times = whole_model.measure(
            untuned,
            tuned,
            prepared.model,
            prepared.input_shapes,
            source.random_inputs(0),
            cores,
            scratch,
        )
    return times, compiled


def _database(folder: Path, result: summary.Result, target: Any) -> Any:
    database = metaschedule.create(folder)
    for row in result.rows():
        trace = metaschedule.UNSCHEDULED
        if row.record is not None:
            trace = TaskSpace(row.task).trace_json(row.record.candidate)
        metaschedule.commit(database, row.task, trace, row.seconds, target)
    metaschedule.check_written(folder)
    return database
