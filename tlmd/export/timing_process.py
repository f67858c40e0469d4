"""A process of its own that times compiled models on the run cores: how it is started, and starts.

It is a module with a plan as its argument, and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tlmd.data.errors import Failed
from tlmd.models.sources import numpy_dtype
from tlmd.processes import children


def run(
    module: str,
    plan: Mapping[str, Any],
    inputs: Sequence[np.ndarray],
    cores: Sequence[int],
    scratch: Path,
    doing: str,
) -> Any:
    """The JSON that ``python -m MODULE PLAN`` prints. Raises `Failed`, which names `doing`."""
    saved, path = scratch / "inputs.npz", scratch / "plan.json"
    np.savez(saved, *inputs)
    dtypes = [array.dtype.name for array in inputs]  # a file of numpy knows no bfloat16
    more = {"inputs": str(saved), "dtypes": dtypes, "cores": list(cores)}
    path.write_text(json.dumps({**plan, **more}))
    done = subprocess.run(
        [sys.executable, "-m", module, str(path)],
        env=children.running_tvm(len(cores), OMP_NUM_THREADS=str(len(cores))),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        raise Failed(f"{doing} failed (exit {done.returncode}): {reason}")
    return json.loads(lines[-1])


def begin(plan_path: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """In the process: keep to the run cores; the plan and the inputs."""
    plan = json.loads(Path(plan_path).read_text())
    os.sched_setaffinity(0, set(plan["cores"]))
    arrays = zip(np.load(plan["inputs"]).values(), plan["dtypes"], strict=True)
    return plan, [array.view(numpy_dtype(name)) for array, name in arrays]
