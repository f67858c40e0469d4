"""Promise 8: whatever is killed, nothing that was acknowledged is lost, and work goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.monkey import Monkey

pytestmark = pytest.mark.slow
_LONG = 10


def test_a_monkey_strikes_and_nothing_is_lost(
    tmp_path: Path, pytestconfig: pytest.Config, untrained: Path
) -> None:
    blows, seed = int(pytestconfig.getoption("--blows")), int(pytestconfig.getoption("--seed"))
    monkey = Monkey(tmp_path, seed, untrained)
    try:
        monkey.start()
        for _ in range(blows):
            monkey.strike()
        if blows >= _LONG:  # it compiles a model, as other tests do
            monkey.check_export()
    finally:
        monkey.stop()
        print(monkey.report.summary())
    assert monkey.report.lost == monkey.report.twice == 0
    assert max(monkey.report.recoveries) < 60.0
