"""Start the processes of `benchmarks.coverage`, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
from typing import Any

_context = multiprocessing.get_context("forkserver")
# Importing TVM, PyTorch and transformers takes seconds; the server of the forks does it once.
_context.set_forkserver_preload(["benchmarks.coverage.coverage_child"])


def start(group: str, name: str, folder: str, stock: bool) -> tuple[Any, Any]:
    """A process that tries one network, and the connection over which it sends messages."""
    from benchmarks.coverage.coverage_child import Job, examine

    here, there = _context.Pipe(duplex=False)
    process = _context.Process(target=examine, args=(Job(group, name, folder, stock), there))
    process.start()
    there.close()
    return process, here
