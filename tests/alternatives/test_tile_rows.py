"""How many rows the matrix of the CPU's matrix unit has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tlmd.alternatives.amx.tile_rows import padded_rows
from tlmd.alternatives.kernel import multiple


@given(st.integers(1, 10_000))
def test_rows_fill_tiles_that_blocks_can_share(rows: int) -> None:
    padded, least = padded_rows(rows), multiple(rows, 16)
    assert padded % 16 == 0 and least <= padded <= 1.08 * least
    assert padded == least or least // 16 > 12
    assert padded // 16 % 2 == 0 or padded == least
    # Without rows to spare Whisper's blocks have one of the 47 pairs of tiles, or all of them.
    known = {1500: 1536, 784: 800, 197: 224, 49: 64}
    assert {given: padded_rows(given) for given in known} == known
