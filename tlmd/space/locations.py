"""The legal compute locations of a block, given the decisions before.

TVM has no function that lists them: it only replaces an illegal location by the next lower legal
one, and it tries all loops each time, which takes tens of milliseconds for a tiled convolution.
Therefore answers are cached by what they depend on (earlier locations, and which loops have extent
one). For a block that feeds a tiled nest, a rule gives the answer; the rule is used for a sketch
only if it agrees with TVM on some examples of this sketch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tlmd.data.computation import Computation, DecisionKind, Sketch
from tlmd.data.types import Decision
from tlmd.space.sketches import PlainTrace

_CHECKS = 3  # comparisons with TVM before a rule is trusted
_PROBES = 48  # of one task, when candidates are written
_ROOT = -1
Probe = Callable[[int, tuple[Decision, ...]], tuple[int, ...]]
DrawDecisions = Callable[[random.Random, int], tuple[Decision, ...]]


@dataclass(frozen=True)
class TiledNest:
    """The loops around a tiled block.

    Example: ``TiledNest(open_decision=7, loops=((0, 0, False), (1, 0, False), (2, 0, True),
    ...))``.
    """

    open_decision: int
    """Index of the location decision that chooses one of the loops."""

    loops: tuple[tuple[int, int, bool], ...]
    """For each loop, the index of its tile decision, the index of its factor in this decision, and
    whether it is a reduction loop."""

    def legal(self, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """The loops at which a producer may be computed.

        Loops of extent one are not legal, nor are spatial loops inside a reduction loop and all
        loops inside these. TVM also excludes trailing reduction loops, but a nest ends with spatial
        loops.
        """
        locations, reducing = [], False
        for index, (open_decision, factor, is_reduction) in enumerate(self.loops):
            if before[open_decision][factor] == 1:
                continue
            if is_reduction:
                reducing = True
            elif reducing:
                break
            locations.append(index)
        return tuple(locations)


class Locations:
    """Lists the legal locations of sketches. Calls `probe`, which asks TVM, if no rule holds.

    `sample` draws decisions of a sketch, with which the rules are checked.
    """

    def __init__(
        self,
        sketches: tuple[Sketch, ...],
        nests: tuple[TiledNest | None, ...],
        probe: Probe,
        sample: DrawDecisions,
    ) -> None:
        self._sketches = sketches
        self._nests = nests
        self._probe = probe
        self._sample = sample
        self._trusted: dict[tuple[int, int], tuple[int, ...] | None] = {}
        self._cache: dict[object, tuple[int, ...]] = {}
        self._probed = 0

    def legal(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """The legal locations of decision ``len(before)``, ascending: -2 inline, -1 root, loops."""
        fixed = self._rule(sketch, len(before))
        nest = self._nests[sketch]
        if fixed is not None and nest is not None:
            return fixed + nest.legal(before)
        key = (sketch, len(before), self._shape(sketch, before))
        if key not in self._cache:
            self._probed += 1
            self._cache[key] = self._probe(sketch, before)
        return self._cache[key]

    def quick(self, sketch: int, before: tuple[Decision, ...]) -> tuple[int, ...]:
        """As `legal`, but TVM is asked only `_PROBES` times; after that, root where it must be.

        A probe of a transposed convolution takes 0.3 s. Root is always legal.
        """
        key = (sketch, len(before), self._shape(sketch, before))
        if self._probed >= _PROBES and self._rule(sketch, len(before)) is None:
            return self._cache.get(key, (_ROOT,))
        return self.legal(sketch, before)

    def _shape(self, sketch: int, before: tuple[Decision, ...]) -> tuple[object, ...]:
        return tuple(
            d[0] if s.kind is DecisionKind.LOCATION else tuple(f == 1 for f in d)
            for s, d in zip(self._sketches[sketch].open_decisions, before, strict=False)
            if s.kind in (DecisionKind.LOCATION, DecisionKind.TILE, DecisionKind.PARTITION)
        )

    def _rule(self, sketch: int, open_decision: int) -> tuple[int, ...] | None:
        """The legal locations outside the nest if the rule holds for this decision, else None."""
        key = (sketch, open_decision)
        if key not in self._trusted:
            self._trusted[key] = self._check(sketch, open_decision)
        return self._trusted[key]

    def _check(self, sketch: int, open_decision: int) -> tuple[int, ...] | None:
        nest = self._nests[sketch]
        if nest is None or nest.open_decision != open_decision:
            return None
        rng, outside = random.Random(open_decision), set()
        for _ in range(_CHECKS):
            before = self._sample(rng, sketch)[:open_decision]
            truth = self._probe(sketch, before)
            if tuple(i for i in truth if i >= 0) != nest.legal(before):
                return None
            outside.add(tuple(i for i in truth if i < 0))
        return outside.pop() if len(outside) == 1 else None


def tiled_nest(sketch: Sketch, trace: PlainTrace, computation: Computation) -> TiledNest | None:
    """The nest of the sketch's first location decision; None unless the trace has one tiling."""
    open_decisions = sketch.open_decisions
    located = [i for i, s in enumerate(open_decisions) if s.kind is DecisionKind.LOCATION]
    orders = [inst for inst in trace[0] if inst[0] == "Reorder"]
    if not located or len(orders) != 1:
        return None
    tile_at = {s.inst: i for i, s in enumerate(open_decisions) if s.kind is DecisionKind.TILE}
    factor_of: dict[str, tuple[int, int]] = {}
    loop_of: dict[str, tuple[int, int]] = {}
    for position, (kind, inputs, _attrs, outputs) in enumerate(trace[0]):
        if kind == "SamplePerfectTile":
            factor_of.update({v: (tile_at[position], i) for i, v in enumerate(outputs)})
        elif kind == "Split":
            pairs = zip(inputs[1:], outputs, strict=True)
            loop_of.update({loop: factor_of[v] for v, loop in pairs if v in factor_of})
    if not all(loop in loop_of for loop in orders[0][1]):
        return None
    loops = []
    for loop in orders[0][1]:
        open_decision, factor = loop_of[loop]
        block = open_decisions[open_decision].block
        if not 0 <= block < len(computation.blocks):
            return None
        kind = computation.blocks[block].iters[open_decisions[open_decision].iterator][0]
        loops.append((open_decision, factor, kind == "R"))
    return TiledNest(located[0], tuple(loops))
