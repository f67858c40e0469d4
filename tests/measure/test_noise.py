"""The noise model: what it says of times whose truth is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlmd.measure.timing.noise import Reading, estimate

times = st.floats(1e-6, 10.0)
shares = st.lists(st.floats(0.0, 0.5), min_size=1, max_size=20)


@given(times, shares)
def test_the_estimate_lies_in_its_interval(seconds: float, delays: list[float]) -> None:
    found = estimate([seconds * (1 + d) for d in delays], [Reading()] * len(delays))
    assert 0 < found.low <= found.seconds <= found.high
    assert found.high <= 1.02 * seconds * (1 + min(delays))


@given(times, shares, st.floats(0.5, 2.0))
def test_a_known_drift_changes_nothing(seconds: float, delays: list[float], drift: float) -> None:
    samples = [seconds * (1 + d) for d in delays]
    quiet = estimate(samples, [Reading()] * len(samples))
    slow = estimate([drift * s for s in samples], [Reading(drift)] * len(samples))
    assert slow.seconds == pytest.approx(quiet.seconds)
    assert slow.spread == pytest.approx(quiet.spread)


@given(times, shares, st.floats(1.0, 3.0), st.floats(0.3, 1.5))
def test_a_correction_ends_at_what_the_machine_can_do(
    seconds: float, delays: list[float], drift: float, share: float
) -> None:
    samples = [seconds * (1 + d) for d in delays]
    least_s = share * seconds
    found = estimate(samples, [Reading(drift)] * len(samples), least_s)
    assert min(least_s, *samples) <= found.low <= found.seconds <= found.high
    free = estimate(samples, [Reading(drift)] * len(samples))
    if free.low >= least_s:
        assert found == free
    if free.seconds < min(least_s, *samples):  # it may be as slow as the clock said
        assert found.high >= max(samples)


@given(times, shares)
def test_more_of_the_same_narrows_the_interval(seconds: float, delays: list[float]) -> None:
    samples = [seconds * (1 + d) for d in delays]
    one = estimate(samples, [Reading()] * len(samples))
    four = estimate(4 * samples, [Reading()] * 4 * len(samples))
    assert four.spread <= one.spread


@pytest.mark.parametrize("count", [1, 3, 7, 20])
@pytest.mark.parametrize("delay", [0.01, 0.03, 0.1])
def test_the_interval_holds_the_truth_as_often_as_it_says(count: int, delay: float) -> None:
    rng = random.Random(count)
    held = 0
    for _ in range(400):
        samples = [1 + rng.expovariate(1 / delay) for _ in range(count)]
        found = estimate(samples, [Reading()] * count)
        held += found.low <= 1.0
    # One repeat knows the delays from before only; heavier ones than expected are not foreseen.
    assert held / 400 >= (0.9 if count > 1 or delay <= 0.03 else 0.7)


@pytest.mark.parametrize("count", [3, 7, 20])
def test_a_reference_that_was_disturbed_makes_nothing_faster(count: int) -> None:
    rng = random.Random(count)
    found = []
    for _ in range(200):
        samples = [1 + rng.expovariate(1 / 0.03) for _ in range(count)]
        slow = [1 + rng.expovariate(1 / 0.2) * (rng.random() < 0.4) for _ in range(count)]
        found.append(estimate(samples, [Reading(s) for s in slow]).seconds)
    assert 0.98 < sum(found) / 200 < 1.02 and min(found) > 0.8


def test_the_estimate_corrects_for_few_repeats() -> None:
    rng = random.Random(0)
    few, many = [], []
    for _ in range(400):
        samples = [1 + rng.expovariate(1 / 0.03) for _ in range(20)]
        few.append(estimate(samples[:3], [Reading()] * 3).seconds)
        many.append(estimate(samples, [Reading()] * 20).seconds)
    assert abs(sum(few) / 400 - sum(many) / 400) < 0.005


@given(times, shares, st.floats(1.0, 1.5), st.floats(0.0, 1.0), st.floats(0.0, 0.95))
def test_what_slow_caches_may_have_cost_is_in_the_interval(
    seconds: float, delays: list[float], caches: float, felt: float, arithmetic: float
) -> None:
    least_s = arithmetic * seconds  # feels nothing of the caches
    quick = [seconds * (1 + d) for d in delays]
    quiet = estimate(quick, [Reading()] * len(quick), least_s)
    samples = [least_s + (s - least_s) * caches**felt for s in quick]
    slow = estimate(samples, [Reading(1.0, caches)] * len(samples), least_s)
    assert slow.low <= quiet.low * (1 + 1e-9) and quiet.high <= slow.high * (1 + 1e-9)
    assert slow.low <= slow.seconds <= slow.high


@given(times, st.floats(1.0, 1.1), st.floats(1.0, 1.5))
def test_what_is_nearly_all_arithmetic_is_hardly_corrected(
    least_s: float, share: float, caches: float
) -> None:
    samples = 7 * [share * least_s]
    quiet = estimate(samples, [Reading()] * 7, least_s)
    found = estimate(samples, [Reading(1.0, caches)] * 7, least_s)
    assert quiet.seconds - found.seconds <= 0.2 * (share - 1) * least_s + 1e-9 * least_s
    assert found.spread <= quiet.spread + (share - 1) / 2 + 0.002
