"""What the programs that tests run on Ray clusters share: Ray's settings, a job's state, waiting.

Ray is set up once per process, so each of these tests runs a program of its own.
"""

from __future__ import annotations

import os
import time
from typing import Any

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    # So many nodes on few cores answer late.
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "10",
}
_LIMIT_S = 200.0


def job_state(service: Any, job_id: str) -> str:
    return str(next(j["state"] for j in service.snapshot["jobs"] if j["id"] == job_id))


def wait_for(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + _LIMIT_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what}")
        time.sleep(0.1)
    return found
