"""How often a program is run, with a fake program and a fake clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tlmd.measure.timing import sample


class Fake:
    """A program that takes `seconds`; counts its runs and moves its own clock."""

    def __init__(self, seconds: float, later: Sequence[float] = ()) -> None:
        self.now, self.calls = 0.0, list[tuple[int, int]]()
        self._seconds, self._later = seconds, list(later)

    def evaluate(self, number: int, repeat: int) -> list[float]:
        self.calls.append((number, repeat))
        out = [self._later.pop(0) if self._later else self._seconds for _ in range(repeat)]
        self.now += out[0] + sum(number * t for t in out)  # one run is discarded
        return out

    def clock(self) -> float:
        return self.now


def test_all_repeats_are_kept_without_an_incumbent() -> None:
    fake = Fake(5e-3)
    result = sample(fake.evaluate, 6e-3, clock=fake.clock)
    assert result.seconds == (5e-3,) * 7 and not result.slow
    assert fake.calls == [(1, 1), (1, 2), (1, 4)]
    assert result.runs == 1 + 2 + 3 + 5


@pytest.mark.parametrize("seconds", [1e-6, 3e-5, 9e-4])
def test_a_repeat_of_a_short_program_lasts_two_milliseconds(seconds: float) -> None:
    fake = Fake(seconds)
    sample(fake.evaluate, 50 * seconds, clock=fake.clock)
    number = fake.calls[-1][0]
    assert 2e-3 <= number * seconds < 2e-3 + 2 * seconds


def test_early_stops() -> None:
    hopeless = Fake(0.05)
    assert sample(hopeless.evaluate, 0.05, incumbent_s=0.004, clock=hopeless.clock).slow
    assert hopeless.calls == []
    slow = Fake(0.004)
    assert len(sample(slow.evaluate, 0.004, incumbent_s=0.001, clock=slow.clock).seconds) == 1
    slower = Fake(0.0014)
    result = sample(slower.evaluate, 0.0014, incumbent_s=0.001, clock=slower.clock)
    assert len(result.seconds) == 3 and result.slow


def test_one_slow_repeat_is_not_enough_to_stop() -> None:
    fake = Fake(0.0011, later=[0.0025])
    result = sample(fake.evaluate, 0.003, incumbent_s=0.001, clock=fake.clock)
    assert not result.slow and len(result.seconds) == 14


@pytest.mark.parametrize(("seconds", "count"), [(0.9e-3, 14), (1.1e-3, 14), (1.25e-3, 7)])
def test_candidates_near_the_incumbent_are_measured_again(seconds: float, count: int) -> None:
    fake = Fake(seconds)
    result = sample(fake.evaluate, seconds, incumbent_s=1e-3, clock=fake.clock)
    assert len(result.seconds) == count and not result.slow


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 0.2, 0.45, 0.9])
def test_the_budget_holds(seconds: float) -> None:
    fake = Fake(seconds)
    result = sample(fake.evaluate, seconds, budget_s=1.0, clock=fake.clock)
    assert fake.now <= 1.0
    assert result.seconds


def test_a_program_beyond_the_budget_keeps_its_first_run() -> None:
    fake = Fake(5.0)
    assert sample(fake.evaluate, 5.0, budget_s=1.0, clock=fake.clock).seconds == (5.0,)
    assert fake.calls == []
