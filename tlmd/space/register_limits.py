"""Limits of a CPU's registers on a matrix product: all sums of a kernel stay in them.

A kernel with more sums stores and loads them in each turn: with 40 in 32 registers it takes 2.5
times as long (benchmarks/LOG.md, "Sums that stay in registers").
"""

from __future__ import annotations

from collections.abc import Sequence

from tlmd.alternatives import catalogue
from tlmd.data.computation import Computation, DecisionKind, FactorLimit, OpenDecision
from tlmd.data.types import TargetInfo
from tlmd.space.hardware.target import tvm_target, vector_unit

_OTHERS = 4  # registers of weights and data
_SUMMED = "R"


def register_limits(
    blocks: Sequence[str],
    open_decisions: Sequence[OpenDecision],
    computation: Computation,
    target: TargetInfo,
) -> tuple[FactorLimit, ...]:
    """The limit of a sketch of an alternative; none of other sketches, whose loops LLVM unrolls.

    `blocks`: the names of the task's blocks. The kernel has the innermost factor of each tile but
    those of the sum: rows, and vectors of columns.
    """
    if set(catalogue.products()).isdisjoint(blocks):
        return ()
    kernel = tuple(
        (index, one.arity - 1)
        for index, one in enumerate(open_decisions)
        if one.kind is DecisionKind.TILE and not _is_of_sum(one, computation)
    )
    registers = vector_unit(tvm_target(target)).registers
    return (FactorLimit(kernel, 1, registers - _OTHERS),)


def _is_of_sum(tile: OpenDecision, computation: Computation) -> bool:
    """Whether it divides a sum; parts of a split loop are known to be none."""
    return tile.block >= 0 and computation.blocks[tile.block].iters[tile.iterator][0] == _SUMMED
