"""How slow the machine is, as told by two kernels: real ones, and fakes whose machine is known."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import tvm

from tlmd.measure.timing import quiet_time
from tlmd.measure.timing.noise import Reading
from tlmd.measure.timing.reference import CacheProbe, DriftMonitor, ReferenceKernel, scheduled_gemm
from tlmd.space.hardware.target import resolve, tvm_target, vector_unit


class Kernel(ReferenceKernel):
    """Takes as long as it is told to."""

    def __init__(self, took: float) -> None:
        self.took = took

    def seconds(self) -> float:
        return self.took


class Probe(CacheProbe):
    def __init__(self, took: float) -> None:
        self.took = took

    def seconds(self) -> float:
        return self.took


def test_a_slower_clock_is_not_a_slower_cache() -> None:
    kernel, probe = Kernel(1.0), Probe(0.4)
    drift_monitor = DriftMonitor(kernel, probe, 1.0)
    kernel.took, probe.took = 1.2, 0.48
    found = drift_monitor.read()
    assert found.core == pytest.approx(1.2) and found.caches == pytest.approx(1.0)


def test_a_neighbour_is_told_and_so_is_that_it_left() -> None:
    probe = Probe(0.4)
    drift_monitor = DriftMonitor(Kernel(1.0), probe, 1.0)
    probe.took = 0.6
    assert [drift_monitor.read().caches for _ in range(5)] == pytest.approx([1.5] * 5, rel=0.01)
    probe.took = 0.4
    assert drift_monitor.read().caches == pytest.approx(1.0, rel=0.01)


def test_what_began_beside_a_neighbour_learns_what_quiet_is() -> None:
    probe = Probe(0.6)
    drift_monitor = DriftMonitor(Kernel(1.0), probe, 1.0)
    probe.took = 0.4
    for _ in range(20):
        assert drift_monitor.read().caches == 1.0
    probe.took = 0.6
    assert drift_monitor.read().caches == pytest.approx(1.5, rel=0.02)


def test_one_reading_that_is_too_fast_is_forgotten() -> None:
    probe = Probe(0.4)
    drift_monitor = DriftMonitor(Kernel(1.0), probe, 1.0)
    probe.took = 0.2
    drift_monitor.read()
    probe.took = 0.4
    told = [drift_monitor.read().caches for _ in range(20_000)]
    assert told[0] == pytest.approx(1 / 0.875) and told[-1] < 1.01


def test_children_share_what_is_known_of_the_best() -> None:
    probe = Probe(0.6)
    drift_monitor = DriftMonitor(Kernel(1.0), probe, 1.0)
    pid = os.fork()
    if not pid:
        probe.took = 0.4
        for _ in range(30):
            drift_monitor.read()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert drift_monitor.read().caches == pytest.approx(1.5, rel=0.02)


def test_the_real_kernels_tell_a_possible_speed() -> None:
    info = resolve("native", 1)
    target = tvm_target(info)
    kernel = ReferenceKernel(target)
    probe = CacheProbe(target, info.l2_bytes)
    drift_monitor = DriftMonitor(kernel, probe, kernel.settled_seconds())
    for reading in [drift_monitor.read() for _ in range(5)]:
        assert isinstance(reading, Reading)
        assert 0.2 < reading.core < 50 and 1.0 <= reading.caches < 1000
    assert DriftMonitor(kernel, CacheProbe(target, 0), 1e-4).reference_s == 1e-4


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
def test_the_sums_of_the_real_kernel_stay_in_registers(cpu: str) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    built = tvm.compile(scheduled_gemm(vector_unit(target).lanes), target)
    assembly = built.mod.inspect_source("asm")
    assert "vfmadd" in assembly
    assert not re.search(r"\(%rsp\), %[yz]mm", assembly)  # loads a vector from the stack


def test_the_fastest_reading_of_all_servers_counts(tmp_path: Path) -> None:
    def fastest(seconds: float, name: str = "zen") -> float:
        return quiet_time.fastest(tmp_path, name, seconds)

    assert [fastest(s) for s in (2e-6, 3e-6, 1e-6, 2e-6)] == [2e-6, 2e-6, 1e-6, 1e-6]
    assert fastest(5e-6, "other hardware") == 5e-6
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "soon", "nan", "-1", "0"])
def test_a_damaged_file_counts_as_none(text: str, tmp_path: Path) -> None:
    quiet_time.fastest(tmp_path, "zen", 1e-6)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert quiet_time.fastest(tmp_path, "zen", 2e-6) == 2e-6
    assert quiet_time.fastest(tmp_path, "zen", 3e-6) == 2e-6


def test_a_start_does_not_fail_where_nothing_can_be_written(tmp_path: Path) -> None:
    assert quiet_time.fastest(tmp_path / "missing", "zen", 2e-6) == 2e-6
