"""The work of a forked child: one request and its report; every failure is an outcome.

The child of the single-threaded server inherits TVM, the parsed task and its inputs. It ends with
`os._exit`, so it neither flushes nor closes anything of the server's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tlmd.data.types import Outcome, Status, Timing
from tlmd.measure.protocol import MeasureReply, MeasureRequest, send
from tlmd.measure.server import sandbox
from tlmd.measure.server.candidate_run import CandidateRun
from tlmd.measure.server.child_context import ChildContext, LoadedProgram, ServerContext, Stopwatch
from tlmd.measure.server.finalist_comparison import FinalistComparison
from tlmd.measure.server.program import Program
from tlmd.space.apply_trace import InvalidCandidate


def run(
    server: ServerContext,
    request: MeasureRequest,
    given: Sequence[tuple[Program, list[Any] | None]],
    forked_s: float,
    report_fd: int,
    log_fd: int,
) -> None:
    """Carry out `request` and report; never raises. `forked_s` is `time.perf_counter` at the fork.

    `given` is the program of each input with its arguments, None where the child has to make them.
    """
    sandbox.restrict(server.setup, server.config, request.is_baseline, log_fd)
    stopwatch = Stopwatch(forked_s)
    stopwatch.lap("start")
    loaded = tuple(LoadedProgram(program, inputs) for program, inputs in given)
    context = ChildContext(server, loaded, report_fd, stopwatch)
    try:
        work = FinalistComparison if request.is_comparison else CandidateRun
        outcomes = work(context, request).measure()
    except InvalidCandidate as error:
        outcomes = (Outcome(Status.INVALID, detail=_one_line(error)),)
    except MemoryError as error:
        outcomes = (Outcome(Status.OUT_OF_MEMORY, detail=_one_line(error) or "MemoryError"),)
    except Exception as error:
        outcomes = (Outcome(_status_of(error, context.built), detail=_one_line(error)),)
    timing = Timing(**stopwatch.stages)
    with contextlib.suppress(OSError):
        timed = tuple(replace(outcome, timing=timing) for outcome in outcomes)
        send(report_fd, MeasureReply(request.ticket, timed, time.perf_counter()))


def _status_of(error: Exception, built: bool) -> Status:
    if sandbox.says_out_of_memory(str(error)):
        return Status.OUT_OF_MEMORY
    return Status.RUN_ERROR if built else Status.BUILD_ERROR


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "failed" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1][:300]
