"""The rules that build the sketches of a task: TVM's for the target, then tlmd's own.

How to add a rule is described in ``.github/CONTRIBUTING.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.s_tir import meta_schedule as ms

EXTRA_RULES: tuple[Callable[[], Any], ...] = ()
"""Classes of TVM schedule rules (`PyScheduleRule`). Every context gets an object of each."""


def in_one_order(generator: ms.SpaceGenerator) -> Any:
    """A space generator that makes the sketches of `generator` in the same order on every CPU.

    The language model has learnt this order. Each rule that TVM applies reverses the order of what
    the rules before it made, and some CPUs have a rule for their dot products of integers.
    """
    rules = list(generator.sch_rules)
    kinds = [type(rule) for rule in rules]
    if ms.schedule_rule.AddRFactor not in kinds:
        return generator
    after = kinds.index(ms.schedule_rule.AddRFactor) + 1
    if (kinds.index(ms.schedule_rule.MultiLevelTiling) - after) % 2 == 1:
        return generator
    rules.insert(after, ms.schedule_rule.InlineConstantScalars())  # has nothing left to do
    return _generator(rules, generator)


def with_extra_rules(generator: ms.SpaceGenerator) -> Any:
    """A space generator with the rules and postprocessors of `generator`, and ours after them."""
    return _generator([*generator.sch_rules, *(rule() for rule in EXTRA_RULES)], generator)


def _generator(sketch_rules: list[Any], like: ms.SpaceGenerator) -> Any:
    """A space generator with these rules and the postprocessors of another one."""
    return ms.space_generator.PostOrderApply(
        sch_rules=sketch_rules, postprocs=list(like.postprocs), mutator_probs={}
    )
