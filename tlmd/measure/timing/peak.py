"""Measures what the run cores can do: multiply-add peak, memory bandwidth, noise.

`python -m tlmd.measure.timing.peak measure_roofline|noise TARGET_JSON CORES` prints its figures as
one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import Failed
from tlmd.data.types import TargetInfo
from tlmd.measure.timing.timing import REPEAT_S
from tlmd.processes import children
from tlmd.processes.durable import replacing
from tlmd.space import tvm_alone

if TYPE_CHECKING:
    import tvm

_PATIENCE_S = 120.0
_NOISE_S = 2.0
_KEPT_S = 7 * 86_400.0
_CROWDED = 1.15  # times the probe's fastest reading


@dataclass(frozen=True)
class Traffic:
    """The least that a task has to do: operations, and bytes of its arguments."""

    flops: float
    constant_bytes: int
    """Bytes of the weights."""
    other_bytes: int
    dtype: str
    """Dtype of the operands that are multiplied."""


@dataclass(frozen=True)
class Roofline:
    """The limits of all run cores together.

    The roofline model: Williams, Waterman, Patterson, CACM 2009.
    """

    gflops: dict[str, float]
    """1e9 operations per second by dtype: multiply-adds in registers, two operations each."""
    bandwidth: tuple[tuple[int, float], ...]
    """Per memory level, nearest first: ``(bytes that fit, 1e9 bytes per second)`` that
    ``c = a + 3 b`` reads and writes."""

    @property
    def memory_gb_s(self) -> float:
        """Bandwidth of the memory, in 1e9 bytes per second."""
        return self.bandwidth[-1][1]

    @classmethod
    def from_plain(cls, figures: Mapping[str, Any]) -> Roofline:
        """From the figures of `roofline`, which JSON has made lists."""
        return cls(figures["gflops"], tuple((int(n), float(s)) for n, s in figures["bandwidth"]))

    def limits(self, traffic: Traffic) -> dict[str, float]:
        """The least seconds for computing and for moving bytes.

        Weights come from memory; the other arguments from the nearest cache that can hold them.
        """
        peak = self.gflops.get(traffic.dtype, self.gflops["float32"])
        near = next(speed for size, speed in self.bandwidth if traffic.other_bytes <= size)
        moved = traffic.constant_bytes / self.memory_gb_s + traffic.other_bytes / near
        return {"compute": traffic.flops / peak / 1e9, "memory": moved / 1e9}

    def share(self, traffic: Traffic, seconds: float) -> tuple[float, str]:
        """The share of the nearer limit that a program of `seconds` reaches, and its name."""
        limits = self.limits(traffic)
        nearer = max(limits, key=lambda name: limits[name])
        return (limits[nearer] / seconds if seconds > 0 else 0.0), nearer


def measure_roofline(target: TargetInfo, run_cores: tuple[int, ...]) -> Roofline:
    """Measure the limits of `run_cores`; takes about 8 s. Raises `Failed`."""
    return Roofline.from_plain(_ask("roofline", target, run_cores))


def kept_roofline(
    directory: Path, target: TargetInfo, measured: Callable[[], Roofline]
) -> Roofline:
    """The limits of cores as `measured` gives them, kept in `directory` for a week.

    Damaged figures are measured anew. Raises what `measured` raises.
    """
    path = directory / f"roofline-{target.fingerprint}-{target.cores}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if 0 <= time.time() - path.stat().st_mtime < _KEPT_S:
            return Roofline.from_plain(json.loads(path.read_text()))
    found = measured()
    with contextlib.suppress(OSError), replacing(path) as new:
        new.write_text(json.dumps(asdict(found)))
    return found


@dataclass(frozen=True)
class Noise:
    """How steady the speed of the run cores is."""

    variation: float
    """Coefficient of variation of a small kernel that computes."""
    crowded: float
    """Share of the time in which another program uses the second-level cache. Some programs are
    then slower by half."""


def noise(target: TargetInfo, run_cores: tuple[int, ...]) -> Noise:
    """Time kernels on `run_cores` for 2 s; takes about 5 s. Raises `Failed`."""
    return Noise(**_ask("noise", target, run_cores))


def _ask(what: str, target: TargetInfo, run_cores: tuple[int, ...]) -> dict[str, Any]:
    """Measure in a process of its own: pinning and thread counts are settings of a process."""
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tlmd.measure.timing.peak",
                what,
                target.spec,
                json.dumps(run_cores),
            ],
            env=children.running_tvm(len(run_cores)),
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"measuring the {what} of the cores failed: {error}") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        raise Failed(f"measuring the {what} of the cores failed (exit {done.returncode}): {reason}")
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def _noise(target: tvm.target.Target, info: TargetInfo) -> Noise:
    from tlmd.measure.timing.reference import CacheProbe, ReferenceKernel

    kernel, probe = ReferenceKernel(target), CacheProbe(target, info.l2_bytes)
    number = max(1, round(REPEAT_S / kernel.settled_seconds()))
    end = time.perf_counter() + _NOISE_S
    samples, probed = [kernel.mean_seconds(number)], [probe.seconds()]
    while time.perf_counter() < end:
        samples.append(kernel.mean_seconds(number))
        probed.append(probe.seconds())
    crowded = sum(p > _CROWDED * min(probed) for p in probed) / len(probed)
    return Noise(statistics.pstdev(samples) / statistics.fmean(samples), crowded)


def roofline(spec: str, cores: tuple[int, ...]) -> dict[str, Any]:
    """The figures of a `Roofline` of the cores to which this process is pinned."""
    import tvm

    from tlmd.measure.timing import peak_kernels as kernels
    from tlmd.space.hardware.target import resolve

    info, target = resolve(spec), tvm.target.Target(json.loads(spec))
    # Two tenths of a second each: all of one may fall into a moment in which another program has
    # one of the cores, and half of the peak was seen.
    first = kernels.multiply_adds(target, info, cores)
    bandwidths = kernels.bandwidths(target, info, cores)
    again = kernels.multiply_adds(target, info, cores)
    gflops = {dtype: max(speed, again[dtype]) for dtype, speed in first.items()}
    return asdict(Roofline(gflops, bandwidths))


def _main(what: str, spec: str, cores: tuple[int, ...]) -> None:
    tvm_alone.import_tvm()
    import tvm

    from tlmd.space.hardware.target import resolve

    os.sched_setaffinity(0, cores)
    if what == "noise":
        figures = asdict(_noise(tvm.target.Target(json.loads(spec)), resolve(spec)))
    else:
        figures = roofline(spec, cores)
    print(json.dumps(figures))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], tuple(json.loads(sys.argv[3])))
