"""From a checkpoint's being in force to the first candidate it has written, and candidates lost.

The real registry actor publishes checkpoints with random weights (time does not depend on what they
know), and the real generator actor swaps them in while it writes: it always has an order in flight.
A simulated slot takes what is written, so that every candidate that was ordered can be followed to
its answer; none may be lost and none come twice. Everything but the slot runs on the cores that a
daemon would give it.

``to first write`` begins when the registry has put a version in force and ends when the first turn
that the version wrote is there. It consists of the rest of the turn that was in flight, the swap
(the registry reads the file while that turn is finished; what is left is transfer and load) and the
first write. ``read blob`` and ``swap alone`` are the same two steps once more on idle actors.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from actors import session
from benchmarks import report
from tlmd import wire
from tlmd.config import Config, GenerateConfig, PipelineConfig, TrainConfig
from tlmd.measure.cores import plan_cores
from tlmd.pipeline.orders import (
    Done,
    Event,
    Failed,
    Joined,
    Left,
    Lost,
    MeasureOrder,
    Order,
    Published,
    SwapOrder,
    WriteOrder,
    Written,
)
from tlmd.types import Task

_GENERATOR, _SLOT = "generator-0", "slot-0"
_STEP_S = 0.01
_START_S = 300.0
_REPEATS = 3
_QUESTIONS = wire.pack(())  # the gate asks nothing


@dataclass
class Desk:
    """Sends orders, keeps when their answers came, and passes on what was written."""

    cluster: Any
    tasks: list[Task]
    count: int
    over: float
    flying: Order = field(default_factory=lambda: SwapOrder(0))  # the turn ordered last
    joined: set[str] = field(default_factory=set)
    answered: dict[int, tuple[float, Any]] = field(default_factory=dict)  # by id of the order
    turns: int = 0
    lost: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)  # candidate -> hash of its module
    passed_on: int = 0
    repeated: int = 0
    short: int = 0
    measured: int = 0
    versions: set[int] = field(default_factory=set)
    _orders: list[Order] = field(default_factory=list)  # alive, so that ids stay theirs

    def write(self) -> WriteOrder:
        """Order the next turn; one task after the other has one."""
        task = self.tasks[self.turns % len(self.tasks)]
        self.turns += 1
        order = WriteOrder(
            self.turns, task, self.count, self.over, avoid=tuple(self.written.items())
        )
        self.flying = order
        self.send(_GENERATOR, order)
        return order

    def write_until(self, done: Callable[[], bool]) -> None:
        """Have a turn in flight at all times."""
        while not done():
            if self.is_done(self.flying):
                self.write()
            self.until(lambda: done() or self.is_done(self.flying))

    def send(self, worker: str, order: Order) -> None:
        self._orders.append(order)
        self.cluster.send(worker, order)

    def is_done(self, order: Order) -> bool:
        """Whether its answer is there."""
        return id(order) in self.answered

    def wait_for(self, order: Order) -> tuple[float, Any]:
        """When the answer came, on the monotonic clock, and the answer."""
        self.until(lambda: self.is_done(order))
        return self.answered[id(order)]

    def until(self, done: Callable[[], bool], patience: float = _START_S) -> None:
        """Take in events until something is so."""
        end = time.monotonic() + patience
        while not done():
            if time.monotonic() > end:
                raise SystemExit(f"no answer within {patience:.0f} s; lost: {self.lost}")
            for event in self.cluster.wait(_STEP_S):
                self._take_in(event, time.monotonic())

    def _take_in(self, event: Event, now: float) -> None:
        if isinstance(event, Joined):
            self.joined.add(event.worker.name)
        elif isinstance(event, Left):
            self.joined.discard(event.worker)
        elif isinstance(event, Lost | Failed):
            self.lost.append(f"{event.worker}: {getattr(event, 'error', 'it died')}")
            self.answered[id(event.order)] = now, None
        elif isinstance(event, Done):
            self.answered[id(event.order)] = now, event.answer
            if isinstance(event.answer, Written) and isinstance(event.order, WriteOrder):
                self._pass_on(event.order, event.answer)
            elif isinstance(event.order, MeasureOrder):
                self.measured += len(event.order.proposals)

    def _pass_on(self, order: WriteOrder, written: Written) -> None:
        self.versions.add(written.version)
        self.short += order.count - len(written.proposals)
        for proposal in written.proposals:
            self.repeated += proposal.candidate.id in self.written
            self.written[proposal.candidate.id] = proposal.module_hash
        self.passed_on += len(written.proposals)
        if written.proposals:
            self.send(_SLOT, MeasureOrder(order.batch, order.task, written.proposals))

    def figures(self) -> report.Row:
        """What became of everything that was ordered."""
        return {
            "ordered": self.turns * self.count,
            "not written": self.short,
            "written": self.passed_on,
            "measured": self.measured,
            "repeated": self.repeated,
            "lost": len(self.lost) * self.count + self.passed_on - self.measured,
        }


def main(arguments: list[str]) -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--presets", nargs="+", default=["nano", "gpt2"], metavar="PRESET")
    parser.add_argument("--rounds", type=int, default=5, help="swaps of each (default 5)")
    parser.add_argument("--over", type=float, default=0.0, help="written per candidate kept")
    options = parser.parse_args(arguments)
    here = report.machine()
    cores = frozenset(os.sched_getaffinity(0))
    os.sched_setaffinity(0, plan_cores().build)  # before Ray starts: all of it inherits this
    rows, counts = [], []
    for preset in options.presets:
        # Ray is set up once per process: it keeps the token of the first instance.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            row, count = pool.submit(_preset, preset, options, cores).result()
        rows.append(row)
        counts.append(count)
    report.show("seconds, median over the rounds", rows)
    report.show("candidates", counts)
    result = {
        "benchmark": "hot_swap",
        "machine": here,
        "rounds": options.rounds,
        "rows": rows,
        "candidates": counts,
        "lost": sum(count["lost"] for count in counts),
        "ratio": 1 - sum(c["lost"] for c in counts) / sum(c["ordered"] for c in counts),
        "meaning": "candidates that were not lost, of all that were ordered",
    }
    report.finish(result, options.json)
    for row in rows:
        print(f"{row['preset']}: {row['to first write']:.2f} s from publishing to the first write")
    return 1 if result["lost"] else 0


def _preset(preset: str, options: Any, cores: frozenset[int]) -> tuple[report.Row, report.Row]:
    """All rounds of one size of network."""
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as scratch,
        _desk(preset, options, cores, Path(scratch)) as desk,
    ):
        desk.until(lambda: {"registry", _GENERATOR, _SLOT} <= desk.joined)
        for _ in desk.tasks:
            desk.wait_for(desk.write())  # the first turn of a task builds its space
        desk.write()
        rounds = []
        for version in range(1, options.rounds + 1):
            rounds.append(_round(desk, preset, version))
            print(f"{preset}: {rounds[-1]['to first write']:.2f} s", file=sys.stderr)
        desk.wait_for(desk.flying)
        desk.until(lambda: desk.measured >= desk.passed_on)
        alone = [_alone(desk, options.rounds) for _ in range(_REPEATS)]
        row: report.Row = {"preset": preset, "MB": _blob(preset, 0).nbytes / 1e6}
        row |= {name: median(r[name] for r in rounds) for name in rounds[0]}
        row |= {name: fmean(r[name] for r in alone) for name in alone[0]}
        return row | {"worst": max(r["to first write"] for r in rounds)}, {
            "preset": preset,
            "versions seen": len(desk.versions),
        } | desk.figures()


@contextmanager
def _desk(preset: str, options: Any, cores: frozenset[int], scratch: Path) -> Iterator[Desk]:
    """A cluster with a registry, a generator and a simulated slot."""
    from benchmarks import setting
    from tlmd.model import checkpoint as checkpoints
    from tlmd.space.target import resolve

    checkpoints.write(_blob(preset, 0).tobytes(), scratch / "base")
    config = Config(
        generate=GenerateConfig(checkpoint=str(scratch / "base")),
        train=TrainConfig(enabled=False),
    )
    settings = session.Settings(
        config, scratch, slot_class="benchmarks.scale:SleepingSlot", slot_count=1, cores=cores
    )
    session.prepare(settings)
    from actors.cluster import Cluster

    # Where writing is slow the daemon settles on the least.
    own = config.generate.over if preset == "nano" else config.generate.least
    over = options.over or float(own)
    with closing(Cluster(settings)) as cluster:
        cluster.start()
        tasks = setting.tasks(resolve("native", 1))
        yield Desk(cluster, tasks, PipelineConfig().turn, over)


def _blob(preset: str, version: int) -> Any:
    """A checkpoint with random weights, as the trainer hands it over ``[n] uint8``."""
    from tlmd.model import checkpoint as checkpoints
    from tlmd.model import network
    from tlmd.model.ranker import Ranker

    made = checkpoints.Checkpoint(version, preset, network.create(preset, version), Ranker())
    return np.frombuffer(checkpoints.to_bytes(made), np.uint8)


def _round(desk: Desk, preset: str, version: int) -> report.Row:
    """Publish a version and swap it in while a turn is being written."""
    blob, begin = _blob(preset, version), time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(_publish, desk.cluster, version, blob)
        desk.write_until(publishing.done)
    in_force = publishing.result()
    last, swap = desk.flying, SwapOrder(version)
    desk.send(_GENERATOR, swap)
    first = desk.write()
    ended, _ = desk.wait_for(last)
    swapped, now_used = desk.wait_for(swap)
    written_at, written = desk.wait_for(first)
    desk.write()
    if now_used != version or written is None or written.version != version:
        raise SystemExit(f"version {version} was not swapped in: {now_used}, {desk.lost}")
    return {
        "publish": in_force - begin,
        "to first write": written_at - in_force,
        "rest of turn": max(0.0, ended - in_force),
        "swap": swapped - max(ended, in_force),
        "first write": written_at - swapped,
    }


def _publish(cluster: Any, version: int, blob: Any) -> float:
    """When the registry had put it in force."""
    answer = cluster.ask_registry("publish", version, blob, _QUESTIONS)
    in_force = time.monotonic()
    published = wire.unpack(Published, answer)
    if not published.accepted:
        raise SystemExit(f"version {version} was refused: {published.reason}")
    return in_force


def _alone(desk: Desk, version: int) -> report.Row:
    """The parts of a swap on actors that do nothing else."""
    begin = time.monotonic()
    desk.cluster.ask_registry("blob", version)
    read = time.monotonic() - begin
    begin = time.monotonic()
    order = SwapOrder(version)
    desk.send(_GENERATOR, order)
    swapped, _ = desk.wait_for(order)
    return {"read blob": read, "swap alone": swapped - begin, "load": swapped - begin - read}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
