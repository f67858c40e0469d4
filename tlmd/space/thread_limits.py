"""Limits of a GPU on a sketch: threads, virtual threads, pipelines, shared memory of a block.

TVM checks a program only after it was applied (`VerifyGPUCode`), and refuses nearly all that are
drawn without these limits.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from tlmd.data.computation import (
    Access,
    Computation,
    CopiedBuffer,
    DecisionKind,
    FactorLimit,
    MemoryLimit,
    OpenDecision,
)
from tlmd.data.types import TargetInfo

_THREADS, _VIRTUAL = "threadIdx.x", "vthread.x"
_WARP = 32
_MOST_THREADS, _SHARED_BYTES = 1024, 48 << 10  # of every CUDA device
_MOST_VIRTUAL = 8  # VerifyGPUCode
_TILES = (DecisionKind.TILE, DecisionKind.PARTITION)

Factors = tuple[tuple[int, int], ...]


def thread_limits(
    instructions: list[Any],
    open_decisions: tuple[OpenDecision, ...],
    computation: Computation,
    target: TargetInfo,
) -> tuple[FactorLimit | MemoryLimit, ...]:
    """The limits of a sketch, from the instructions of its plain trace; none on a CPU."""
    if target.device != "cuda":
        return ()
    spec = json.loads(target.spec)
    most = {
        _VIRTUAL: (1, _MOST_VIRTUAL),
        _THREADS: (_WARP, int(spec.get("max_threads_per_block", _MOST_THREADS))),
    }
    factors = _factors(instructions, open_decisions)
    limits: list[FactorLimit | MemoryLimit] = [
        FactorLimit(factors[inputs[0]], *most[str(attrs[0])])
        for kind, inputs, attrs, _ in instructions
        if kind == "Bind" and str(attrs[0]) in most and factors.get(inputs[0])
    ]
    limits += [
        FactorLimit(factors[loop], 2, sys.maxsize)
        for loop, _ in _pipelines(instructions)
        if factors.get(loop)
    ]
    buffers = _shared_buffers(instructions, open_decisions, computation)
    if buffers:
        shared = int(spec.get("max_shared_memory_per_block", _SHARED_BYTES))
        limits.append(MemoryLimit(buffers, shared // _versions(instructions)))
    return tuple(limits)


def _versions(instructions: list[Any]) -> int:
    """How many steps of the sum are in shared memory at the same time: software pipelining."""
    return 1 + max((max(stages) for _, stages in _pipelines(instructions)), default=0)


def _pipelines(instructions: list[Any]) -> list[tuple[str, list[int]]]:
    """Each loop with software pipelining, and the stages of its parts.

    Such a loop needs two turns: TVM removes a loop of one, and then refuses the program.
    """
    return [
        (inputs[0], list(map(int, inputs[1])))
        for kind, inputs, attrs, _ in instructions
        if kind == "Annotate" and str(attrs[0]).strip('"') == "software_pipeline_stage"
    ]


def _factors(
    instructions: list[Any], open_decisions: tuple[OpenDecision, ...]
) -> dict[str, Factors]:
    """The factors of tiles whose product is the extent of each loop."""
    at = {one.inst: i for i, one in enumerate(open_decisions) if one.kind in _TILES}
    factors: dict[str, Factors] = {}  # a sampled number or a loop -> the factors it is made of
    for position, (kind, inputs, _, outputs) in enumerate(instructions):
        if position in at:
            factors |= {name: ((at[position], i),) for i, name in enumerate(outputs)}
        elif kind == "Split":
            pairs = zip(outputs, inputs[1:], strict=True)
            factors |= {
                loop: factors[n] for loop, n in pairs if isinstance(n, str) and n in factors
            }
        elif kind == "Fuse":
            factors[outputs[0]] = sum((factors.get(loop, ()) for loop in inputs), ())
    return factors


def _shared_buffers(
    instructions: list[Any], open_decisions: tuple[OpenDecision, ...], computation: Computation
) -> tuple[CopiedBuffer, ...]:
    """The copies of a tiled block into shared memory in each step of its outermost sum."""
    tiles = [(i, one) for i, one in enumerate(open_decisions) if one.kind in _TILES]
    blocks = {one.block for _, one in tiles if one.block >= 0}
    copied = [
        int(attrs[0])
        for kind, _, attrs, _ in instructions
        if kind == "CacheRead" and str(attrs[1]).strip('"') == "shared"
    ]
    if len(blocks) != 1 or not copied:
        return ()
    block = computation.blocks[blocks.pop()]
    # A block of threads has all but the outermost factor of each tile.
    inside = {
        one.iterator: (1, tuple((i, position) for position in range(1, one.arity)))
        for i, one in tiles
        if one.extent
    }
    whole = {i: (extent, ()) for i, (_, extent) in enumerate(block.iters)}
    sides: dict[int, tuple[int, Factors]] = {**whole, **inside}
    return tuple(_copied(block.reads[i], sides) for i in copied if i < len(block.reads))


def _copied(access: Access, sides: dict[int, tuple[int, Factors]]) -> CopiedBuffer:
    bits = re.search(r"\d+", access.dtype)
    dims = tuple(
        tuple((max(1, abs(stride)), *sides[iterator]) for iterator, stride in dim)
        for dim in access.dims
    )
    return CopiedBuffer(max(1, int(bits[0]) // 8) if bits else 1, dims)
