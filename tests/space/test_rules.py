"""A schedule rule of one's own adds sketches that the language can write."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule

from tests.support import modules
from tlmd.data.computation import DecisionKind, Sketch
from tlmd.language.sentence import decode, encode
from tlmd.space.hardware.target import resolve
from tlmd.space.rules import rules
from tlmd.space.space import TaskSpace


@derived_object  # type: ignore[untyped-decorator]
class SplitInnermost(PyScheduleRule):  # type: ignore[misc]
    """Splits the innermost loop of every block: one more sketch, with one more open decision."""

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, schedule: Any, block: Any) -> list[Any]:
        # A sampled extent depends on other decisions; the language writes fixed extents only.
        is_sampled = any(inst.kind.name.startswith("Sample") for inst in schedule.trace.insts)
        changed = schedule.copy()
        loops = changed.get_loops(block)
        if is_sampled or not loops:  # the root block has no loops
            return [schedule]
        innermost = loops[-1]
        factors = changed.sample_perfect_tile(innermost, n=2, max_innermost_factor=16)
        changed.split(innermost, factors)
        return [schedule, changed]

    def clone(self) -> SplitInnermost:
        return SplitInnermost()


def test_a_new_rule_adds_sketches_to_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    task = modules.elementwise()
    monkeypatch.setattr(rules, "EXTRA_RULES", ())
    before = TaskSpace(task)
    monkeypatch.setattr(rules, "EXTRA_RULES", (SplitInnermost,))
    space = TaskSpace(task)
    assert len(space.sketches) == 2 * len(before.sketches)
    assert space.sketches[: len(before.sketches)] == before.sketches, (
        "old sketches keep their place"
    )
    new = space.sketches[-1]
    tiles = [d for d in new.open_decisions if d.kind is DecisionKind.TILE]
    assert [(tile.arity, tile.limit) for tile in tiles] == [(2, 16)]
    rng, decided = Random(0), set()
    for _ in range(8):
        candidate = space.random(rng, new.index)
        assert decode(space.sketches, encode(new, candidate), task.id) == candidate
        space.finish(candidate)  # raises where TVM applies something else
        decided.add(candidate.decisions)
    assert len(decided) > 1


def test_a_rule_that_does_not_fit_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "EXTRA_RULES", ())
    before = TaskSpace(modules.gemm()).sketches
    monkeypatch.setattr(rules, "EXTRA_RULES", (SplitInnermost,))
    assert TaskSpace(modules.gemm()).sketches == before, "TVM's rules tile it"


@derived_object  # type: ignore[untyped-decorator]
class SplitTiled(PyScheduleRule):  # type: ignore[misc]
    """A wrong rule: it samples over a loop whose extent TVM's own tiling has sampled."""

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, schedule: Any, block: Any) -> list[Any]:
        changed = schedule.copy()
        loops = changed.get_loops(block)
        if not loops:
            return [schedule]
        changed.split(loops[-1], changed.sample_perfect_tile(loops[-1], 2, 16))
        return [schedule, changed]

    def clone(self) -> SplitTiled:
        return SplitTiled()


def test_a_rule_that_samples_over_sampled_loops_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "EXTRA_RULES", (SplitTiled,))
    with pytest.raises(ValueError, match="extent depends on other decisions"):
        TaskSpace(modules.gemm())


@pytest.mark.parametrize("make", [modules.softmax, modules.gemm, modules.convolution])
@pytest.mark.parametrize(
    "other",
    [
        '{"kind":"llvm","mcpu":"haswell"}',
        '{"kind":"llvm","mtriple":"aarch64-linux-gnu"}',
        '{"kind":"llvm","mtriple":"riscv64-linux-gnu"}',
    ],
)
@pytest.mark.slow
def test_sketches_have_the_same_order_on_every_cpu(make: Any, other: str) -> None:
    spaces = [
        TaskSpace(replace(make(), target=resolve(target)))
        for target in ('{"kind":"llvm","mcpu":"znver5"}', other)
    ]
    first, second = ([_outline(sketch) for sketch in space.sketches] for space in spaces)
    assert len(first) > 1 and first == second


def _outline(sketch: Sketch) -> tuple[Any, ...]:
    """What does not depend on the rules' numbers, which are others on AArch64."""
    decided = [(one.kind, one.block, one.iterator, one.arity) for one in sketch.open_decisions]
    return sketch.steps, decided
