"""Measuring without a gap: the free-running pipeline against a serial loop of the same actors.

Both tune the same model in one run, in turns of some tens of seconds, so that whatever else the
machine does hits both. Free-running is the daemon's own `Pipeline`: it measures, trains and writes
at once. The serial loop sends the very same orders to the very same actors, one kind at a time: it
has a batch written, measures it, trains on it, publishes, swaps, and has the next one written. They
share what is known of the tasks, so no candidate is measured twice, and the serial loop writes as
many candidates for each one measured as the free-running one has settled on.

``busy`` is the share of time in which a slot has at least one order, ``timed`` the one in which a
program is really run on it (the rest is building, checking and waiting). Rounds of the serial loop
count whole. Free-running training is cut short when a batch is due, though not before it had
`train.seconds`; the serial loop waits for its training and cuts it as soon as it had them, unless
``--whole-lessons`` are wanted. The steps that each took per record are listed, since they are not
the same; ``ratio_untaught`` is what is left of the ratio if the serial loop trained in no time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors import session
from benchmarks import report
from tlmd.config import Config, GenerateConfig, MeasureConfig, TuneConfig
from tlmd.daemon.intake import Intake, Intaker
from tlmd.measure.cores import plan_slots
from tlmd.pipeline.board import Rules
from tlmd.pipeline.jobs import Job
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import (
    Done,
    Event,
    Kind,
    MeasureOrder,
    SwapOrder,
    Trained,
    WriteOrder,
)
from tlmd.records.store import RecordStore
from tlmd.types import Status, Task

_STEP_S = 0.2


@dataclass
class Tally:
    """What one of the loops has done in its turns."""

    wall: float = 0.0
    busy: float = 0.0  # seconds in which a slot had an order
    timed: float = 0.0  # seconds in which programs ran
    records: int = 0
    failed: int = 0
    taught: float = 0.0  # seconds of serial rounds that went into training and publishing
    lessons: int = 0
    steps: int = 0

    def see(self, events: list[Event]) -> None:
        """Count what was answered."""
        for event in events:
            if not isinstance(event, Done):
                continue
            if isinstance(event.order, MeasureOrder) and isinstance(event.answer, tuple):
                self.records += len(event.answer)
                self.failed += sum(outcome.status is not Status.OK for outcome in event.answer)
                self.timed += sum(outcome.timing.run for outcome in event.answer)
            elif isinstance(event.answer, Trained):
                self.lessons += 1
                self.steps += event.answer.steps


class Loop:
    """One of the two: a pipeline of its own on the crew that both use.

    Handing out only what it is asked for, a `Pipeline` that is paused takes in what comes: the
    serial loop is made of one that never runs by itself.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.tally = Tally()

    @property
    def slots(self) -> list[str]:
        return [worker.name for worker in self.pipeline.board.of(Kind.MEASURER)]

    def step(self) -> None:
        """One step; what was answered is counted."""
        self.tally.see(self.pipeline.step(_STEP_S))

    def worked_s(self) -> float:
        """Seconds in which slots had orders, so far."""
        return sum(map(self.pipeline.board.worked_s, self.slots))

    def settle(self) -> None:
        """Let everything in flight come back, and publish what is trained; begin nothing."""
        board, learning = self.pipeline.board, self.pipeline.learning
        self.pipeline.paused = True
        learning.interrupt()
        while board.doing(WriteOrder, SwapOrder, MeasureOrder) or not learning.is_idle:
            learning.hand_out(-1)
            self.step()

    def take_over(self, other: Loop) -> None:
        """Go on where the other one has stopped."""
        board, theirs = self.pipeline.board, other.pipeline.board
        for name in board.workers.keys() - theirs.workers.keys():
            board.leave(name)
        last = other.pipeline.learning.last
        for worker in theirs.workers.values():
            board.join(worker)
            if worker.kind is Kind.REGISTRY:
                following = max(worker.next_version, last.version + 1 if last else 0)
                version = other.pipeline.learning.version
                worker = replace(worker, version=version, next_version=following)
                self.pipeline.learning.joined(worker)
        self.pipeline.generating.number = other.pipeline.generating.number


def free(loop: Loop, seconds: float) -> None:
    """Let the pipeline run for so long."""
    loop.pipeline.paused = False
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loop.step()


def serial(loop: Loop, seconds: float, over: float, whole: bool) -> None:
    """Rounds, one thing after the other, for at least so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _round(loop, over, whole)


def _round(loop: Loop, over: float, whole: bool) -> None:
    """Swap and write a batch; measure it; train on it and publish."""
    pipeline, board = loop.pipeline, loop.pipeline.board
    pipeline.paused = True
    pipeline.generating.over = over
    pipeline.generating.plan(pipeline.jobs.values(), None)
    number = pipeline.generating.number - 1
    while not all(batch.is_written for batch in board.batches):
        pipeline.generating.write()
        loop.step()
    while board.batches:
        pipeline.measuring.hand_out()
        loop.step()
    begin = time.monotonic()
    pipeline.learning.hand_out(number)
    while not pipeline.learning.is_idle:
        if not whole:
            pipeline.learning.boundary()
        pipeline.learning.hand_out(-1)
        loop.step()
    loop.tally.taught += time.monotonic() - begin


def timed(loop: Loop, what: Any, *arguments: Any) -> None:
    """Carry out one turn of a loop; the clock stops before what is in flight comes back."""
    begin, worked = time.monotonic(), loop.worked_s()
    what(loop, *arguments)
    loop.tally.wall += time.monotonic() - begin
    loop.tally.busy += (loop.worked_s() - worked) / len(loop.slots)
    done = replace(loop.tally)
    loop.settle()
    loop.tally = done


def warm_up(loop: Loop, patience: float) -> None:
    """Every actor is there, every task has its baseline, and a first version was swapped in."""
    pipeline, end = loop.pipeline, time.monotonic() + patience
    while time.monotonic() < end:
        loop.step()
        states = pipeline.board.states.values()
        generators = pipeline.board.of(Kind.GENERATOR)
        learnt = any(worker.version for worker in generators)
        if learnt and all(state.baseline is not None for state in states):
            return
    raise SystemExit(f"no version was swapped in within {patience:.0f} s; try --warm-up")


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of each loop (default 3)")
    parser.add_argument("--turn", type=float, default=45.0, help="seconds of a turn (default 45)")
    parser.add_argument(
        "--warm-up", type=float, default=600.0, help="seconds at most (default 600)"
    )
    parser.add_argument(
        "--whole-lessons", action="store_true", help="the serial loop always takes `train.steps`"
    )
    parser.add_argument("--model", default="resnet18", help="what is tuned (default resnet18)")
    options = parser.parse_args(arguments)
    here = report.machine()
    with tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch:
        loops = _measure(options, Path(scratch))
    rows = [_row(name, loop.tally) for name, loop in loops.items()]
    report.show(f"{options.model}, {len(loops['serial'].slots)} slots", rows)
    ours, theirs = rows
    result = {
        "benchmark": "overlap",
        "machine": here,
        "model": options.model,
        "turn_s": options.turn,
        "whole_lessons": options.whole_lessons,
        "over": loops["free-running"].pipeline.generating.over,
        "rows": rows,
        "busy": ours["busy"],
        "timed": ours["timed"],
        "ratio_untaught": ours["records/min"] / _untaught(loops["serial"].tally),
        "ratio": ours["records/min"] / theirs["records/min"],
        "meaning": "records per minute, free-running over one thing after the other",
    }
    report.finish(result, options.json)
    print(f"busy {ours['busy']:.3f} (share of time in which the slot has work)")
    print(f"ratio {result['ratio_untaught']:.2f} if the serial loop's training took no time at all")
    return 0


def _row(name: str, tally: Tally) -> report.Row:
    return {
        "loop": name,
        "s": tally.wall,
        "records": tally.records,
        "failed": tally.failed,
        "records/min": 60 * tally.records / tally.wall,
        "busy": tally.busy / tally.wall,
        "timed": tally.timed / tally.wall,
        "lessons": tally.lessons,
        "steps/record": tally.steps / max(tally.records, 1),
    }


def _untaught(tally: Tally) -> float:
    """Records per minute of the serial loop without its training."""
    return 60 * tally.records / (tally.wall - tally.taught)


def _measure(options: Any, scratch: Path) -> dict[str, Loop]:
    """Both loops, in turns."""
    checkpoint = str(options.checkpoint.absolute()) if options.checkpoint else ""
    config = Config(
        generate=GenerateConfig(checkpoint=checkpoint), tune=TuneConfig(seed=options.seed)
    )
    settings = session.Settings(config, scratch)
    tasks = _tasks(options.model, scratch)
    session.prepare(settings)
    from actors.cluster import Cluster

    with closing(Cluster(settings)) as cluster, RecordStore(scratch / "records.sqlite") as store:
        cluster.start()
        store.add_tasks(tasks)
        job = Job("overlap", trials=0)
        # The rules are those of the default configuration.
        loops = {
            name: Loop(Pipeline(cluster, store, Rules())) for name in ("free-running", "serial")
        }
        ours, theirs = loops.values()
        theirs.pipeline.board.states = ours.pipeline.board.states
        ours.pipeline.add_job(job, tasks)
        warm_up(ours, options.warm_up)
        ours.settle()
        theirs.pipeline.add_job(job, tasks)
        theirs.take_over(ours)
        # Uncounted: in the first round of another pipeline the trainer learns everything anew.
        _round(theirs, ours.pipeline.generating.over, True)
        ours.take_over(theirs)
        ours.tally, theirs.tally = Tally(), Tally()
        while min(loop.tally.wall for loop in loops.values()) < 60 * options.minutes:
            timed(ours, free, options.turn)
            theirs.take_over(ours)
            over = ours.pipeline.generating.over
            timed(theirs, serial, options.turn, over, options.whole_lessons)
            ours.take_over(theirs)
            _tell(loops)
    return loops


def _tell(loops: dict[str, Loop]) -> None:
    for name, loop in loops.items():
        row = _row(name, loop.tally)
        rate, busy = row["records/min"], row["busy"]
        print(f"{name}: {row['s']:.0f} s, {rate:.1f}/min, busy {busy:.2f}", file=sys.stderr)


def _tasks(model: str, scratch: Path) -> list[Task]:
    """Lower the model as the daemon does, in another process."""
    cores = len(plan_slots(MeasureConfig().slots)[0].run)
    tasks: list[Task] = []
    intake = Intake(model, None, "native", "", cores)
    Intaker(scratch / "intake.log").run(intake, str(Path.cwd()), tasks.extend)
    return tasks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
