"""A Ray cluster whose slots are of two kinds: x86-64 with AVX-512, and without.

One slot of each kind is real, the others are simulated; with ``--full`` all are real, and the TLM
is trained. A node joins late, one is killed in the middle of a batch and comes back. Run as a
program by `test_cluster_kinds.py`, since Ray is set up once per process. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.endtoend import measured
from tests.system.cluster_program import job_state, wait_for  # sets Ray up, too
from tlmd.data import wire
from tlmd.data.types import Baseline, Outcome, Status, TargetInfo, Task
from tlmd.pipeline.orders import BaselineOrder, MeasureOrder

_WIDE = "avx512f" in Path("/proc/cpuinfo").read_text()
KINDS = {
    "narrow": json.dumps({"kind": "llvm", "mcpu": "x86-64-v3" if _WIDE else "x86-64-v2"}),
    "wide": json.dumps({"kind": "llvm", "mcpu": "x86-64-v4" if _WIDE else "x86-64-v3"}),
}
"""Targets by the name of the resource: programs of both run on this machine."""
_SIMULATED = "simulated "
_CANDIDATE_S = 1.0
_SETTINGS = {
    "measure.run_cores": 1,
    "pipeline.chunk": 2,
    "pipeline.batch": 8,
    "generate.oversample": 2,
    "generate.oversample_max": 2,
}


class KindSlot:
    """A slot that raises where it is given a task of another kind. Real, or sleeps instead."""

    def __init__(
        self, config: Any, index: int, count: int, cache: str, cores: Any, target: str
    ) -> None:
        self._lock = threading.Lock()  # orders run in several threads
        self._real: Any = None
        if target.startswith(_SIMULATED):
            self._target = wire.unpack(TargetInfo, bytes.fromhex(target.removeprefix(_SIMULATED)))
        else:
            from actors.measurer import MeasurerActor

            self._real = MeasurerActor(config, index, count, cache, cores, target)
            self._target = wire.unpack(TargetInfo, self._real.describe()["target"])

    def describe(self) -> dict[str, Any]:
        """The kind of the slot."""
        return {"target": wire.pack(self._target), "cores": ()}

    def measure(self, data: bytes) -> list[bytes]:
        """Carry out a `MeasureOrder`."""
        order = wire.unpack(MeasureOrder, data)
        self._check(order.task)
        if self._real:
            return list(self._real.measure(data))
        return [self._sleep_for_one() for _ in order.inputs]

    def baseline(self, data: bytes) -> bytes:
        """Carry out a `BaselineOrder`."""
        task = wire.unpack(BaselineOrder, data).task
        self._check(task)
        if self._real:
            return bytes(self._real.baseline(data))
        return wire.pack(Baseline(task.id, 0.01, task.target.fingerprint))

    def compare(self, data: bytes) -> list[bytes]:
        """Carry out a `CompareOrder`; a simulated slot has nothing to say."""
        return list(self._real.compare(data)) if self._real else []

    def close(self) -> None:
        """End the measuring server."""
        if self._real:
            self._real.close()

    def _check(self, task: Task) -> None:
        if task.target.fingerprint != self._target.fingerprint:
            raise ValueError(f"a task for {task.target.spec} on {self._target.spec}")

    def _sleep_for_one(self) -> bytes:
        with self._lock:
            time.sleep(_CANDIDATE_S)
        samples = (0.02, 0.021)  # a real slot is faster
        return wire.pack(Outcome(Status.OK, samples, detail="simulated", verified=True))


class Scene:
    """A cluster, a daemon on it, and what happens to them."""

    def __init__(self, cluster: Any, service: Any, simulated: str) -> None:
        self._cluster, self._service, self._simulated = cluster, service, simulated
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()

    def add(self, kind: str, simulated: bool = True) -> Any:
        """Add a node with one slot."""
        name = kind + (self._simulated if simulated else "")
        # `wait` would give up after 30 s.
        return self._cluster.add_node(False, num_cpus=1, resources={f"measure:{name}": 1})

    def remove(self, node: Any) -> None:
        """Kill a node."""
        self._cluster.remove_node(node, allow_graceful=False)

    def slot(self, node: Any) -> dict[str, Any]:
        """What the status says of the slot of a node."""
        slots = self._service.snapshot.get("slots", [])
        return next((s for s in slots if s["node"] == node.node_id), {})

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait, and remember when it was."""
        found = wait_for(condition, what)
        self.seconds[what] = round(time.monotonic() - self._started, 1)
        return found

    def in_flight(self, node: Any) -> int:
        """How many candidates the slot of a node has."""
        return int(self.slot(node).get("in_flight", 0))

    def has_worked(self, *nodes: Any) -> bool:
        """Whether the slots of all these nodes have had work."""
        return all(self.slot(node).get("busy_s", 0) > 0 for node in nodes)


def main(state: Path, model: str, trials: int, full: bool) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster

    from actors.session import Settings
    from tlmd.daemon.service import Service
    from tlmd.data import config
    from tlmd.space.hardware import target as targets

    infos = {kind: targets.resolve(spec, 1) for kind, spec in KINDS.items()}
    of_slots = dict(KINDS)
    if not full:
        packed = {f"{k}-simulated": _SIMULATED + wire.pack(i).hex() for k, i in infos.items()}
        of_slots |= packed
    resources = {"control": 1, "generate": 1}
    head = {"num_cpus": 1, "resources": resources, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    own = {"measure.targets": of_slots, "train.enabled": full, "train.steps": 2}
    loaded = config.load(flags=_SETTINGS | own)
    settings = Settings(
        loaded, state, cluster.address, slot_class="tests.system.two_kinds:KindSlot"
    )
    service = Service(state, loaded, settings)
    scene = Scene(cluster, service, "" if full else "-simulated")
    try:
        nodes = [scene.add(kind, simulated=False) for kind in KINDS]
        nodes.append(scene.add("wide"))
        if full:
            nodes += [scene.add("narrow"), scene.add("wide"), scene.add("wide")]
        return run(service, scene, nodes, model, trials, infos)
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(
    service: Any,
    scene: Scene,
    nodes: list[Any],
    model: str,
    trials: int,
    infos: dict[str, TargetInfo],
) -> dict[str, Any]:
    service.start()
    request = {"model": model, "trials": trials, "cwd": str(Path.cwd())}
    jobs = {kind: service.submit(request | {"target": f"slot:{kind}"}) for kind in KINDS}
    victim = nodes[2]
    scene.until(lambda: scene.has_worked(victim), "all at work")
    late = scene.add("narrow")
    lost = scene.until(lambda: scene.in_flight(victim), "work for the victim")
    name = scene.slot(victim)["name"]
    scene.remove(victim)
    service.pause(True)  # however slowly nodes start, there is work left for them
    scene.until(lambda: not scene.slot(victim), "victim gone")
    returned = scene.add("wide")
    scene.until(lambda: scene.slot(late) and scene.slot(returned), "both new slots")
    service.pause(False)
    scene.until(lambda: scene.has_worked(late), "work for the late node")
    scene.until(lambda: scene.has_worked(returned), "work for the returned node")
    scene.until(lambda: all(job_state(service, j) != "running" for j in jobs.values()), "end")
    records = service.store.all_records()
    events = list(service.event_log.events)
    document = {
        "jobs": jobs,
        "states": [job_state(service, job) for job in jobs.values()],
        "nodes": len(nodes) + 2,
        "in_flight_when_killed": lost,
        "left": [e["worker"] for e in events if e["kind"] == "left"],
        "victim": name,
        "errors": [e for e in events if e["kind"] == "slot_failed"],
        "busy_s": {s["name"]: s["busy_s"] for s in service.snapshot["slots"]},
        "kinds": {kind: _of_kind(service, jobs[kind], infos[kind], records) for kind in KINDS},
        "records": len(measured(records)),
        "seconds": scene.seconds,
    }
    service.stop()
    assert service.done.wait(60)
    return document | {"error": str(service.error or "")}


def _of_kind(service: Any, job: str, info: TargetInfo, records: list[Any]) -> dict[str, Any]:
    """The tasks of a job, and what was recorded for its kind."""
    own = [r for r in records if r.fingerprint == info.fingerprint]
    ids = measured(own)
    return {
        "tasks": sorted(t["id"] for t in service.detail(job)["tasks"]),
        "trials": [t["trials"] for t in service.detail(job)["tasks"]],
        "records": len(ids),
        "twice": sum(n - 1 for n in Counter(ids).values()),
        "real": sum(r.outcome.ok and r.outcome.detail != "simulated" for r in own),
        "failed": sum(not r.outcome.ok for r in own),
    }


if __name__ == "__main__":
    result = main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "--full" in sys.argv)
    print(json.dumps(result))
