"""Joules from RAPL where the machine shows them, nothing elsewhere."""

from __future__ import annotations

from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Package energy between `start` and `stop`; None where RAPL is missing or not readable."""

    def __init__(self, root: Path = _POWERCAP) -> None:
        # Subzones (intel-rapl:0:0) are parts of a package; they would be counted twice.
        zones = root.glob("intel-rapl:*") if root.is_dir() else ()
        self._zones = sorted(z for z in zones if z.name.count(":") == 1)
        self._before: list[int] | None = None

    def start(self) -> None:
        self._before = self._read("energy_uj")

    def stop(self) -> float | None:
        """Joules of all packages since `start`, or None."""
        after = self._read("energy_uj")
        if self._before is None or after is None:
            return None
        total = 0
        for zone, (old, new) in enumerate(zip(self._before, after, strict=True)):
            if new < old:  # the counter wrapped
                ranges = self._read("max_energy_range_uj")
                if ranges is None:
                    return None
                new += ranges[zone]
            total += new - old
        return total * 1e-6

    def _read(self, name: str) -> list[int] | None:
        try:
            return [int((zone / name).read_text()) for zone in self._zones] or None
        except (OSError, ValueError):
            return None
