"""`tlmd measure`: measure one recorded candidate alone, and print its schedule.

It answers why a candidate failed, or why it is slow.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tlmd.data.computation import DecisionKind, OpenDecision
from tlmd.data.config import Config
from tlmd.data.errors import BadInput
from tlmd.data.types import Decision, MeasureInput, Outcome, Record, Status, Task
from tlmd.measure.cores.core_plan import plan_cores
from tlmd.measure.measurer import Measurer
from tlmd.records.store import RecordStore
from tlmd.space.hardware.target import resolve
from tlmd.space.space import InvalidCandidate, TaskSpace


@dataclass(frozen=True)
class MeasuredRecord:
    """A record, its schedule, and what measuring it gave now."""

    task: Task
    record: Record
    decisions: tuple[str, ...]
    """One line per open decision of the sketch."""
    schedule: str
    """The schedule's instructions as Python, as TVM prints them."""
    program: str
    """The final program as TVMScript; empty where TVM refuses the candidate."""
    outcome: Outcome

    def document(self) -> dict[str, Any]:
        """The document of ``--json``."""
        return {
            "id": self.record.candidate.id,
            "task": self.task.name,
            "target": self.task.target.spec,
            "sketch": self.record.candidate.sketch,
            "decisions": list(self.decisions),
            "schedule": self.schedule,
            "program": self.program,
            "recorded": _outcome(self.record.outcome),
            "now": _outcome(self.outcome),
        }

    def text(self, verbose: bool) -> str:
        """The text for the terminal; `verbose` adds the whole program."""
        candidate = self.record.candidate
        parts = [
            f"{candidate.id}  {self.task.name} on {self.task.target.spec}",
            f"sketch {candidate.sketch}",
            *(f"  {line}" for line in self.decisions),
            "",
            self.schedule.strip() or "TVM refuses the schedule",
            "",
        ]
        if verbose and self.program:
            parts += [self.program.strip(), ""]
        recorded = f"{_summary(self.record.outcome)} (batch {self.record.batch})"
        parts += [f"recorded  {recorded}", f"now       {_summary(self.outcome)}"]
        if self.outcome.ok and not self.record.outcome.ok:
            parts.append("It works now: its failure came from that moment, not from the program.")
        return "\n".join(parts)


def measure_record(state_dir: Path, prefix: str, config: Config) -> MeasuredRecord:
    """Measure the candidate whose id begins with `prefix`, on this machine's slot.

    Nothing is added to the store. Where a daemon uses the slot, this waits for it. Raises
    `BadInput` for an unknown or ambiguous id and for a record of another kind of machine, and
    `Failed` where the measuring server cannot be started.
    """
    task, record = _find(state_dir, prefix)
    space = TaskSpace(task)
    candidate = record.candidate
    decisions = _decisions(space, record)
    schedule, program, refusal = _apply(space, record)
    if refusal is not None:
        return MeasuredRecord(task, record, decisions, schedule, "", refusal)
    layout = plan_cores(run=task.target.cores)
    given = MeasureInput(candidate.id, space.trace_json(candidate))
    with Measurer(layout, state_dir / "references", config.measure) as measurer:
        (outcome,) = measurer.measure(task, [given])
    return MeasuredRecord(task, record, decisions, schedule, program, outcome)


def _find(state_dir: Path, prefix: str) -> tuple[Task, Record]:
    with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
        records = store.find_records(prefix)
        tasks = {task.key: task for task in store.tasks()}
    ids = {record.candidate.id for record in records}
    if not ids:
        raise BadInput(f"no record begins with {prefix!r}; `tlmd records list` shows the ids")
    if len(ids) > 1:
        raise BadInput(f"{len(ids)} records begin with {prefix!r}; give more digits of the id")
    record = records[0]
    task = tasks.get((record.candidate.task_id, record.fingerprint))
    if task is None or not _is_here(task):
        raise BadInput(f"record {prefix} is of another kind of machine; measure it there")
    return task, record


def _is_here(task: Task) -> bool:
    """Whether the task was measured on this kind of machine."""
    target = task.target
    return target.device != "cpu" or resolve(target.spec).fingerprint == target.fingerprint


def _decisions(space: TaskSpace, record: Record) -> tuple[str, ...]:
    """The open decisions of the sketch and what the candidate decides."""
    if record.candidate.sketch >= len(space.sketches):
        return ("this sketch no longer exists",)
    lines = []
    pairs = zip(
        space.sketches[record.candidate.sketch].open_decisions,
        record.candidate.decisions,
        strict=False,
    )
    for decision, value in pairs:
        about = f"block {decision.block}" if decision.block >= 0 else ""
        if decision.extent:
            about += f", iterator {decision.iterator} of extent {decision.extent}"
        lines.append(
            f"{decision.kind:<10}{_value(decision, value):<24}{about.strip(', ')}".rstrip()
        )
    return tuple(lines)


def _value(decision: OpenDecision, value: Decision) -> str:
    """A decision, in words where the number alone says little."""
    if decision.kind is DecisionKind.CATEGORY and value[0] < len(decision.options):
        return f"{decision.options[value[0]]} (option {value[0]})"
    if decision.kind is DecisionKind.PARALLEL and value == (0,):
        return "not parallel"
    if decision.kind is DecisionKind.LOCATION:
        return {-2: "inline", -1: "root"}.get(value[0], f"loop {value[0]}")
    return " x ".join(map(str, value))


def _apply(space: TaskSpace, record: Record) -> tuple[str, str, Outcome | None]:
    """Schedule and program, or the outcome that says why TVM refuses the candidate."""
    schedule = ""
    try:
        schedule = "\n".join(map(str, space.schedule(record.candidate).trace.as_python()))
        return schedule, str(space.finish(record.candidate).mod.script()), None
    except (InvalidCandidate, IndexError) as error:
        return schedule, "", Outcome(Status.INVALID, detail=str(error))


def _outcome(outcome: Outcome) -> dict[str, Any]:
    document = asdict(outcome)
    return {**document, "status": str(outcome.status), "samples": list(outcome.samples)}


def _summary(outcome: Outcome) -> str:
    """One line: the status, and the time with its interval or the reason of the failure."""
    if not outcome.ok:
        return f"{outcome.status}: {outcome.detail}"
    interval = f"{outcome.low * 1e6:.1f} to {outcome.high * 1e6:.1f} µs"
    checked = "verified" if outcome.verified else outcome.detail or "not verified"
    stages = ", ".join(
        f"{name} {seconds * 1e3:.0f} ms"
        for name, seconds in asdict(outcome.timing).items()
        if seconds >= 1e-3
    )
    return f"{outcome.seconds * 1e6:.1f} µs ({interval}), {checked}; {stages}"
