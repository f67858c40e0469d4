"""A process of its own that times compiled models on the run cores: how it is started, and asked.

It is a module with a plan as its argument. It begins to load what it needs while the models are
still compiled, and answers each line of JSON with another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tlmd.data.errors import Failed
from tlmd.models.sources import numpy_dtype
from tlmd.processes import children

_LOG = "timing.log"


class TimingProcess:
    """Runs ``python -m MODULE PLAN``; `doing` names in errors what it does.

    `scratch` is for its files. It keeps to the cores of this process until it is asked to time.
    """

    def __init__(
        self,
        module: str,
        plan: Mapping[str, Any],
        inputs: Sequence[np.ndarray],
        cores: Sequence[int],
        scratch: Path,
        doing: str,
    ) -> None:
        self._doing, self._log = doing, scratch / _LOG
        saved, path = scratch / "inputs.npz", scratch / "plan.json"
        np.savez(saved, *inputs)
        dtypes = [array.dtype.name for array in inputs]  # a file of numpy knows no bfloat16
        more = {"inputs": str(saved), "dtypes": dtypes, "cores": list(cores)}
        path.write_text(json.dumps({**plan, **more}))
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(path)],
                env=children.running_tvm(len(cores), OMP_NUM_THREADS=str(len(cores))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Its answer to `request`. Raises `Failed`."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            for line in stdout:
                if line.startswith(("{", "[")):  # a user's model may print
                    return json.loads(line)
        except BrokenPipeError:
            pass
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        reason = (lines or ["no output"])[-1][:200]
        raise Failed(f"{self._doing} failed (exit {code}): {reason}")


# In the process itself.


def begin(plan_path: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The plan and the inputs."""
    plan = json.loads(Path(plan_path).read_text())
    arrays = zip(np.load(plan["inputs"]).values(), plan["dtypes"], strict=True)
    return plan, [array.view(numpy_dtype(name)) for array, name in arrays]


def requests(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the other process asks for; from then on this one runs on the run cores."""
    for line in sys.stdin:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), set(plan["cores"]))
        yield json.loads(line)


def answer(value: Any) -> None:
    """Answer a request."""
    print(json.dumps(value), flush=True)
