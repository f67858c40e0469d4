"""What Prometheus reads at ``/metrics``: the status document in its text format.

No label grows without bound: there are no names of tasks, ids of jobs or of processes in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tlmd.pipeline.jobs import JobState
from tlmd.pipeline.orders import Kind

STATES = ("running", "idle", "converged", "paused", "stopping")
"""What a daemon can be doing."""


def render(status: dict[str, Any], events: dict[str, int]) -> bytes:
    """The metrics of a daemon in Prometheus' text format.

    `status` is the document of ``tlmd status --json``, `events` counts the trace's by kind.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(status, events))
    return generate_latest(registry)


class _Snapshot(Collector):
    """One scrape; the next one gets another."""

    def __init__(self, status: dict[str, Any], events: dict[str, int]) -> None:
        self._status = status
        self._events = events

    def collect(self) -> Iterator[Metric]:
        """All families, in the order they are printed."""
        return _families(self._status, self._events)


def _families(status: dict[str, Any], events: dict[str, int]) -> Iterator[Metric]:
    yield _counter("measured", "Candidates measured, failed ones included.", status["measured"])
    yield _counter("failed", "Candidates that failed to build, run or verify.", status["failed"])
    yield _gauge("rate", "Candidates measured per second, lately.", status["rate_per_s"])
    yield _gauge("version", "Checkpoint of the TLM in force.", status["version"])
    yield _gauge("lag", "Newest version minus that of the last candidates.", status["lag"])
    if status["batch"] is not None:
        yield _gauge("batch", "Newest batch that was planned.", status["batch"])
    now = {state: int(status["state"] == state) for state in STATES}
    yield _gauges("state", "1 for what the daemon is doing, else 0.", "state", now)
    jobs = _count((str(state) for state in JobState), (j["state"] for j in status["jobs"]))
    yield _gauges("jobs", "Jobs there ever were, by state.", "state", jobs)
    slots = status["slots"]
    yield _gauge("slots", "Slots that measure.", len(slots))
    busy = {slot["name"]: slot["busy_s"] for slot in slots}
    yield _counters("slot_busy_seconds", "How long a slot has had work.", "slot", busy)
    actors = _count((str(kind) for kind in Kind), (a["kind"] for a in status["actors"]))
    yield _gauges("actors", "Actors that are alive, by kind.", "kind", actors)
    yield _counters("events", "Events of the trace, by kind.", "kind", events)
    gain = (status["convergence"] or {}).get("gain")
    if gain is not None:
        yield _gauge("convergence_gain", "Share a campaign gained over its window.", gain)
    training = status.get("training") or {}  # absent until the actors are there
    running = int(training.get("running", False))
    yield _gauge("training_running", "1 while a newer checkpoint is on its way.", running)


def _count(known: Iterable[str], seen: Iterable[str]) -> dict[str, int]:
    """How often each known value occurs: one that does not is 0, not absent."""
    counts = dict.fromkeys(known, 0)
    for value in seen:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"tlmd_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"tlmd_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: dict[str, Any]) -> Metric:
    return _labelled(CounterMetricFamily(f"tlmd_{name}", text, labels=[label]), values)


def _gauges(name: str, text: str, label: str, values: dict[str, Any]) -> Metric:
    return _labelled(GaugeMetricFamily(f"tlmd_{name}", text, labels=[label]), values)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, values: dict[str, Any]) -> Metric:
    for label, value in sorted(values.items()):
        family.add_metric([label], value)
    return family
