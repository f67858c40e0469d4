"""How an operand of attention lies in its tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operand:
    """A tensor of four dimensions in any order, or some heads of it."""

    order: str
    """A permutation of ``BHLD``: images, heads, rows (or keys), elements of a head."""

    shape: tuple[int, ...]
    """Extents of the whole tensor."""

    first: int = 0
    """The first head."""

    heads: int | None = None
    """How many heads; None: all."""

    step: int = 1
    """Heads from one of its own to the next."""

    def size(self, letter: str) -> int:
        """The extent of one dimension; of the heads, how many are its own."""
        if letter == "H" and self.heads is not None:
            return self.heads
        return self.shape[self.order.index(letter)]

    @property
    def groups(self) -> int:
        """Heads of all images."""
        return self.size("B") * self.size("H")

    def read(self, tensor: Any, **at: Any) -> Any:
        """An element, by the letters of the dimensions; heads are counted among its own."""
        at["H"] = at["H"] * self.step + self.first
        return tensor[tuple(at[letter] for letter in self.order)]
