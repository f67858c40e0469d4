"""The figures of a daemon for Prometheus: the page ``/metrics``, and what a Ray cluster exports.

The number of label values is bounded: names of tasks and ids of jobs or processes are no labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tlmd.data.types import JobState
from tlmd.pipeline.orders import WorkerKind

STATES = ("running", "idle", "converged", "paused", "stopping")
"""The states of a daemon."""


def render(status: dict[str, Any], events: dict[str, int]) -> bytes:
    """Render the metrics of a daemon in Prometheus' text format.

    `status` is the document of ``tlmd status --json``; `events` counts the events by kind.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(status, events))
    return generate_latest(registry)


class _Snapshot(Collector):
    """The metrics of one scrape. Each scrape uses a new object."""

    def __init__(self, status: dict[str, Any], events: dict[str, int]) -> None:
        self._status = status
        self._events = events

    def collect(self) -> Iterator[Metric]:
        """All metric families, in the order in which they are printed."""
        return families(self._status, self._events)


def families(status: dict[str, Any], events: dict[str, int]) -> Iterator[Metric]:
    """All figures; `status` and `events` as for `render`."""
    yield _counter("measured", "Measured candidates, including failed ones.", status["measured"])
    yield _counter("failed", "Candidates that failed to build, run or verify.", status["failed"])
    yield _gauge("rate", "Candidates measured per second, recently.", status["rate_per_s"])
    yield _gauge("version", "Checkpoint of the TLM in force.", status["version"])
    yield _gauge("lag", "Newest version minus the version of the last candidates.", status["lag"])
    if status["batch"] is not None:
        yield _gauge("batch", "Newest batch that was planned.", status["batch"])
    states = {state: int(status["state"] == state) for state in STATES}
    yield _gauges("state", "1 for the current state of the daemon, else 0.", "state", states)
    jobs = dict.fromkeys(map(str, JobState), 0) | status["job_counts"]
    yield _gauges("jobs", "All jobs of the state directory, by state.", "state", jobs)
    slots = status["slots"]
    yield _gauge("slots", "Slots that measure.", len(slots))
    share = sum(slot["in_flight"] > 0 for slot in slots) / max(len(slots), 1)
    yield _gauge("slots_busy", "Share of the slots that have candidates, 0 to 1.", share)
    # Absent until the actors have started.
    candidates = {"queued": 0, "in_flight": 0} | (status.get("candidates") or {})
    yield _gauges("candidates", "Written candidates that are not measured.", "state", candidates)
    busy = {slot["name"]: slot["busy_s"] for slot in slots}
    yield _counters("slot_busy_seconds", "Seconds during which a slot had work.", "slot", busy)
    actors = _count((str(kind) for kind in WorkerKind), (a["kind"] for a in status["actors"]))
    yield _gauges("actors", "Actors that are alive, by kind.", "kind", actors)
    yield _counters("events", "Events of the trace, by kind.", "kind", events)
    gain = (status["convergence"] or {}).get("gain")
    if gain is not None:
        yield _gauge("convergence_gain", "Share that a campaign gained over its window.", gain)
    training = status.get("training") or {}
    running = int(training.get("running", False))
    yield _gauge("training_running", "1 while a newer checkpoint is being trained.", running)


def _count(names: Iterable[str], seen: Iterable[str]) -> dict[str, int]:
    """Count how often each value occurs. Known values that do not occur have the count 0."""
    counts = dict.fromkeys(names, 0)
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
