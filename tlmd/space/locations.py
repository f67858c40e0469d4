"""Which compute locations are legal for a block, given the decisions before it.

TVM tells only by snapping a decision down to the next legal one, and every question costs it a
trial of all loops: tens of milliseconds for a tiled convolution. So answers are cached by what they
depend on (earlier locations, and which loops have extent one), and for a block that feeds a tiled
nest they follow a rule that is first checked against TVM on this very sketch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tlmd.space.sketches import PlainTrace
from tlmd.types import Computation, Decision, Sketch, SlotKind

_CHECKS = 3  # comparisons with TVM before a rule is trusted
Probe = Callable[[int, tuple[Decision, ...]], tuple[int, ...]]
Sampler = Callable[[random.Random, int], tuple[Decision, ...]]


@dataclass(frozen=True)
class TiledNest:
    """The loops around a tiled block: per loop the slot and factor it comes from, and its kind.

    Example: ``TiledNest(slot=7, loops=((0, 0, False), (1, 0, False), (2, 0, True), ...))``.
    """

    slot: int
    loops: tuple[tuple[int, int, bool], ...]

    def legal(self, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """Loops a producer may be computed at: not of extent one, no spatial one after a reduction.

        The trailing loops of a nest are spatial, so none is cut for being a trailing reduction.
        """
        found, reducing = [], False
        for index, (slot, factor, is_reduction) in enumerate(self.loops):
            if before[slot][factor] == 1:
                continue
            if is_reduction:
                reducing = True
            elif reducing:
                break
            found.append(index)
        return tuple(found)


class Locations:
    """Answers `legal(sketch, decisions before the slot)`; asks `probe` where no rule is known."""

    def __init__(
        self,
        sketches: tuple[Sketch, ...],
        nests: tuple[TiledNest | None, ...],
        probe: Probe,
        sample: Sampler,
    ) -> None:
        self._sketches = sketches
        self._nests = nests
        self._probe = probe
        self._sample = sample
        self._trusted: dict[tuple[int, int], tuple[int, ...] | None] = {}
        self._cache: dict[object, tuple[int, ...]] = {}

    def legal(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """The legal locations of slot ``len(before)``, ascending: -2 inline, -1 root, loops."""
        fixed = self._rule(sketch, len(before))
        nest = self._nests[sketch]
        if fixed is not None and nest is not None:
            return fixed + nest.legal(before)
        key = (sketch, len(before), self._shape(sketch, before))
        if key not in self._cache:
            self._cache[key] = self._probe(sketch, before)
        return self._cache[key]

    def _shape(self, sketch: int, before: tuple[Decision, ...]) -> tuple[object, ...]:
        return tuple(
            d[0] if s.kind is SlotKind.LOCATION else tuple(f == 1 for f in d)
            for s, d in zip(self._sketches[sketch].slots, before, strict=False)
            if s.kind in (SlotKind.LOCATION, SlotKind.TILE, SlotKind.PARTITION)
        )

    def _rule(self, sketch: int, slot: int) -> tuple[int, ...] | None:
        """The locations outside the nest if the nest's rule holds for this slot, else None."""
        key = (sketch, slot)
        if key not in self._trusted:
            self._trusted[key] = self._check(sketch, slot)
        return self._trusted[key]

    def _check(self, sketch: int, slot: int) -> tuple[int, ...] | None:
        nest = self._nests[sketch]
        if nest is None or nest.slot != slot:
            return None
        rng, outside = random.Random(slot), set()
        for _ in range(_CHECKS):
            before = self._sample(rng, sketch)[:slot]
            truth = self._probe(sketch, before)
            if tuple(i for i in truth if i >= 0) != nest.legal(before):
                return None
            outside.add(tuple(i for i in truth if i < 0))
        return outside.pop() if len(outside) == 1 else None


def tiled_nest(sketch: Sketch, trace: PlainTrace, computation: Computation) -> TiledNest | None:
    """The nest that the sketch's first location slot refers to, if the trace has one tiling."""
    slots = sketch.slots
    located = [i for i, s in enumerate(slots) if s.kind is SlotKind.LOCATION]
    orders = [inst for inst in trace[0] if inst[0] == "Reorder"]
    if not located or len(orders) != 1:
        return None
    slot_at = {s.inst: i for i, s in enumerate(slots) if s.kind is SlotKind.TILE}
    factor_of: dict[str, tuple[int, int]] = {}
    loop_of: dict[str, tuple[int, int]] = {}
    for position, (kind, inputs, _attrs, outputs) in enumerate(trace[0]):
        if kind == "SamplePerfectTile":
            factor_of.update({v: (slot_at[position], i) for i, v in enumerate(outputs)})
        elif kind == "Split":
            known = zip(inputs[1:], outputs, strict=True)
            loop_of.update({loop: factor_of[v] for v, loop in known if v in factor_of})
    if not all(loop in loop_of for loop in orders[0][1]):
        return None
    loops = []
    for loop in orders[0][1]:
        slot, factor = loop_of[loop]
        block = slots[slot].block
        if not 0 <= block < len(computation.blocks):
            return None
        kind = computation.blocks[block].iters[slots[slot].iterator][0]
        loops.append((slot, factor, kind == "R"))
    return TiledNest(located[0], tuple(loops))
