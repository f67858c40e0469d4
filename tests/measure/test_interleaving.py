"""Interleaved rounds with fake programs on a machine whose speed drifts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tlmd.measure.timing.interleaving import difference, interleave, leader
from tlmd.measure.timing.noise import Reading
from tlmd.measure.timing.timing import Samples


class Machine:
    """A clock that programs move; its slowness changes from round to round, and delays happen."""

    def __init__(self, seed: int, delay: float = 0.02) -> None:
        self.now, self.slow = 0.0, 1.0
        self._rng, self._delay = random.Random(seed), delay

    def program(self, seconds: float) -> Callable[[int], float]:
        def run(number: int) -> float:
            one = seconds * self.slow * (1 + self._rng.expovariate(1 / self._delay))
            self.now += number * one
            return one

        return run

    def read(self) -> Reading:
        self.slow = self._rng.uniform(0.7, 1.5)
        return Reading()  # as a reference kernel that does not feel it

    def race(self, *seconds: float, budget_s: float = 5.0) -> list[int]:
        runs = [self.program(s) for s in seconds]
        found = interleave(runs, self.read, seconds, budget_s, clock=lambda: self.now)
        self.rounds = [len(f.seconds) for f in found]
        return sorted(range(len(found)), key=lambda i: difference(found[i], found[leader(found)]))


@pytest.mark.parametrize("seed", range(10))
def test_pairs_find_the_fastest_whatever_the_machine_does(seed: int) -> None:
    machine = Machine(seed)
    assert machine.race(1.03e-3, 1.0e-3, 1.05e-3)[0] == 1


def test_only_who_stayed_can_lead() -> None:
    # The first was dropped by a leader that was dropped itself later on.
    rounds = ([0.9] * 3, [1.0] * 9, [1.1] * 9)
    assert leader([Samples(seconds, [Reading()] * len(seconds)) for seconds in rounds]) == 1


def test_losers_sit_out() -> None:
    machine = Machine(1)
    machine.race(1e-3, 1.5e-3, 1.01e-3)
    assert machine.rounds[1] < machine.rounds[0] and machine.rounds[1] <= 8


def test_equal_programs_end_and_the_budget_holds() -> None:
    machine = Machine(2, delay=1e-4)
    machine.race(1e-3, 1e-3)
    assert max(machine.rounds) < 40
    slow = Machine(3)
    slow.race(0.4, 0.41, 0.42, budget_s=2.0)
    assert slow.now < 2.0 + 4 * 0.7
