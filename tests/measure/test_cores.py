"""Core layouts and energy from made-up /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlmd.data.errors import BadInput
from tlmd.measure.cores.core_plan import CoreLayout, plan_cores, plan_slots
from tlmd.measure.timing.energy import EnergyMeter


def topology(root: Path, groups: list[str]) -> Path:
    for text in groups:
        for part in text.split(","):
            low, _, high = part.partition("-")
            for cpu in range(int(low), int(high or low) + 1):
                folder = root / f"cpu{cpu}" / "topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_without_topology(tmp_path: Path) -> None:
    assert plan_cores({0, 1}, None, tmp_path) == CoreLayout((0, 1), (0, 1))
    assert plan_cores({0, 1}, 1, tmp_path) == CoreLayout((1,), (0,))
    assert plan_cores({3}, None, tmp_path) == CoreLayout((3,), (3,))
    assert plan_cores({3}, None, tmp_path).shared
    assert plan_cores({0, 1, 2, 3}, 2, tmp_path) == CoreLayout((2, 3), (0, 1))
    assert plan_cores({0, 1, 2, 3}, 1, tmp_path) == CoreLayout((3,), (0, 1, 2))
    assert plan_cores({0, 1}, 2, tmp_path) == CoreLayout((0, 1), (0, 1))


def test_siblings_of_a_run_core_do_not_build(tmp_path: Path) -> None:
    root = topology(tmp_path, ["0,4", "1,5", "2,6", "3,7"])
    assert plan_cores(set(range(8)), 1, root) == CoreLayout((3,), (0, 1, 2, 4, 5, 6))
    assert plan_cores(set(range(8)), 2, root) == CoreLayout((2, 3), (0, 1, 4, 5))
    assert plan_cores(set(range(8)), None, root) == CoreLayout((0, 1, 2, 3), (0, 1, 2, 3))
    assert plan_cores({2, 3, 6}, 1, root) == CoreLayout((3,), (2, 6))
    assert plan_cores({3, 7}, None, root) == CoreLayout((3,), (3,))


def test_ranges_of_siblings(tmp_path: Path) -> None:
    root = topology(tmp_path, ["0-1", "2-3"])
    assert plan_cores({0, 1, 2, 3}, 1, root) == CoreLayout((2,), (0, 1))


@pytest.mark.parametrize("run", [0, 3])
def test_a_slot_that_does_not_fit(tmp_path: Path, run: int) -> None:
    with pytest.raises(BadInput, match="cores"):
        plan_cores({0, 1}, run, tmp_path)


@pytest.mark.parametrize(("build", "builders"), [(1, 3), (2, 3), (4, 5), (16, 8), (100, 8)])
def test_more_candidates_are_built_where_there_are_more_cores(build: int, builders: int) -> None:
    assert CoreLayout((0,), tuple(range(build))).builders == builders


def rapl(root: Path, values: dict[str, tuple[int, int]]) -> Path:
    for name, (energy, limit) in values.items():
        (root / name).mkdir(exist_ok=True)
        (root / name / "energy_uj").write_text(f"{energy}\n")
        (root / name / "max_energy_range_uj").write_text(f"{limit}\n")
    return root


def test_energy_of_all_packages(tmp_path: Path) -> None:
    rapl(tmp_path, {"intel-rapl:0": (100, 10**9), "intel-rapl:1": (10**9 - 5, 10**9)})
    rapl(tmp_path, {"intel-rapl:0:0": (0, 10**9)})
    meter = EnergyMeter(tmp_path)
    meter.start()
    rapl(tmp_path, {"intel-rapl:0": (2_000_100, 10**9), "intel-rapl:1": (5, 10**9)})
    rapl(tmp_path, {"intel-rapl:0:0": (500, 10**9)})
    assert meter.stop() == pytest.approx(2.00001)


def test_no_energy_where_it_cannot_be_read(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        meter = EnergyMeter(root)
        meter.start()
        assert meter.stop() is None


def test_several_slots_share_the_other_cores(tmp_path: Path) -> None:
    slots = plan_slots(2, set(range(8)), 2, tmp_path)
    assert [s.run for s in slots] == [(4, 5), (6, 7)]
    assert {s.build for s in slots} == {(0, 1, 2, 3)}
    whole = plan_slots(2, set(range(8)), None, tmp_path)
    assert [s.run for s in whole] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert plan_slots(1, set(range(8)), None, tmp_path) == [
        plan_cores(set(range(8)), None, tmp_path)
    ]
    with pytest.raises(BadInput, match="8 physical cores"):
        plan_slots(3, set(range(8)), 4, tmp_path)
