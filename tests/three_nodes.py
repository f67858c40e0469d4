"""Three Ray nodes on one machine, two with slots; one of these is killed in the middle of a batch.

Run as a program by `test_cluster.py`, since Ray is set up once per process. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.endtoend import measured

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
_LIMIT_S = 200.0


def main(state: Path, model: str, trials: int) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "resources": {"control": 1}, "include_dashboard": False},
    )
    slots = [cluster.add_node(num_cpus=1, resources={"measure:x86": 1}) for _ in range(2)]
    try:
        return run(cluster, slots, state, model, trials)
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(cluster: Any, slots: list[Any], state: Path, model: str, trials: int) -> dict[str, Any]:
    from actors.session import Settings
    from tlmd import config
    from tlmd.daemon.service import Service

    flags = {"pipeline.chunk": 2, "pipeline.batch": 8, "train.steps": 2, "generate.oversample": 2}
    loaded = config.load(flags=flags)
    service = Service(state, loaded, Settings(loaded, state, cluster.address))
    service.start()
    job_id = service.submit({"model": model, "trials": trials, "cwd": str(Path.cwd())})
    victim = slots[1]
    flying = wait_for(lambda: in_flight(service, victim.node_id), "orders on the second node")
    recorded = len(measured(service.store.all_records()))
    cluster.remove_node(victim, allow_graceful=False)
    wait_for(lambda: job_state(service, job_id) != "running", "the end of the job")
    document = {
        "state": job_state(service, job_id),
        "in_flight_when_killed": flying,
        "recorded_when_killed": recorded,
        "nodes": len({s["node"] for s in service.snapshot["slots"]}),
        "tasks": [t["trials"] for t in service.detail(job_id)["tasks"]],
        "lost": [e for e in service.event_log.events if e["kind"] == "left"],
    }
    records = measured(service.store.all_records())
    service.stop()
    assert service.done.wait(60)
    document["error"] = str(service.error or "")
    document["records"] = len(records)
    document["twice"] = sum(n - 1 for n in Counter(records).values())
    return document


def in_flight(service: Any, node: str) -> int:
    slots = service.snapshot.get("slots", [])
    measuring = len(slots) == 2 and any(e["kind"] == "measuring" for e in service.event_log.events)
    return sum(s["in_flight"] for s in slots if s["node"] == node) if measuring else 0


def job_state(service: Any, job_id: str) -> str:
    return str(next(j["state"] for j in service.snapshot["jobs"] if j["id"] == job_id))


def wait_for(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + _LIMIT_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what}")
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    result = main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    print(json.dumps(result))
