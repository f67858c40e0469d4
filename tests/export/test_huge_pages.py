"""Weights move to huge pages, and keep their values."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tlmd.export.huge_pages import Range, aligned, collapse, in_huge_pages, new_parts

_HUGE = 2 << 20
_COUNT = 17 * _HUGE // 8  # of eight bytes each


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    """Ranges that do not overlap, in any order."""
    ends = sorted(draw(st.sets(st.integers(0, 60), max_size=12)))
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    return draw(st.permutations(pairs))


def _addresses(found: list[Range]) -> set[int]:
    return {address for first, end in found for address in range(first, end)}


@given(ranges(), ranges())
def test_new_parts_are_what_was_not_there_before(before: list[Range], after: list[Range]) -> None:
    found = new_parts(before, after)
    assert _addresses(found) == _addresses(after) - _addresses(before)
    assert sum(end - first for first, end in found) == len(_addresses(found))


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_only_whole_pages_move(first: int, size: int) -> None:
    for low, high in aligned([(first, first + size)]):
        assert first <= low < high <= first + size
        assert low % _HUGE == high % _HUGE == 0
        assert low - first < _HUGE and first + size - high < _HUGE


def test_what_a_block_allocates_moves_and_keeps_its_values() -> None:
    other = _counted()
    if not collapse(aligned([(other.ctypes.data, other.ctypes.data + other.nbytes)])):
        pytest.skip("this system gives no huge pages now")
    assert (other == np.arange(_COUNT)).all()
    # On a busy machine the system may have no free huge page at one moment.
    assert any(_block_moves() for _ in range(3))


def _block_moves() -> bool:
    """Whether most of an array that a block makes is in huge pages after it."""
    with in_huge_pages():
        array = _counted()
    assert (array == np.arange(_COUNT)).all()
    return _huge_kib(array.ctypes.data + array.nbytes // 2) >= array.nbytes // 2048


def _counted() -> NDArray[np.int64]:
    """0, 1, ... in memory that is in small pages at first.

    An array of NumPy would not do: NumPy itself asks the system for huge pages for large ones.
    """
    memory = mmap.mmap(-1, 8 * _COUNT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.int64)
    array[:] = np.arange(_COUNT)
    return array


def _huge_kib(address: int) -> int:
    """KiB in huge pages of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            first, end = (int(text, 16) for text in fields[0].split("-"))
            inside = first <= address < end
        elif inside and fields[0] == "AnonHugePages:":
            return int(fields[1])
    return 0
