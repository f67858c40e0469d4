"""A MetaSchedule trace -> a sketch: its open decisions and the words that describe it."""

from __future__ import annotations

import json
from math import prod
from typing import Any

from tvm.s_tir import Trace
from tvm.tirx import FloatImm, IntImm

from tlmd.data.computation import Computation, DecisionKind, OpenDecision, Sketch
from tlmd.data.types import TargetInfo
from tlmd.space.register_limits import register_limits
from tlmd.space.thread_limits import thread_limits

# A trace as plain Python data: [instructions, [[index, decision], ...]].
PlainTrace = list[Any]
PARALLEL = "meta_schedule.parallel"
_JOBS_PER_CORE = (1, 2, 4, 8, 16)  # MetaSchedule's default is 16
_TILING = "meta_schedule.tiling_structure"
_TENSORIZE = ("meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init")


def plain_trace(trace: Trace) -> PlainTrace:
    """The JSON form of a TVM trace, with TVM numbers converted to Python numbers."""
    insts, decisions = trace.as_json(remove_postproc=True)
    return [_plain(insts), _plain(decisions)]


def instructions(trace: Trace) -> str:
    """The instructions of a TVM trace as text, without its decisions."""
    return json.dumps(plain_trace(trace)[0])


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, IntImm):
        return int(value.value)
    return float(value.value) if isinstance(value, FloatImm) else value


def read_sketch(
    index: int,
    trace: PlainTrace,
    blocks: list[str],
    computation: Computation,
    target: TargetInfo,
) -> Sketch:
    """The sketch of a trace, with open decisions in the order of the instructions.

    `blocks` are the names of the task's blocks in the order of `computation`. Decisions for
    loops of unknown extent, and those with only one possible value, are listed too, so that a
    candidate has exactly one decision for each instruction that decides.
    """
    reader = _Reader(blocks, target)
    decisions = dict(trace[1])
    for position, (kind, inputs, attrs, outputs) in enumerate(trace[0]):
        reader.read(position, kind, inputs, attrs, outputs, decisions.get(position))
    open_decisions = tuple(reader.open_decisions)
    on_gpu = thread_limits(trace[0], open_decisions, computation, target)
    limits = on_gpu or register_limits(blocks, open_decisions, computation, target)
    return Sketch(index, open_decisions, tuple(reader.steps), limits)


class _Reader:
    """Follows the names of blocks and loops through the instructions of one trace."""

    def __init__(self, blocks: list[str], target: TargetInfo) -> None:
        self.open_decisions: list[OpenDecision] = []
        self.steps: list[str] = []
        self._names = blocks
        self._target = target
        self._block_of: dict[str, int] = {}
        self._loop_of: dict[str, tuple[int, int]] = {}
        self._loops: dict[str, set[str]] = {}
        self._order: dict[str, int] = {}
        self._part_of: dict[str, int] = {}  # 0: the outer loop of a split
        self._sampled: set[str] = set()  # numbers, and loops whose extents depend on them
        self._split_blocks: set[str] = set()  # blocks that have such loops

    def read(
        self,
        at: int,
        kind: str,
        inputs: list[Any],
        attrs: list[Any],
        outputs: list[str],
        value: Any,
    ) -> None:
        """Read one instruction; `value` is its decision, if it has one."""
        if kind == "GetSBlock":
            self._block_of[outputs[0]] = self._find(attrs[0])
        elif kind == "GetLoops":
            block = self._block_of.get(inputs[0], -1)
            self._loop_of.update({loop: (block, i) for i, loop in enumerate(outputs)})
            self._loops.setdefault(inputs[0], set()).update(outputs)
            if inputs[0] in self._split_blocks:
                self._sampled.update(outputs)
        elif kind == "Split":
            self._split(inputs, outputs)
        elif kind == "Reorder":
            self._order = {loop: i for i, loop in enumerate(inputs)}
        elif kind in ("SamplePerfectTile", "SamplePartitionedTile"):
            self._sampled.update(outputs)
            self._tile(at, kind, inputs, attrs, value)
        elif kind == "SampleCategorical":
            self.open_decisions.append(
                OpenDecision(DecisionKind.CATEGORY, at, options=tuple(map(int, attrs[0])))
            )
        elif kind == "SampleComputeLocation":
            block = self._block_of.get(inputs[0], -1)
            self.open_decisions.append(OpenDecision(DecisionKind.LOCATION, at, block=block))
        elif kind == "Annotate":
            self._annotate(at, inputs, attrs)
        elif kind == "ReverseComputeAt":
            self._add_steps("fuse_at", f"level:{self._order.get(inputs[1], 0)}")
        elif kind == "RFactor":
            self._add_steps("rfactor", f"level:{self._part_of.get(inputs[0], 0)}")
        elif kind in ("CacheWrite", "CacheRead", "TransformLayout", "DecomposeReduction"):
            self._add_steps(kind.lower())

    def _find(self, name: str) -> int:
        return self._names.index(name) if name in self._names else -1

    def _add_steps(self, *words: str) -> None:
        self.steps.extend(words)

    def _split(self, inputs: list[Any], outputs: list[str]) -> None:
        loop, factors = inputs[0], inputs[1:]
        self._part_of.update({part: i for i, part in enumerate(outputs)})
        if any(factor in self._sampled for factor in factors if isinstance(factor, str)):
            self._sampled.update(outputs)
            self._split_blocks.update(b for b, loops in self._loops.items() if loop in loops)

    def _tile(self, at: int, kind: str, inputs: list[Any], attrs: list[Any], value: Any) -> None:
        if inputs[0] in self._sampled and value[0] > 0:
            raise ValueError(
                f"instruction {at} ({kind}) samples over a loop whose extent depends on other "
                "decisions; the language writes one fixed extent per tile"
            )
        block, iterator = self._loop_of.get(inputs[0], (-1, 0))
        # A loop of unknown extent has the decision [-1, 1, ..., 1].
        extent = prod(value) if value[0] > 0 else 0
        arity = int(attrs[0])
        if kind == "SamplePerfectTile":
            limit = max(int(attrs[1]), 0)
            open_decision = OpenDecision(
                DecisionKind.TILE, at, extent, arity, limit, block=block, iterator=iterator
            )
        else:
            rule = (int(attrs[1]), int(attrs[2]))
            open_decision = OpenDecision(
                DecisionKind.PARTITION, at, extent, arity, 0, (), rule, block, iterator
            )
        self.open_decisions.append(open_decision)

    def _annotate(self, at: int, inputs: list[Any], attrs: list[Any]) -> None:
        key = str(attrs[0])
        if key == PARALLEL and isinstance(inputs[1], int):
            cores = self._target.cores
            options = (0, *(cores * jobs for jobs in _JOBS_PER_CORE))
            self.open_decisions.append(OpenDecision(DecisionKind.PARALLEL, at, options=options))
        elif key == _TILING:
            block = self._block_of.get(inputs[0], -1)
            self._add_steps("tiling", *str(inputs[1]).strip('"'), f"block:{block}")
        elif key in _TENSORIZE:
            self._add_steps("tensorize")
