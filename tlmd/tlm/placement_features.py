"""Features of where the blocks of a candidate are computed, and of its sums in parts (rfactor)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tlmd.data.computation import Block, Computation, DecisionKind, Sketch
from tlmd.data.types import Decision
from tlmd.tlm.footprint import ALIGNED, Numbers, volume

_LOCATED = 5  # location decisions that are described
_SUMS = 2  # sums in parts that are described
_NONE = np.array([np.nan])
FIRST_LOCATION = 5
"""The column where the features of the first location begin."""
WIDTH = FIRST_LOCATION + 4 * _LOCATED + 4 * _SUMS


def placement_features(
    computation: Computation,
    sketch: Sketch,
    decided: Sequence[tuple[Decision, ...]],
    loops: Sequence[Numbers],
) -> list[Numbers]:
    """`WIDTH` columns: scalars or ``[candidates]``; NaN where a feature does not apply.

    `loops`: the extents of the loops that locations count, the outermost first ``[candidates]``.
    """
    return [
        *_of_blocks(computation),
        *_of_locations(computation, sketch, decided, loops),
        *_of_sums(sketch, decided),
    ]


def _of_blocks(computation: Computation) -> list[Numbers]:
    """Operations of all blocks together; the main block alone does not show a softmax."""
    blocks = computation.blocks
    sums = [block for block in blocks if _is_sum(block)]
    operations = sum(volume(block) * max(1, len(block.ops)) for block in blocks)
    values = [
        math.log2(sum(map(volume, blocks)) or 1),
        math.log2(operations or 1),
        len(sums),
        len(blocks) - len(sums),
        math.log2(volume(blocks[-1])),
    ]
    return [np.array([float(value)]) for value in values]


def _is_sum(block: Block) -> bool:
    return any(kind == "R" and extent > 1 for kind, extent in block.iters)


def _of_locations(
    computation: Computation,
    sketch: Sketch,
    decided: Sequence[tuple[Decision, ...]],
    loops: Sequence[Numbers],
) -> list[Numbers]:
    """Per location: its number, how often the block is computed there, its volume, if it sums."""
    rounds = [np.ones(len(decided))]
    for extent in loops:
        rounds.append(rounds[-1] * extent)
    table = np.log2(np.stack(rounds))  # [loops + 1, candidates]
    columns: list[Numbers] = []
    for index, one in enumerate(sketch.open_decisions):
        if one.kind is not DecisionKind.LOCATION or len(columns) == 4 * _LOCATED:
            continue
        at = np.array([decisions[index][0] for decisions in decided])
        around = table[np.clip(at + 1, 0, len(loops)), np.arange(len(decided))]
        block = computation.blocks[one.block] if one.block >= 0 else None
        columns += [
            at.astype(np.float64),
            np.where(at < -1, np.nan, around),  # inline: the loops of its consumer
            _NONE if block is None else np.array([math.log2(volume(block))]),
            np.array([-1.0 if block is None else float(_is_sum(block))]),
        ]
    return columns + [_NONE] * (4 * _LOCATED - len(columns))


def _of_sums(sketch: Sketch, decided: Sequence[tuple[Decision, ...]]) -> list[Numbers]:
    """Per sum in parts: which loop of the split becomes a dimension, and both loops' extents.

    A tile of a sum comes before those of the main nest, in the order of the steps.
    """
    steps = sketch.steps
    parts = [int(steps[i + 1].partition(":")[2]) for i, s in enumerate(steps) if s == "rfactor"]
    tiles = [i for i, o in enumerate(sketch.open_decisions) if o.kind is DecisionKind.TILE]
    columns: list[Numbers] = []
    for part, index in list(zip(parts, tiles, strict=False))[:_SUMS]:
        factors = np.array([decisions[index] for decisions in decided])
        part = min(part, factors.shape[1] - 1)
        kept = factors[:, part]
        columns += [
            np.array([float(part)]),
            np.log2(kept),
            np.log2(np.prod(factors, axis=1) / kept),
            np.gcd(kept, ALIGNED).astype(float),
        ]
    return columns + [_NONE] * (4 * _SUMS - len(columns))
