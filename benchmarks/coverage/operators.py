"""Which PyTorch operators does tlmd lower rightly?

`python -m benchmarks.operators [--only NAME] [--json FILE]` takes PyTorch's own operator database
and the calls of `operator_calls.py`. It exports every call as a small module, lowers and compiles
it as tlmd does, and compares the outputs with PyTorch's. An operator is as bad as its worst call:
``wrong`` outputs, a ``crash`` (an error after the import, or a dead process), ``unsupported`` (a
refusal of one line) or ``right``. Each operator runs in a process of its own with a time limit.
The headline `ratio` is the share of operators that are right or refused.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import tvm
from tvm import relax

from benchmarks.common import report
from benchmarks.coverage.operator_calls import CALLS
from benchmarks.coverage.operator_samples import Call, database, samples
from tlmd.data.errors import BadInput
from tlmd.lowering import lowering
from tlmd.models.pytorch import tensors as torch_tensors
from tlmd.models.pytorch import torch_frontend
from tlmd.models.sources import first_line
from tlmd.space.hardware.target import resolve, tvm_target

_TARGET = tvm_target(resolve("native"))
RIGHT, UNSUPPORTED, CRASH, WRONG = "right", "unsupported", "crash", "wrong"
_ORDER = [RIGHT, UNSUPPORTED, CRASH, WRONG]
_RANDOM = "random"
_SKIPPED = ("sparse", "jiterator", "_flash_", "_efficient_", "_scaled_mm", "empty")


def main() -> int:
    """Probe, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", help="operators whose name contains this")
    parser.add_argument("--limit", type=int, default=40, help="seconds per operator (default 40)")
    options = parser.parse_args()
    here, started = report.machine(), time.monotonic()
    _load()
    rows = [
        _probe(name, calls, options.limit)
        for name, calls in _operators()
        if not options.only or options.only in name
    ]
    rows = [row for row in rows if row["result"] != _RANDOM]
    counts = collections.Counter(row["result"] for row in rows)
    bad = [row for row in rows if row["result"] in (CRASH, WRONG)]
    if bad:
        report.show("wrong or crashed", bad)
    print(", ".join(f"{counts[kind]} {kind}" for kind in _ORDER))
    safe = counts[RIGHT] + counts[UNSUPPORTED]
    result = {
        "benchmark": "operators",
        "machine": here,
        "seconds": round(time.monotonic() - started),
        "counts": {kind: counts[kind] for kind in _ORDER},
        "operators": rows,
        "ratio": safe / max(len(rows), 1),
        "meaning": "share of operators that are right or refused in one line",
    }
    report.finish(result, options.json)
    return 0


def _load() -> None:
    """Import here, once, what every child would import when it exports and lowers."""
    torch.set_num_threads(1)
    source = torch_frontend.from_module("first", torch.nn.ReLU(), (torch.ones(2),))
    lowering.lower(source.module, _TARGET)


def _operators() -> Iterator[tuple[str, Callable[[], list[Call]]]]:
    for name in sorted({call.name for call in CALLS}):
        yield f"edge.{name}", lambda name=name: [c for c in CALLS if c.name == name]  # type: ignore[misc]
    for info in database():
        name = ":".join(filter(None, (info.name, info.variant_test_name)))
        if not any(part in name for part in _SKIPPED):
            yield name, lambda info=info: samples(info)  # type: ignore[misc]


def _probe(name: str, calls: Callable[[], list[Call]], limit: float) -> report.Row:
    """Run the calls of an operator in a child process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(False)
    child = context.Process(target=_run_all, args=(there, calls))
    started = time.monotonic()
    child.start()
    there.close()
    results: list[tuple[str, str]] = []
    try:
        while here.poll(max(0.0, started + limit - time.monotonic())):
            results.append(here.recv())
        results.append((CRASH, f"takes more than {limit:.0f} s"))
    except EOFError:
        child.join()
        if child.exitcode != 0:
            results.append((CRASH, f"the process died with code {child.exitcode}"))
    child.kill()
    child.join()
    worst = max(
        results or [(_RANDOM, "")], key=lambda r: _ORDER.index(r[0]) if r[0] in _ORDER else -1
    )
    seconds = round(time.monotonic() - started, 1)
    counted = sum(result[0] in _ORDER for result in results)
    row = {"operator": name, "result": worst[0], "cause": worst[1], "calls": counted}
    print(f"{name:45} {worst[0]:12} {seconds:5.1f} s  {worst[1]}", flush=True)
    return row | {"seconds": seconds}


def _run_all(results: Connection, calls: Callable[[], list[Call]]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    # What TVM prints on errors is long; the cause is sent.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    try:
        found = calls()
    except Exception as error:
        results.send((_RANDOM, f"no samples: {error}"))
        return
    for call in found:
        results.send(_run(call))


def _run(call: Call) -> tuple[str, str]:
    """Lower, compile and run one call, and compare with PyTorch."""
    try:
        module, tensors = call.module()
        torch.manual_seed(0)
        wanted = module(*tensors)
        torch.manual_seed(1)
        same = all(map(_close, module(*tensors), wanted))
    except Exception as error:
        return _RANDOM, f"PyTorch fails: {first_line(error)}"
    if not same:
        return _RANDOM, "its outputs are random"
    try:
        source = torch_frontend.from_module(call.name, module, tensors)
    except BadInput as error:
        return UNSUPPORTED, first_line(error)
    try:
        compiled = lowering.compile_model(lowering.lower(source.module, _TARGET), _TARGET)
        machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
        inputs = [tvm.runtime.tensor(torch_tensors.to_numpy(value)) for value in tensors]
        got = machine["main"](*inputs)
        got = [torch_tensors.to_torch(value.numpy()) for value in got]
    except Exception as error:
        return CRASH, f"{type(error).__name__}: {first_line(error)}"
    if len(got) != len(wanted):
        return WRONG, f"{len(got)} outputs, not {len(wanted)}"
    for index, (value, right) in enumerate(zip(got, wanted, strict=True)):
        if not _close(value, right):
            return WRONG, f"output {index}: {_difference(value, right)} {call.shapes()}"
    return RIGHT, ""


def _close(value: Any, right: Any) -> bool:
    if value.dtype != right.dtype or value.shape != right.shape:
        return False
    if not value.dtype.is_floating_point:
        return bool(torch.equal(value, right))
    loose = 1e-2 if value.dtype in (torch.float16, torch.bfloat16) else 1e-3
    finite = right[right.isfinite()].abs().double()
    size = float(finite.max()) if finite.numel() else 1.0
    return bool(
        torch.allclose(
            value.double(), right.double(), rtol=loose, atol=loose * 0.1 * size, equal_nan=True
        )
    )


def _difference(value: Any, right: Any) -> str:
    if value.dtype != right.dtype or value.shape != right.shape:
        return (
            f"{value.dtype} {tuple(value.shape)}, not {right.dtype} {tuple(right.shape)}"
        ).replace("torch.", "")
    both = (tensor.flatten()[:4].tolist() for tensor in (value, right))
    return "values {}, not {}".format(*both)


if __name__ == "__main__":
    sys.exit(main())
