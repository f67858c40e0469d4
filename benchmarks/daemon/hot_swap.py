"""How soon a published checkpoint has written its first candidates, and whether any are lost.

The real registry actor publishes checkpoints with random weights, since the times do not depend on
what they have learnt. The real generator actor swaps them in while it writes; it always has an
order in flight. A simulated slot takes what is written, so that every candidate can be followed
from its order to its outcome: none may be lost and none may come twice. All processes but the slot
use the cores that a daemon would give them.

``to first write`` begins when the registry has put a version in force, and ends when the answer to
the first order that the version wrote is there. It consists of the rest of the order that was in
flight, the swap (the registry reads the file while that order is finished; what is left is transfer
and load) and the first write. ``read blob`` and ``swap alone`` are the same two steps once more, on
idle actors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from actors import session
from benchmarks.common import report
from benchmarks.daemon import driver, simulated
from tlmd.data import wire
from tlmd.data.config import Config, GenerateConfig, PipelineConfig, TrainConfig
from tlmd.data.types import MeasureInput, Published, Task
from tlmd.measure.cores.core_plan import plan_cores
from tlmd.pipeline.orders import (
    Answer,
    Event,
    MeasureOrder,
    Order,
    OrderDone,
    OrderFailed,
    OrderLost,
    SwapOrder,
    WriteOrder,
    Written,
)

if TYPE_CHECKING:
    from actors.cluster import Cluster

_GENERATOR, _SLOT = "generator-0", "slot-0"
_POLL_S = 0.01
_REPEATS = 3
_NO_EXAMPLES = wire.pack(())  # the gate evaluates nothing


class SwapDriver(driver.Driver):
    """Sends orders by hand, keeps when they were answered, and has the candidates measured."""

    def __init__(self, cluster: Cluster, tasks: list[Task], count: int, oversample: float) -> None:
        super().__init__(cluster.wait, _POLL_S)
        self.cluster = cluster
        self.tasks = tasks
        self.in_flight: Order = SwapOrder(0)
        """The last order to write."""
        self.lost: list[str] = []
        """Why orders were lost."""
        self.versions: set[int] = set()
        """Versions that wrote candidates."""
        self.passed_on = 0
        """Candidates that the slot was asked to measure."""
        self._count = count
        self._oversample = oversample
        self._write_orders = 0
        self._not_written = 0
        self._repeated = 0
        self._written: dict[str, str] = {}  # candidate id -> hash of its module
        self._sent: list[Order] = []  # kept alive, so that their ids stay theirs
        self._answers: dict[int, tuple[float, Answer | None]] = {}  # by the id of the order

    def write(self) -> WriteOrder:
        """Order candidates of the next task."""
        task = self.tasks[self._write_orders % len(self.tasks)]
        self._write_orders += 1
        avoid = tuple(self._written.items())
        order = WriteOrder(self._write_orders, task, self._count, self._oversample, avoid=avoid)
        self.in_flight = order
        self.send(_GENERATOR, order)
        return order

    def write_until(self, done: Callable[[], bool]) -> None:
        """Keep one order to write in flight until `done`."""
        while not done():
            if self.is_answered(self.in_flight):
                self.write()
            self.until(lambda: done() or self.is_answered(self.in_flight), "an order is answered")

    def send(self, worker: str, order: Order) -> None:
        """Give a worker an order."""
        self._sent.append(order)
        self.cluster.send(worker, order)

    def is_answered(self, order: Order) -> bool:
        """Whether the answer to the order is there."""
        return id(order) in self._answers

    def wait_for(self, order: Order) -> tuple[float, Answer | None]:
        """When the answer came, on the monotonic clock, and the answer; None: it was lost."""
        self.until(lambda: self.is_answered(order), "an order is answered")
        return self._answers[id(order)]

    def on_event(self, event: Event) -> None:
        """Keep an answer, and have what was written measured."""
        super().on_event(event)
        now = time.monotonic()
        if isinstance(event, OrderLost | OrderFailed):
            self.lost.append(f"{event.worker}: {getattr(event, 'error', 'it died')}")
            self._answers[id(event.order)] = now, None
        elif isinstance(event, OrderDone):
            self._answers[id(event.order)] = now, event.answer
            if isinstance(event.answer, Written) and isinstance(event.order, WriteOrder):
                self._pass_on(event.order, event.answer)

    def _pass_on(self, order: WriteOrder, written: Written) -> None:
        self.versions.add(written.version)
        self._not_written += order.count - len(written.proposals)
        for proposal in written.proposals:
            self._repeated += proposal.candidate.id in self._written
            self._written[proposal.candidate.id] = proposal.module_hash
        self.passed_on += len(written.proposals)
        inputs = tuple(MeasureInput(p.candidate.id, p.trace) for p in written.proposals)
        if inputs:
            self.send(_SLOT, MeasureOrder(order.batch, order.task, inputs))

    def figures(self) -> report.Row:
        """How many candidates were ordered, written, measured and lost."""
        measured = self.counts.measured
        return {
            "ordered": self._write_orders * self._count,
            "not written": self._not_written,
            "written": self.passed_on,
            "measured": measured,
            "repeated": self._repeated,
            "lost": len(self.lost) * self._count + self.passed_on - measured,
        }


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--presets", nargs="+", default=["nano", "gpt2"], metavar="PRESET")
    parser.add_argument("--rounds", type=int, default=5, help="swaps of each (default 5)")
    parser.add_argument("--oversample", type=float, default=0.0, help="written per candidate kept")
    options = parser.parse_args()
    here = report.machine()
    cores, build = frozenset(os.sched_getaffinity(0)), frozenset(plan_cores().build)
    rows, counts = [], []
    for preset in options.presets:
        row, count = driver.in_own_process(build, None, _measure_preset, preset, options, cores)
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


def _measure_preset(
    preset: str, options: Any, cores: frozenset[int]
) -> tuple[report.Row, report.Row]:
    """All rounds of one size of network: its seconds and its counts."""
    with (
        driver.scratch_directory() as scratch,
        _swap_driver(preset, options.oversample, cores, scratch) as swaps,
    ):
        swaps.wait_for_workers(3)  # registry, generator, slot
        for _ in swaps.tasks:
            swaps.wait_for(swaps.write())  # the first order of a task builds its space
        swaps.write()
        rounds = []
        for version in range(1, options.rounds + 1):
            rounds.append(_swap_round(swaps, preset, version))
            print(f"{preset}: {rounds[-1]['to first write']:.2f} s", file=sys.stderr)
        swaps.wait_for(swaps.in_flight)
        swaps.until(lambda: swaps.counts.measured >= swaps.passed_on, "all candidates are measured")
        idle = [_swap_idle(swaps, options.rounds) for _ in range(_REPEATS)]
        row: report.Row = {"preset": preset, "MB": _blob(preset, 0).nbytes / 1e6}
        row |= {name: median(r[name] for r in rounds) for name in rounds[0]}
        row |= {name: fmean(r[name] for r in idle) for name in idle[0]}
        row["worst"] = max(r["to first write"] for r in rounds)
        versions = {"preset": preset, "versions seen": len(swaps.versions)}
        return row, versions | swaps.figures()


@contextmanager
def _swap_driver(
    preset: str, oversample: float, cores: frozenset[int], scratch: Path
) -> Iterator[SwapDriver]:
    """A cluster with a registry, a generator and a simulated slot."""
    from benchmarks.common import setting
    from tlmd.space.hardware.target import resolve
    from tlmd.tlm import checkpoint as checkpoints

    checkpoints.unpack(_blob(preset, 0).tobytes(), scratch / "base")
    generate = GenerateConfig(checkpoint=str(scratch / "base"))
    settings = session.Settings(
        Config(generate=generate, train=TrainConfig(enabled=False)),
        scratch,
        slot_class=simulated.SLOT,
        slot_count=1,
        cores=cores,
    )
    # Where writing is slow, the daemon falls to the least.
    usual = generate.oversample if preset == "nano" else generate.oversample_min
    with driver.running_cluster(settings) as cluster:
        tasks = setting.tasks(resolve("native", 1))
        yield SwapDriver(cluster, tasks, PipelineConfig().per_task, oversample or float(usual))


def _blob(preset: str, version: int) -> Any:
    """A checkpoint with random weights, as the trainer hands it over ``[n] uint8``."""
    from tlmd.tlm import checkpoint as checkpoints
    from tlmd.tlm import network
    from tlmd.tlm.cost_model import CostModel

    made = checkpoints.Checkpoint(version, preset, network.create(preset, version), CostModel())
    return np.frombuffer(checkpoints.to_bytes(made), np.uint8)


def _swap_round(swaps: SwapDriver, preset: str, version: int) -> report.Row:
    """Publish a version and swap it in while an order is being written."""
    blob, begin = _blob(preset, version), time.monotonic()
    with ThreadPoolExecutor(1) as thread:
        publishing = thread.submit(_publish, swaps.cluster, version, blob)
        swaps.write_until(publishing.done)
    in_force = publishing.result()
    last, swap = swaps.in_flight, SwapOrder(version)
    swaps.send(_GENERATOR, swap)
    first = swaps.write()
    ended, _ = swaps.wait_for(last)
    swapped, now_used = swaps.wait_for(swap)
    written_at, written = swaps.wait_for(first)
    swaps.write()
    if now_used != version or not isinstance(written, Written) or written.version != version:
        raise SystemExit(f"version {version} was not swapped in: {now_used}, {swaps.lost}")
    return {
        "publish": in_force - begin,
        "to first write": written_at - in_force,
        "rest of order": max(0.0, ended - in_force),
        "swap": swapped - max(ended, in_force),
        "first write": written_at - swapped,
    }


def _publish(cluster: Cluster, version: int, blob: Any) -> float:
    """When the registry had put the version in force."""
    answer = cluster.ask_registry("publish", version, blob, _NO_EXAMPLES)
    in_force = time.monotonic()
    published = wire.unpack(Published, answer)
    if not published.accepted:
        raise SystemExit(f"version {version} was refused: {published.reason}")
    return in_force


def _swap_idle(swaps: SwapDriver, version: int) -> report.Row:
    """The parts of a swap on idle actors."""
    begin = time.monotonic()
    swaps.cluster.ask_registry("blob", version)
    read = time.monotonic() - begin
    begin = time.monotonic()
    order = SwapOrder(version)
    swaps.send(_GENERATOR, order)
    swapped, _ = swaps.wait_for(order)
    return {"read blob": read, "swap alone": swapped - begin, "load": swapped - begin - read}


if __name__ == "__main__":
    sys.exit(main())
