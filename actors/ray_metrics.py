"""Gives figures to Ray, whose agent on this node exports them for Prometheus and the dashboard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.metrics_core import Metric
from ray.util.metrics import Counter, Gauge

_log = logging.getLogger("tlmd.cluster")

_EVERY_S = 1.0  # Ray forgets a value that it has exported


class RayMetrics:
    """Hands over what `families` returns once a second, in a thread of its own.

    Ray puts ``ray_`` before each name, and does not show a counter that stands at 0. Make it after
    `ray.init`, and call `close` before `ray.shutdown`.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families
        self._made: dict[str, Any] = {}
        self._known: dict[tuple[str, tuple[str, ...]], float] = {}  # what counters stand at
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(20 * _EVERY_S)

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            try:
                for family in self._families():
                    self._put(family)
            except Exception:  # figures are worth less than the daemon
                _log.exception("figures cannot be given to Ray")
                return

    def _put(self, family: Metric) -> None:
        for sample in family.samples:
            made = self._made.get(family.name)
            if made is None:
                kind = Counter if family.type == "counter" else Gauge
                made = kind(family.name, family.documentation, tuple(sample.labels))
                self._made[family.name] = made
            if family.type != "counter":
                made.set(sample.value, sample.labels)
                continue
            series = family.name, tuple(sample.labels.values())
            grown = sample.value - self._known.get(series, 0.0)
            if grown > 0:  # Ray refuses to add nothing
                made.inc(grown, sample.labels)
                self._known[series] = sample.value
