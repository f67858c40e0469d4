"""The process that holds a user's model during `tlmd tune` and `tlmd check`.

It loads the model, lowers it, compares its outputs, and waits. When the job is done, it compiles
the model with the best programs and times it. `model_process` is the other end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data import wire
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo, Task
from tlmd.processes import forks
from tlmd.processes.guarded_child import Channel, serve
from tlmd.processes.stage_times import stage
from tlmd.records.task_file import save_tasks

if TYPE_CHECKING:
    from tlmd.export.instant import InstantPrograms
    from tlmd.lowering.acceptance import Accepted


@dataclass(frozen=True)
class AcceptRequest:
    """The first message: which model, for which target."""

    spec: ModelSpec
    target: str

    run: tuple[int, ...]
    """The cores that the model will run on."""

    build: tuple[int, ...]
    """The cores that stay free for this process while others are timed."""

    is_slot_busy: bool
    """Something is timed on the run cores already."""

    tasks: str
    """The file to which the tasks are written. Empty: none."""

    after_crash: str = ""
    """How an earlier process for this model was ended by the compiler. Empty: there was none."""

    records: str = ""
    """The state directory whose records choose the programs of a model that is compiled without
    measuring. Empty: it will be measured."""

    checkpoint: str = ""
    """The checkpoint that chooses the other programs. Empty: the one that ships."""


@dataclass(frozen=True)
class DeliverRequest:
    """The second message: what to do with the records."""

    state_dir: str
    out: str
    elapsed_s: float
    """How long the job has taken so far."""
    interrupted: bool
    """The user stopped the job: nothing is compiled."""


def handle(channel: Channel) -> None:
    """Answer the messages of `model_process`."""
    message = channel.receive()
    if message is None:
        return
    request = wire.unpack(AcceptRequest, message[1])
    if not request.after_crash:
        forks.allow()
    if request.is_slot_busy:
        _leave_run_cores(request.build)
    with stage("imports"):
        from tlmd.lowering import acceptance
        from tlmd.space.hardware import host_cpu
        from tlmd.space.hardware import target as targets

    target = targets.resolve(request.target, len(request.run))
    if request.tasks:  # they are to be measured
        host_cpu.check(target)
    with tempfile.TemporaryDirectory(prefix="tlmd-") as folder:
        programs = _instant_programs(request, target, Path(folder))
        accepted = acceptance.accept(
            request.spec, target, channel.stage, request.after_crash, programs
        )
        with stage("alternatives"):
            parts = [part for model in accepted.models for part in model.lowered]
            tasks = programs.tasks(parts) if programs else accepted.tasks
        channel.send("accepted", _report(request, accepted, tasks, target))
        _leave_run_cores(request.build)
        message = channel.receive()
        if message is not None:
            wanted = wire.unpack(DeliverRequest, message[1])
            _deliver(channel, accepted, programs, tasks, target, wanted)


def _instant_programs(
    request: AcceptRequest, target: TargetInfo, folder: Path
) -> InstantPrograms | None:
    if not request.records:
        return None
    from tlmd.export.instant import InstantPrograms
    from tlmd.export.program_source import ProgramSource

    source = ProgramSource(Path(request.records), request.checkpoint)
    return InstantPrograms(source, target, folder)


def _report(
    request: AcceptRequest, accepted: Accepted, tasks: list[Task], target: TargetInfo
) -> dict[str, Any]:
    from tlmd.export import reports

    direct = [task for task in tasks if not task.alternative]
    source = accepted.models[0].source
    if request.tasks:
        save_tasks(Path(request.tasks), tasks)
    inputs = [(i.name, list(i.shape), i.dtype) for i in source.inputs]
    report: dict[str, Any] = {
        "tasks": len(direct),
        "programs": sum(task.weight for task in direct),
        "flops": sum(task.flops * task.weight for task in direct),
        "inputs": inputs,
        "outputs": [path for path, _ in source.outputs.tensors()],
        "error": accepted.error,
        "seconds": accepted.seconds,
        "notes": list(accepted.notes),
        "target": asdict(target),
    }
    return report | reports.left_to_framework(accepted.models[0].flow)


def _deliver(
    channel: Channel,
    accepted: Accepted,
    programs: InstantPrograms | None,
    tasks: list[Task],
    target: TargetInfo,
    request: DeliverRequest,
) -> None:
    from tlmd.export import job_export
    from tlmd.records.store import RecordStore

    state_dir, models = Path(request.state_dir), accepted.models
    started_at = time.monotonic() - request.elapsed_s
    out = Path(request.out) if request.out else None
    if programs is not None:
        from tlmd.export import instant

        result = instant.deliver(accepted, programs, tasks, out, started_at)
        channel.send("delivered", result.to_plain())
        return
    states = []
    if tasks:  # without tasks no daemon has made the store
        with RecordStore(state_dir / "records.sqlite", read_only=True) as store:
            states = job_export.read_states(store, tasks)

    def before_timing() -> None:
        channel.send("compiled")  # the parent answers when nothing else runs any more
        channel.receive()

    if request.interrupted:
        result = job_export.interrupted(models[0].spec.name, states, target, started_at)
    else:
        result = job_export.deliver(
            models, states, target, state_dir, out, started_at, before_timing
        )
    channel.send("delivered", result.to_plain())


def _leave_run_cores(build: tuple[int, ...]) -> None:
    """Keep all threads of this process off the cores on which something is timed."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(max(1, len(build)))
    for thread in threading.enumerate():
        if thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, set(build))


if __name__ == "__main__":
    sys.exit(serve(handle))
