"""Measuring without a gap: the free-running pipeline against a serial loop of the same actors.

Both loops tune the same model in one run. They alternate in phases of some tens of seconds, so that
other load on the machine affects both. The free-running loop is the daemon's own `Pipeline`: it
measures, trains and writes at the same time. The serial loop sends the same orders to the same
actors, one kind at a time: it has a batch written, measures it, trains on it, publishes, swaps, and
has the next batch written. Both share what is known of the tasks, so no candidate is measured
twice. The serial loop writes as many candidates per measured one as the free-running loop does.

``busy`` is the share of time in which a slot has at least one order, ``timed`` the share in which a
program runs on it (the rest is building, checking and waiting). Rounds of the serial loop are
counted whole. Free-running training is cut short when the next batch is due, but not before it has
had `train.seconds`. The serial loop waits for its training and cuts it short after `train.seconds`;
with ``--whole-rounds`` it trains to the end. The two loops take different numbers of training steps
per record, so these are listed. ``ratio_without_training`` is the ratio that remains if the serial
loop trained in no time.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from actors import session
from benchmarks.common import report
from benchmarks.daemon import driver
from tlmd.daemon.task_extraction import ExtractionRequest, TaskExtractor
from tlmd.data.config import CheckConfig, Config, GenerateConfig, MeasureConfig, TuneConfig
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import Task
from tlmd.measure.cores.core_plan import plan_slots
from tlmd.pipeline.loop import Pipeline
from tlmd.pipeline.orders import MeasureOrder, SwapOrder, WorkerKind, WriteOrder
from tlmd.pipeline.state import PipelineOptions
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records.store import RecordStore


@dataclass
class LoopTotals:
    """What one of the loops has done in its phases."""

    counts: driver.AnswerCounts = field(default_factory=driver.AnswerCounts)
    wall_s: float = 0.0
    busy_s: float = 0.0
    """Seconds in which a slot had an order."""
    training_s: float = 0.0
    """Seconds of serial rounds in which the loop waited for training and publishing."""

    @property
    def rate(self) -> float:
        """Records per minute."""
        return 60 * self.counts.measured / self.wall_s

    @property
    def rate_without_training(self) -> float:
        """Records per minute if the loop had never waited for its training."""
        return 60 * self.counts.measured / (self.wall_s - self.training_s)

    def row(self, name: str) -> report.Row:
        """The totals as a row of the table."""
        counts = self.counts
        return {
            "loop": name,
            "s": self.wall_s,
            "records": counts.measured,
            "failed": counts.failed,
            "records/min": self.rate,
            "busy": self.busy_s / self.wall_s,
            "timed": counts.timed_s / self.wall_s,
            "training rounds": counts.training_rounds,
            "steps/record": counts.training_steps / max(counts.measured, 1),
        }


class TuningLoop(driver.Driver):
    """One of the two loops: a pipeline of its own, on the workers that both use.

    A paused `Pipeline` sends nothing by itself, but handles every event. The serial loop is made of
    one that is always paused: it asks the parts of the pipeline for their orders, one by one.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline.step)
        self.pipeline = pipeline
        self.totals = LoopTotals()

    @property
    def slots(self) -> list[str]:
        """The names of the slots."""
        return [worker.name for worker in self.pipeline.state.workers_of(WorkerKind.MEASURER)]

    def phase(self, work: Callable[..., None], *arguments: Any) -> None:
        """Add one phase to the totals; its clock stops before the loop waits for open orders."""
        begin, busy = time.monotonic(), self._slots_busy_s()
        work(*arguments)
        self.totals.wall_s += time.monotonic() - begin
        self.totals.busy_s += (self._slots_busy_s() - busy) / len(self.slots)
        self.totals.counts = copy.copy(self.counts)
        self.settle()
        self.counts = copy.copy(self.totals.counts)

    def _slots_busy_s(self) -> float:
        return sum(map(self.pipeline.state.busy_s, self.slots))

    def reset(self) -> None:
        """Forget what was counted so far."""
        self.counts, self.totals = driver.AnswerCounts(), LoopTotals()

    def run_free(self, seconds: float) -> None:
        """Let the pipeline run for so long."""
        self.pipeline.paused = False
        self.run(seconds)

    def run_serial(self, seconds: float, oversample: float, whole_rounds: bool) -> None:
        """Run serial rounds for at least so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.serial_round(oversample, whole_rounds)

    def serial_round(self, oversample: float, whole: bool) -> None:
        """Swap and write a batch; measure it; train on it and publish."""
        pipeline, state = self.pipeline, self.pipeline.state
        pipeline.paused = True
        pipeline.generating.oversample = oversample
        pipeline.generating.plan(pipeline.jobs.values(), None)
        number = pipeline.generating.number - 1
        while not all(batch.is_written for batch in state.batches):
            pipeline.generating.send_orders()
            self.step()
        while state.batches:
            pipeline.measuring.send_orders()
            self.step()
        begin = time.monotonic()
        pipeline.learning.send_orders(number)
        while not pipeline.learning.is_idle:
            if not whole:
                pipeline.learning.stop_early()
            pipeline.learning.send_orders(-1)
            self.step()
        self.totals.training_s += time.monotonic() - begin

    def settle(self) -> None:
        """Wait for everything in flight and publish what is trained; begin nothing."""
        state, learning = self.pipeline.state, self.pipeline.learning
        self.pipeline.paused = True
        learning.interrupt()
        while state.has_order(WriteOrder, SwapOrder, MeasureOrder) or not learning.is_idle:
            learning.send_orders(-1)
            self.step()

    def take_over(self, other: TuningLoop) -> None:
        """Go on where the other loop has stopped."""
        state, others = self.pipeline.state, other.pipeline.state
        for name in state.workers.keys() - others.workers.keys():
            state.leave(name)
        last = other.pipeline.learning.last
        for worker in others.workers.values():
            state.join(worker)
            if worker.kind is WorkerKind.REGISTRY:
                following = max(worker.next_version, last.version + 1 if last else 0)
                version = other.pipeline.learning.version
                worker = replace(worker, version=version, next_version=following)
                self.pipeline.learning.on_joined(worker)
        self.pipeline.generating.number = other.pipeline.generating.number

    @property
    def is_warm(self) -> bool:
        """Whether every task has its baseline and a first version was swapped in."""
        state = self.pipeline.state
        swapped = any(worker.version for worker in state.workers_of(WorkerKind.GENERATOR))
        return swapped and all(task.baseline is not None for task in state.tasks.values())


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of each loop (default 3)")
    parser.add_argument("--phase", type=float, default=45.0, help="seconds (default 45)")
    parser.add_argument(
        "--warm-up", type=float, default=600.0, help="seconds at most (default 600)"
    )
    parser.add_argument(
        "--whole-rounds", action="store_true", help="the serial loop always takes `train.steps`"
    )
    parser.add_argument("--model", default="resnet18", help="what is tuned (default resnet18)")
    options = parser.parse_args()
    here = report.machine()
    with driver.scratch_directory() as scratch:
        free, serial = _measure_loops(options, scratch)
    rows = [free.totals.row("free-running"), serial.totals.row("serial")]
    report.show(f"{options.model}, {len(free.slots)} slots", rows)
    result = {
        "benchmark": "overlap",
        "machine": here,
        "model": options.model,
        "phase_s": options.phase,
        "whole_rounds": options.whole_rounds,
        "oversample": free.pipeline.generating.oversample,
        "rows": rows,
        "busy": rows[0]["busy"],
        "timed": rows[0]["timed"],
        "ratio_without_training": free.totals.rate / serial.totals.rate_without_training,
        "ratio": free.totals.rate / serial.totals.rate,
        "meaning": "records per minute, free-running over serial",
    }
    report.finish(result, options.json)
    print(f"busy {result['busy']:.3f} (share of time in which the slot has work)")
    print(
        f"ratio {result['ratio_without_training']:.2f} if the serial loop's training took no time"
    )
    return 0


def _measure_loops(options: Any, scratch: Path) -> tuple[TuningLoop, TuningLoop]:
    """The free-running and the serial loop, in alternating phases."""
    checkpoint = str(options.checkpoint.absolute()) if options.checkpoint else ""
    config = Config(
        generate=GenerateConfig(checkpoint=checkpoint), tune=TuneConfig(seed=options.seed)
    )
    tasks = _model_tasks(options.model, scratch)
    with (
        driver.running_cluster(session.Settings(config, scratch)) as cluster,
        RecordStore(scratch / "records.sqlite") as store,
    ):
        store.add_tasks(tasks)
        free, serial = (TuningLoop(Pipeline(cluster, store, PipelineOptions())) for _ in range(2))
        _prepare_loops(free, serial, tasks, options.warm_up)
        while min(free.totals.wall_s, serial.totals.wall_s) < 60 * options.minutes:
            free.phase(free.run_free, options.phase)
            serial.take_over(free)
            oversample = free.pipeline.generating.oversample
            serial.phase(serial.run_serial, options.phase, oversample, options.whole_rounds)
            free.take_over(serial)
            _print_progress(free, serial)
    return free, serial


def _prepare_loops(
    free: TuningLoop, serial: TuningLoop, tasks: list[Task], patience: float
) -> None:
    """Give both the same job, and let both run once; nothing of it is counted."""
    job = TuningJob("overlap", trials=0)
    serial.pipeline.state.tasks = free.pipeline.state.tasks
    free.pipeline.add_job(job, tasks)
    free.until(lambda: free.is_warm, "a version is swapped in (try --warm-up)", patience)
    free.settle()
    serial.pipeline.add_job(job, tasks)
    serial.take_over(free)
    # In the first round of another pipeline the trainer learns everything anew.
    serial.serial_round(free.pipeline.generating.oversample, True)
    free.take_over(serial)
    free.reset()
    serial.reset()


def _print_progress(free: TuningLoop, serial: TuningLoop) -> None:
    for name, loop in (("free-running", free), ("serial", serial)):
        row = loop.totals.row(name)
        rate, busy = row["records/min"], row["busy"]
        print(f"{name}: {row['s']:.0f} s, {rate:.1f}/min, busy {busy:.2f}", file=sys.stderr)


def _model_tasks(model: str, scratch: Path) -> list[Task]:
    """Lower the model as the daemon does, in another process."""
    cores = len(plan_slots(MeasureConfig().slots)[0].run)
    tasks: list[Task] = []
    request = ExtractionRequest(ModelSpec(model), "native", "", cores)
    TaskExtractor(scratch / "extraction.log", CheckConfig()).run(
        request, str(Path.cwd()), tasks.extend
    )
    return tasks


if __name__ == "__main__":
    sys.exit(main())
