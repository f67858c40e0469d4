"""Features of a candidate from its decisions and the computation alone: nothing is applied by TVM.

They say for each depth of the loop nest how much is computed inside it and which part of each
operand it touches, as analytical cache models do (Low et al., "Analytical modeling is enough for
high-performance BLIS", TOMS'16). One row takes microseconds; applying a candidate takes 10 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tlmd.data.computation import Block, Computation, DecisionKind, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.tlm import placement_features
from tlmd.tlm.footprint import (
    ALIGNED,
    Numbers,
    contiguous,
    elements,
    last_iterator,
    operands,
    used,
    volume,
)

Floats = NDArray[np.float32]
Decided = Sequence[tuple[Decision, ...]]
"""The decisions of candidates of one sketch."""

_DEPTHS = 6  # levels of the nest that are described, from the innermost outwards
_OPERANDS = 3  # of the main block: the result and the first two reads
_SPLITS = 4
_OPERATIONS = ("mul", "add", "max", "exp", "if_then_else", "div", "sqrt", "rsqrt")
_UNTILED = ("S", "R")


Factors = dict[int, NDArray[np.int64]]
"""Iterator -> the factors of its tile, innermost first ``[factor, candidate]``."""


class _Nest(NamedTuple):
    """The tiled loop nest of one sketch: the kinds of its levels, and where each factor is."""

    block: int
    levels: tuple[str, ...]
    """``S`` or ``R`` for each level, from the outermost."""
    tiles: dict[int, int]
    """Iterator of the block -> index of its decision."""


def decision_features(
    computation: Computation, sketches: Sequence[Sketch], candidates: Sequence[Candidate]
) -> Floats:
    """One row per candidate, ``[len(candidates), WIDTH]``; NaN where a feature does not apply."""
    table = np.full((len(candidates), WIDTH), np.nan, np.float32)
    indices = np.array([candidate.sketch for candidate in candidates])
    for sketch in sketches:
        rows = np.flatnonzero(indices == sketch.index).tolist()
        if rows:
            decided = [candidates[row].decisions for row in rows]
            columns = _columns(computation, sketch, decided)
            for number, column in enumerate(columns):
                table[rows, number] = column
    return table


def decision_speedup(rows: Floats, cores: int) -> Floats:
    """How many times faster `cores` cores run programs than one, at best ``[len(rows)]``.

    `rows` are decision features. As `space.features.speedup`, which sees the applied program.
    """
    iterations = np.round(np.exp2(rows[:, -1]))
    shares: Floats = (iterations / np.ceil(iterations / cores)).astype(np.float32)
    return shares


def _columns(computation: Computation, sketch: Sketch, decided: Decided) -> list[Numbers]:
    """The features of candidates of one sketch: scalars or ``[candidates]``."""
    nest = _nest(computation, sketch)
    block = computation.blocks[nest.block]
    factors = {
        iterator: np.array([decisions[index] for decisions in decided]).T[::-1]
        for iterator, index in nest.tiles.items()
    }
    sizes = _sizes(block, nest, factors, len(decided))
    return [
        *_of_task(computation, nest.block),
        *_of_sketch(sketch, block),
        *_of_plain_decisions(sketch, decided),
        *_of_depths(block, nest, sizes),
        *_of_factors(block, factors),
        *placement_features.placement_features(
            computation, sketch, decided, _loops(computation, nest, factors, len(decided))
        ),
        _parallel(block, factors, sketch, decided),
    ]


def _nest(computation: Computation, sketch: Sketch) -> _Nest:
    tiles: dict[int, dict[int, int]] = {}
    for index, one in enumerate(sketch.open_decisions):
        if one.kind in (DecisionKind.TILE, DecisionKind.PARTITION) and one.block >= 0:
            tiles.setdefault(one.block, {})[one.iterator] = index
    work = [volume(block) for block in computation.blocks]
    if "tiling" in sketch.steps and tiles:
        block = max(tiles, key=lambda b: work[b])
        first = sketch.steps.index("tiling") + 1
        letters = tuple(s for s in sketch.steps[first:] if s in _UNTILED)
        counts = {k: letters.count(k) for k in _UNTILED}
        arity = {i: sketch.open_decisions[d].arity for i, d in tiles[block].items()}
        kinds = computation.blocks[block].iters
        if all(counts.get(kinds[i][0]) == n for i, n in arity.items()):
            return _Nest(block, letters, tiles[block])
    return _Nest(int(np.argmax(work)), _UNTILED, {})


def _sizes(block: Block, nest: _Nest, factors: Factors, count: int) -> Numbers:
    """How many values each iterator takes inside each depth, ``[depth, iterator, candidate]``.

    Depth 0 is the innermost level alone.
    """
    levels = nest.levels[::-1]
    sizes = np.ones((len(levels), len(block.iters), count))
    for iterator, (kind, extent) in enumerate(block.iters):
        inside = np.ones(count)
        place = 0
        for depth, letter in enumerate(levels):
            if letter == kind or (kind not in _UNTILED and letter == "S"):
                if iterator in factors:
                    inside = inside * factors[iterator][place]
                    place += 1
                elif depth == len(levels) - 1 or nest.levels == _UNTILED:
                    inside = np.full(count, max(extent, 1))
            sizes[depth, iterator] = inside
    return sizes


def _loops(computation: Computation, nest: _Nest, factors: Factors, count: int) -> list[Numbers]:
    """The extents of the nest's loops, the outermost first ``[candidate]``.

    Without tiles they are those of the last block, which computes the result.
    """
    if not nest.tiles:
        extents = [extent for _, extent in computation.blocks[-1].iters]
        return [np.full(count, float(max(extent, 1))) for extent in extents]
    loops, places = [], dict.fromkeys(factors, -1)
    kinds = [kind for kind, _ in computation.blocks[nest.block].iters]
    for letter in nest.levels:
        for iterator in factors:
            if kinds[iterator] == letter:
                loops.append(factors[iterator][places[iterator]].astype(np.float64))
                places[iterator] -= 1
    return loops


def _of_task(computation: Computation, main: int) -> list[Numbers]:
    block = computation.blocks[main]
    last = last_iterator(block)
    strides = [s for a in block.reads for dim in a.dims for _, s in dim]
    ops = {op for b in computation.blocks for op in b.ops}
    full = {i: np.array([float(max(e, 1))]) for i, (_, e) in enumerate(block.iters)}
    shared = sum(
        kind == "S" and all(i in used(a) for a in block.reads)
        for i, (kind, _) in enumerate(block.iters)
    )
    values = [
        len(computation.blocks),
        main,
        len(block.reads),
        shared,
        math.log2(1 + max(strides, default=0)),
        sum(extent > 1 for kind, extent in block.iters if kind == "S"),
        sum(extent > 1 for kind, extent in block.iters if kind == "R"),
        math.log2(volume(block)),
        math.log2(math.prod(max(e, 1) for k, e in block.iters if k == "R")),
        math.log2(max(block.iters[last][1], 1)) if block.iters else 0.0,
        math.gcd(block.iters[last][1], ALIGNED) if block.iters else 1,
        *(float(op in ops) for op in _OPERATIONS),
    ]
    footprints = [np.log2(elements(a, full)) if a else _NONE for a in operands(block, _OPERANDS)]
    return [*(np.array([float(v)]) for v in values), *footprints]


def _of_sketch(sketch: Sketch, block: Block) -> list[Numbers]:
    level = [int(s.partition(":")[2]) for s in sketch.steps if s.startswith("level:")]
    spatial = max(1, sum(kind == "S" for kind, _ in block.iters))
    values = [
        "tiling" in sketch.steps,
        sketch.steps.count("fuse_at"),
        sketch.steps.count("rfactor"),
        "tensorize" in sketch.steps,
        level[0] if level else -1,
        level[0] / spatial if level else -1,
        len(sketch.open_decisions),
    ]
    return [np.array([float(v)]) for v in values]


def _of_plain_decisions(sketch: Sketch, decided: Decided) -> list[Numbers]:
    """Unrolling, the parallel extent, and the tiles of sketches of other kinds.

    These are an rfactor, and Winograd's stages.
    """
    counts = {"category": 1, "parallel": 1, "split": _SPLITS, "outer": 2}
    columns: dict[str, list[Numbers]] = {name: [] for name in counts}
    for index, one in enumerate(sketch.open_decisions):
        first = np.array([d[index][0] for d in decided], np.float64)
        if one.kind is DecisionKind.CATEGORY:
            columns["category"].append(np.array(one.options, np.float64)[first.astype(int)])
        elif one.kind is DecisionKind.PARALLEL:
            columns["parallel"].append(first)
        elif one.kind is not DecisionKind.LOCATION and "tiling" not in sketch.steps:
            columns["split"].append(np.log2([d[index][-1] for d in decided]))
            columns["outer"].append(np.log2([d[index][0] for d in decided]))
            columns["outer"].append(np.array([float(one.arity)]))
    return [
        column
        for name, count in counts.items()
        for column in (columns[name] + [_NONE] * count)[:count]
    ]


def _of_depths(block: Block, nest: _Nest, sizes: Numbers) -> list[Numbers]:
    """Per depth: iterations, elements and contiguous runs of operands, elements per iteration."""
    columns: list[Numbers] = []
    touched = operands(block, _OPERANDS)
    for depth in range(_DEPTHS):
        if depth >= len(sizes):
            columns += [_NONE] * _PER_DEPTH
            continue
        inside = dict(enumerate(sizes[depth]))
        iterations = np.prod(sizes[depth], axis=0)
        counts = [elements(a, inside) if a else None for a in touched]
        total = sum((c for c in counts if c is not None), np.zeros(1))
        columns += [np.log2(iterations), np.log2(total), np.log2(total / iterations)]
        columns += [_NONE if c is None else np.log2(c) for c in counts]
        columns += [np.log2(contiguous(a, inside)) if a else _NONE for a in touched]
    return columns


_PER_DEPTH = 3 + 2 * _OPERANDS


def _of_factors(block: Block, factors: Factors) -> list[Numbers]:
    """Factors of the last spatial iterator, of the last reduction, products of the others."""
    columns: list[Numbers] = []
    for kind, count in (("S", 4), ("R", 2)):
        last = last_iterator(block, kind)
        of_kind = {i: f for i, f in factors.items() if block.iters[i][0] == kind}
        mine = of_kind.pop(last, None)
        for place in range(count):
            columns.append(_NONE if mine is None or place >= len(mine) else np.log2(mine[place]))
            others = [f[place] for f in of_kind.values() if place < len(f)]
            columns.append(np.log2(np.prod(others, axis=0)) if others else _NONE)
        if kind == "S":
            columns.append(_NONE if mine is None else np.gcd(mine[0], ALIGNED).astype(float))
    return columns


def _parallel(block: Block, factors: Factors, sketch: Sketch, decided: Decided) -> Numbers:
    """log2 of the iterations of the outermost spatial loops; 0 where they are not parallel."""
    iterations = np.ones(len(decided))
    for iterator, (kind, extent) in enumerate(block.iters):
        if kind == "S" and not factors:
            iterations *= max(extent, 1)
        elif kind == "S" and iterator in factors:
            iterations *= factors[iterator][-1]
    for index, one in enumerate(sketch.open_decisions):
        if one.kind is DecisionKind.PARALLEL:
            iterations[np.array([d[index][0] for d in decided]) == 0] = 1
    return np.log2(iterations)


_NONE = np.array([np.nan])


_OF_TASK, _OF_SKETCH, _PLAIN, _FACTORS = (
    11 + len(_OPERATIONS) + _OPERANDS,
    7,
    4 + _SPLITS,
    13,
)
FIRST_DEPTH = _OF_TASK + _OF_SKETCH + _PLAIN
"""The column where the features of the innermost depth begin."""
WIDTH = FIRST_DEPTH + _DEPTHS * _PER_DEPTH + _FACTORS + placement_features.WIDTH + 1
"""Features per candidate; the last one is the parallel iterations."""
