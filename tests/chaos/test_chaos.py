"""Promise 8: whatever is killed, nothing that was acknowledged is lost, and work goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.monkey import Monkey, summary

pytestmark = pytest.mark.slow


def test_a_monkey_strikes_and_nothing_is_lost(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    blows, seed = int(pytestconfig.getoption("--blows")), int(pytestconfig.getoption("--seed"))
    monkey = Monkey(tmp_path / "state", seed)
    monkey.start()
    try:
        for number in range(blows):
            blow = monkey.strike()
            print(f"{number + 1} {blow}: {monkey.report.recoveries[-1]:.1f} s", flush=True)
    finally:
        monkey.stop()
    print(summary(monkey.report))
    assert monkey.report.lost == monkey.report.twice == 0
