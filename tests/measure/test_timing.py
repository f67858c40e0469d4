"""How often a program is run, with a fake program and a fake clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tlmd.measure.timing.noise import Reading
from tlmd.measure.timing.timing import Samples, StoppingRule, sample


class Fake:
    """A program that takes `seconds`; counts its runs and moves its own clock.

    `later` are the first repeats' seconds, `slowness` is the machine's as the reference tells it.
    """

    def __init__(
        self, seconds: float, later: Sequence[float] = (), slowness: Sequence[float] = ()
    ) -> None:
        self.now, self.calls = 0.0, list[int]()
        self._seconds, self._later = seconds, list(later)
        self._slowness = list(slowness)
        self._slow = self.caches = 1.0

    def run(self, number: int) -> float:
        self.calls.append(number)
        one = self._slow * (self._later.pop(0) if self._later else self._seconds)
        self.now += number * one
        return one

    def read(self) -> Reading:
        if self._slowness:
            self._slow = self._slowness.pop(0)
        return Reading(self._slow, self.caches)

    def sample(
        self, first_s: float, incumbent_s: float | None = None, budget_s: float = 3.0
    ) -> Samples:
        race = StoppingRule(incumbent_s, budget_s=budget_s)
        return sample(self.run, self.read, first_s, race, clock=lambda: self.now)


def test_all_repeats_are_kept_without_an_incumbent() -> None:
    fake = Fake(5e-3)
    result = fake.sample(6e-3)
    assert result.seconds == [5e-3] * 7 and not result.slow
    assert fake.calls == [1] * 7 and result.runs == 1 + 7


@pytest.mark.parametrize("seconds", [1e-6, 3e-5, 9e-4])
def test_a_repeat_of_a_short_program_lasts_two_milliseconds(seconds: float) -> None:
    fake = Fake(seconds)
    fake.sample(50 * seconds)
    number = fake.calls[-1]
    assert 2e-3 <= number * seconds < 2e-3 + 2 * seconds


def test_slow_candidates_stop_early() -> None:
    hopeless = Fake(0.05)
    assert hopeless.sample(0.05, incumbent_s=0.004).slow and hopeless.calls == []
    slow = Fake(0.004)
    assert len(slow.sample(0.004, incumbent_s=0.001).seconds) == 3
    slower = Fake(0.00115)
    result = slower.sample(0.00115, incumbent_s=0.001)
    assert len(result.seconds) == 3 and result.slow
    long = Fake(0.03)
    assert len(long.sample(0.03, incumbent_s=0.02).seconds) == 1


def test_two_slow_repeats_are_not_enough_to_stop() -> None:
    fake = Fake(0.0009, later=[0.00095, 0.0027, 0.00135])
    result = fake.sample(0.003, incumbent_s=0.001)
    assert not result.slow and len(result.seconds) >= 7


def test_three_short_repeats_take_no_longer_than_a_long_one() -> None:
    fake = Fake(1e-5)
    fake.sample(1e-4, incumbent_s=1e-6)
    assert sum(fake.calls[1:]) * 1e-5 < 2.1e-3


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.9e-3, 7, 7), (1.004e-3, 8, 28)])
def test_a_contender_is_timed_longer_than_a_winner(seconds: float, least: int, most: int) -> None:
    noise = [seconds * (1 + 0.03 * (i % 3)) for i in range(40)]
    fake = Fake(seconds, later=noise)
    result = fake.sample(seconds, incumbent_s=1e-3)
    assert least <= len(result.seconds) <= most + 1 and not result.slow


def test_what_crowded_caches_leave_open_more_repeats_do_not_settle() -> None:
    fake = Fake(1.1e-3)
    fake.caches = 1.4
    result = fake.sample(1.1e-3, incumbent_s=1e-3)
    assert not result.slow and len(result.seconds) <= 8


def test_a_machine_that_slows_down_does_not_make_a_candidate_slow() -> None:
    fake = Fake(0.95e-3, slowness=[2.0] * 50)
    result = fake.sample(1.9e-3, incumbent_s=1e-3)
    assert not result.slow
    assert result.estimate.seconds == pytest.approx(0.95e-3, rel=0.02)


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 0.2, 0.45, 0.9])
def test_the_budget_holds(seconds: float) -> None:
    fake = Fake(seconds)
    result = fake.sample(seconds, budget_s=1.0)
    assert fake.now <= 1.0
    assert result.seconds


def test_a_program_beyond_the_budget_keeps_its_first_run() -> None:
    fake = Fake(5.0)
    assert fake.sample(5.0, budget_s=1.0).seconds == [5.0]
    assert fake.calls == []
