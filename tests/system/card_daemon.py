"""A daemon on a Ray node that offers a CUDA card, whose slot is simulated.

Run as a program by `test_space_gpu.py`, since Ray is set up once per process. Prints JSON. Lowering
and writing candidates and the pipeline are real; nothing is timed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.daemon import simulated
from tests.system.cluster_program import job_state, wait_for  # sets Ray up, too
from tlmd.data import wire
from tlmd.space.hardware.target import resolve

CARD = resolve(
    '{"kind":"cuda","arch":"sm_80","model":"a card","max_shared_memory_per_block":49152,'
    '"max_threads_per_block":1024,"thread_warp_size":32,"l2_cache_size_bytes":41943040}'
)


class CardSlot(simulated.SimulatedSlot):
    """A slot that says it is a card."""

    candidate_s = 0.01

    def describe(self) -> dict[str, Any]:
        return {"target": wire.pack(CARD), "cores": ()}


def main(state: Path, model: str, trials: int) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster

    resources = {"control": 1, "measure:cuda": 1}
    head = {"num_cpus": 1, "num_gpus": 1, "resources": resources, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        return run(cluster.address, state, model, trials)
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(address: str, state: Path, model: str, trials: int) -> dict[str, Any]:
    from actors.session import Settings
    from tlmd.daemon.service import Service
    from tlmd.data import config

    flags = {"train.enabled": False, "generate.oversample": 2, "daemon.generators": 1}
    settings = Settings(config.load(flags=flags), state, address)
    settings.slot_class = "tests.system.card_daemon:CardSlot"
    service = Service(state, settings.config, settings)
    service.start()
    request = {"model": model, "trials": trials, "target": "cuda", "cwd": str(Path.cwd())}
    job_id = service.submit(request)
    wait_for(
        lambda: job_state(service, job_id) not in ("preparing", "running"),
        "the end of the job",
    )
    tasks = service.store.tasks()
    records = service.store.all_records()
    document = {
        "state": job_state(service, job_id),
        "devices": sorted({task.target.device for task in tasks}),
        "tasks": len(tasks),
        "records": len(records),
        "statuses": dict(Counter(str(record.outcome.status) for record in records)),
        "writers": sorted({str(record.writer) for record in records}),
    }
    service.stop()
    assert service.done.wait(60)
    return document


if __name__ == "__main__":
    result = main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    print(json.dumps(result))
