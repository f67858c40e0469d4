"""Checks the outputs of programs: the same inputs, poisoned outputs, comparison with references."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_FORMAT = "v1"  # of the reference directory and of the inputs of the references
_POISON = 0x7F
_LOOSEST = 0.25  # relative; a program that leaves out part of a sum has a larger error
_EPS = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}
_FLOAT8_EPS = 2**-3
_MOST_STEPS = 1e-3  # of the outputs; seen: 1e-5
_BF16_ERRORS = 6  # seen: up to 1.5 for the largest of 400,000 outputs


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a program: what it is and whether its contents are read or written.

    Example: ``Argument((128, 768), "float32", reads=True, writes=False)``.
    """

    shape: tuple[int, ...]
    dtype: str
    reads: bool
    writes: bool

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def numpy_dtype(self) -> Any:
        if self.dtype not in ("bool", "float64", "float32", "float16") and self.is_float:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, self.dtype))
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.numpy_dtype.itemsize)


def make_input(task_id: str, position: int, argument: Argument, positive: bool) -> Array:
    """The same random array for the same task and position, on every machine.

    Floats are uniform in [-1, 1), or in [0.5, 1) if `positive` (square roots, logarithms); small
    integers use their range, wider ones and booleans are 0 or 1 so that they are valid indices.
    """
    digest = hashlib.sha256(f"{_FORMAT}:{task_id}:{position}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    shape, dtype = argument.shape, argument.numpy_dtype
    if argument.is_float:
        values = rng.random(shape, dtype=np.float32)
        values = values * np.float32(0.5) + np.float32(0.5) if positive else values * 2 - 1
        return np.asarray(values, dtype=dtype)
    if argument.dtype == "int8":
        return rng.integers(-127, 128, shape, dtype=np.int8)
    if argument.dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return np.asarray(rng.integers(0, 2, shape, dtype=np.int8), dtype=dtype)


def poison(argument: Argument) -> Array:
    """The contents of an output before the program runs: NaN, or a pattern that no result has."""
    if argument.is_float:
        return np.full(argument.shape, np.nan, dtype=argument.numpy_dtype)
    if argument.dtype == "bool":
        return np.ones(argument.shape, dtype=np.bool_)
    raw = np.full(argument.nbytes, _POISON, dtype=np.uint8)
    return np.asarray(raw.view(argument.numpy_dtype).reshape(argument.shape))


def tolerance(dtype: str, reduction: int, multiplied: str = "") -> float:
    """Allowed error of a float output, relative to its own size and to the RMS of all outputs.

    Rounding errors of a sum of `reduction` terms grow with its square root; the factor leaves room
    for another order of summation, fused multiply-adds and approximated functions. Where the
    factors were rounded to bfloat16 (`multiplied`), their errors exceed those of the sum. They grow
    with the square root, too, but so does the RMS of the outputs.
    """
    if dtype == "float32" and multiplied == "bfloat16":
        return _BF16_ERRORS * _EPS[multiplied]
    eps = _EPS.get(dtype, _FLOAT8_EPS)
    factor = 64.0 if eps < 1e-5 else 16.0
    return min(_LOOSEST, factor * eps * math.sqrt(max(1, reduction)))


def compare(
    got: Array,
    want: Array,
    dtype: str,
    reduction: int,
    rounded: bool = False,
    multiplied: str = "",
    steps: bool = False,
) -> tuple[bool, float]:
    """Whether `got` is close enough to `want`, and the largest absolute difference.

    Integers must be equal, or differ by at most one where they were `rounded` from floats. NaNs
    and infinities must be at the same places; the difference is infinite where they are not.
    `multiplied`: see `tolerance`. Where floats were rounded to `steps`, a few outputs may be a step
    away: another order of a sum rounds some numbers in the middle of two steps the other way.
    """
    if got.shape != want.shape:
        return False, math.inf
    if got.size == 0:
        return True, 0.0
    if "float" not in dtype:
        worst = float(np.max(np.abs(np.subtract(got, want, dtype=np.float64))))
        return worst <= (1 if rounded and dtype != "bool" else 0), worst
    wide = np.float64 if dtype == "float64" else np.float32
    a, b = got.astype(wide, copy=False), want.astype(wide, copy=False)
    finite = np.isfinite(b)
    if not finite.all():
        # Outputs are poisoned with NaN, so this only accepts NaN where NaN is right.
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return False, math.inf
        a, b = a[finite], b[finite]
        if b.size == 0:
            return True, 0.0
    error = np.abs(np.subtract(a, b))
    worst = float(error.max())
    if not math.isfinite(worst):
        return False, math.inf
    rms = math.sqrt(float(np.mean(np.square(b, dtype=np.float64))))
    allowed = tolerance(dtype, reduction, multiplied)
    if worst <= allowed * rms:
        return True, worst
    beyond = error > allowed * (rms + np.abs(b))
    if steps and worst <= _LOOSEST * (rms + float(np.abs(b).max())):
        return float(beyond.mean()) <= _MOST_STEPS, worst
    return not beyond.any(), worst


def widen(array: Array) -> Array:
    """The array as a .npy file can store it: half-width floats become float32."""
    comparable = array.dtype.kind in "iub" or array.dtype in (np.float32, np.float64)
    return array if comparable else array.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Reference:
    """The unscheduled program's outputs, and whether its inputs were positive."""

    outputs: tuple[Array, ...]
    positive: bool


class ReferenceStore:
    """Reference outputs on disk, one directory per task; children map them into memory."""

    def __init__(self, cache_dir: Path, limit_bytes: int = 4 << 30) -> None:
        self._root = cache_dir / "reference" / _FORMAT
        self._limit = limit_bytes

    def has(self, task_id: str) -> bool:
        return (self._root / task_id / "meta.json").exists()

    def positive(self, task_id: str) -> bool:
        """Whether the task's inputs are positive; False if it has no reference."""
        try:
            return bool(json.loads((self._root / task_id / "meta.json").read_text())["positive"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def get(self, task_id: str) -> Reference | None:
        """Memory-mapped outputs, or None; a damaged reference is removed to be made again."""
        path = self._root / task_id
        try:
            meta = json.loads((path / "meta.json").read_text())
            files = [path / f"{i}.npy" for i in range(int(meta["outputs"]))]
            # Zero-dimensional and empty arrays cannot be mapped, so small files are read.
            arrays = tuple(np.load(f, mmap_mode="r" if _mappable(f) else None) for f in files)
            return Reference(arrays, bool(meta["positive"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            shutil.rmtree(path, ignore_errors=True)
            return None

    def put(self, task_id: str, outputs: Sequence[Array], positive: bool) -> None:
        """Write a reference; other processes see all of it or nothing. Raises `OSError`."""
        self._root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=self._root, prefix=".new-"))
        try:
            for index, array in enumerate(outputs):
                np.save(temporary / f"{index}.npy", widen(array))
            meta = {"outputs": len(outputs), "positive": positive}
            (temporary / "meta.json").write_text(json.dumps(meta))
            if not self.has(task_id):
                shutil.rmtree(self._root / task_id, ignore_errors=True)
                temporary.rename(self._root / task_id)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def prune(self) -> None:
        """Remove the oldest references until the rest fits the limit."""
        if not self._root.is_dir():
            return
        entries = []
        for path in self._root.iterdir():
            size = sum(f.stat().st_size for f in path.glob("*.npy"))
            entries.append((path.stat().st_mtime, size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                return
            shutil.rmtree(path, ignore_errors=True)
            total -= size


def _mappable(path: Path) -> bool:
    return path.stat().st_size > 4096
