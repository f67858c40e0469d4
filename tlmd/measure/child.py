"""What a forked child does: its work, with whatever goes wrong as an outcome, and the report.

The child of a single-threaded server inherits TVM, the parsed task and its inputs. It ends with
`os._exit`, so nothing of the server's is flushed or closed twice.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

from tlmd.measure import sandbox
from tlmd.measure.attempt import Attempt
from tlmd.measure.program import Program
from tlmd.measure.protocol import Final, Verdict, Work, send
from tlmd.measure.race import Race
from tlmd.measure.rig import Environment, Stopwatch, Workplace
from tlmd.space.schedule import InvalidCandidate
from tlmd.types import Outcome, Status, Timing


def run(
    env: Environment,
    work: Work | Final,
    program: Program,
    inputs: list[Any] | None,
    forked_s: float,
    report_fd: int,
    log_fd: int,
) -> None:
    """Measure `work` and report; never raises. `forked_s` is `time.perf_counter` at the fork."""
    sandbox.shield(env.setup, work.is_baseline, log_fd)
    watch = Stopwatch(forked_s)
    watch.lap("start")
    place = Workplace(env, program, inputs, report_fd, watch)
    try:
        kind = Race(place, work) if isinstance(work, Final) else Attempt(place, work)
        outcomes = kind.measure()
    except InvalidCandidate as error:
        outcomes = (Outcome(Status.INVALID, detail=_one_line(error)),)
    except MemoryError as error:
        outcomes = (Outcome(Status.OUT_OF_MEMORY, detail=_one_line(error) or "MemoryError"),)
    except Exception as error:
        outcomes = (Outcome(_blame(error, place.built), detail=_one_line(error)),)
    timing = Timing(**watch.stages)
    with contextlib.suppress(OSError):
        verdict = tuple(replace(outcome, timing=timing) for outcome in outcomes)
        send(report_fd, Verdict(verdict, time.perf_counter()))


def _blame(error: Exception, built: bool) -> Status:
    if sandbox.says_out_of_memory(str(error)):
        return Status.OUT_OF_MEMORY
    return Status.RUN_ERROR if built else Status.BUILD_ERROR


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "failed" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1][:300]
