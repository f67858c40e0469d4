"""`/metrics`: Prometheus' own parser reads back what the status document says."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families as parse

from tlmd.daemon import metrics

IDLE: dict[str, Any] = {
    "state": "idle",
    "batch": None,
    "version": 0,
    "lag": 0,
    "measured": 0,
    "failed": 0,
    "rate_per_s": 0.0,
    "slots": [],
    "actors": [],
    "jobs": [],
    "job_counts": {},
    "convergence": None,
    "uptime_s": 0.4,
    "tlmd": "0.1.0",
}
BUSY: dict[str, Any] = IDLE | {
    "state": "running",
    "batch": 12,
    "version": 3,
    "lag": 1,
    "measured": 812,
    "failed": 9,
    "rate_per_s": 2.41,
    "slots": [{"name": "slot-0", "busy_s": 210.2, "in_flight": 4}],
    "actors": [
        {"name": "generator-0", "kind": "generator", "pid": 4711},
        {"name": "generator-1", "kind": "generator", "pid": 4712},
        {"name": "slot-0", "kind": "measurer", "pid": 4713},
        {"name": "registry", "kind": "registry", "pid": 4714},
    ],
    "jobs": [
        {"id": "bert-1f00", "model": "bert", "state": "done"},
        {"id": "bert-2f00", "model": "bert", "state": "done"},
        {"id": "evil-3f00", "model": 'a"} b{c="', "state": "running"},
    ],
    "job_counts": {"done": 2, "running": 1},
    "convergence": {"measured": 9, "window": 20, "gain": 0.02, "limit": 0.01, "converged": False},
    "candidates": {"queued": 20, "in_flight": 4},
    "training": {"running": True, "loss": 0.81, "steps": 60},
}

Sample = tuple[str, frozenset[tuple[str, str]]]


def scrape(status: dict[str, Any], events: dict[str, int] | None = None) -> dict[Sample, float]:
    text = metrics.render(status, events or {}).decode()
    samples = [sample for family in parse(text) for sample in family.samples]
    found = {(s.name, frozenset(s.labels.items())): s.value for s in samples}
    assert len(found) == len(samples), "a series occurs twice"
    return found


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tlmd_measured_total", 812),
        ("tlmd_failed_total", 9),
        ("tlmd_rate", 2.41),
        ("tlmd_version", 3),
        ("tlmd_lag", 1),
        ("tlmd_batch", 12),
        ("tlmd_slots", 1),
        ("tlmd_slots_busy", 1),
        ("tlmd_convergence_gain", 0.02),
        ("tlmd_training_running", 1),
    ],
)
def test_a_figure_of_the_status_is_a_metric(name: str, expected: float) -> None:
    assert value(scrape(BUSY), name) == expected


def test_labels_tell_states_kinds_and_slots_apart() -> None:
    found = scrape(BUSY, {"published": 2, "refused": 1})
    assert {s: value(found, "tlmd_state", state=s) for s in metrics.STATES} == {
        "running": 1,
        "idle": 0,
        "converged": 0,
        "paused": 0,
        "stopping": 0,
    }
    assert value(found, "tlmd_jobs", state="done") == 2
    assert value(found, "tlmd_jobs", state="running") == 1
    assert value(found, "tlmd_jobs", state="failed") == 0
    assert value(found, "tlmd_actors", kind="generator") == 2
    assert value(found, "tlmd_actors", kind="trainer") == 0
    assert value(found, "tlmd_slot_busy_seconds_total", slot="slot-0") == 210.2
    assert value(found, "tlmd_candidates", state="queued") == 20
    assert value(found, "tlmd_candidates", state="in_flight") == 4
    assert value(found, "tlmd_events_total", kind="published") == 2
    assert value(found, "tlmd_events_total", kind="refused") == 1


def test_what_is_not_known_is_absent() -> None:
    found = scrape(IDLE)
    absent = {"tlmd_batch", "tlmd_convergence_gain", "tlmd_slot_busy_seconds_total"}
    assert not absent & {name for name, _ in found}
    assert value(found, "tlmd_training_running") == value(found, "tlmd_slots_busy") == 0
    assert value(found, "tlmd_state", state="idle") == 1
    unknown = BUSY | {"convergence": BUSY["convergence"] | {"gain": None}}
    assert "tlmd_convergence_gain" not in {name for name, _ in scrape(unknown)}


def test_no_label_grows_with_what_users_do() -> None:
    text = metrics.render(BUSY, {}).decode()
    for unbounded in ("bert", "evil", "4711", "generator-0", "0.1.0"):
        assert unbounded not in text


def test_every_metric_is_explained_and_typed() -> None:
    text = metrics.render(BUSY, {"published": 1}).decode()
    for family in parse(text):
        assert family.documentation.endswith("."), family.name
        totals = {s.name.endswith("_total") for s in family.samples}
        assert totals == {family.type == "counter"}, family.name


def test_scrapes_leave_nothing_behind() -> None:
    before = {family.name for family in REGISTRY.collect()}
    assert metrics.render(BUSY, {}) == metrics.render(BUSY, {})
    after = {family.name for family in REGISTRY.collect()}
    assert before == after and not any(name.startswith("tlmd") for name in after)
