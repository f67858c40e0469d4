"""Packed weights: the columns that a kernel uses together lie together in memory.

A row of a large matrix of weights begins on a page of its own, so a tile of it touches many pages
and cache sets. As in GotoBLAS (Goto and van de Geijn, TOMS'08, section 4), panels of some columns
are stored one after the other. The weights are constants, so they are packed at compile time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir import Schedule

from tlmd.alternatives.implementation import REDUCTION, SPATIAL, Implementation
from tlmd.alternatives.transforms import PACKED, PANEL

_CHEAPER = 0.97  # the work of the packed program over that of the direct one; it is tried first
_RANK = 2  # weights of a GEMM


def packed(module: Any, constants: Sequence[int], flops: float) -> Implementation | None:
    """The program with packed weights; None where no matrix of weights can be packed.

    The weights ``[K, N]`` become ``[N / PANEL, K, PANEL]``.
    """
    function = module["main"]
    schedule = Schedule(module)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        found = schedule.get(block)
        kinds = {it.var: int(it.iter_type) for it in found.iter_vars}
        if REDUCTION not in kinds.values():
            continue
        for index, region in enumerate(found.reads):
            is_weight = any(region.source.same_as(function.params[i]) for i in constants)
            if is_weight and _is_matrix(region, kinds):
                schedule.transform_layout(
                    block, ("read", index), lambda k, n: (n // PANEL, k, n % PANEL)
                )
                return Implementation(PACKED, schedule.mod, flops, _CHEAPER * flops)
    return None


def _is_matrix(region: Any, kinds: dict[Any, int]) -> bool:
    """Whether a read is ``w[k, n]`` of a matrix with several whole panels of columns."""
    indices = [side.min for side in region.region]
    if len(indices) != _RANK or str(region.source.ty.dtype) != "float32":
        return False
    k, n = (kinds.get(index) for index in indices)
    columns = int(region.source.ty.shape[-1])
    return k == REDUCTION and n == SPATIAL and columns % PANEL == 0 and columns > PANEL
