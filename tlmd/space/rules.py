"""The rules that build the sketches of a task: TVM's for the target, then tlmd's own.

How to add a rule is described in ``.github/CONTRIBUTING.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.s_tir import meta_schedule as ms

EXTRA_RULES: tuple[Callable[[], Any], ...] = ()
"""Classes of TVM schedule rules (`PyScheduleRule`). Every context gets an object of each."""


def with_extra_rules(generator: Any) -> Any:
    """A space generator with the rules and postprocessors of `generator`, and ours after them."""
    return ms.space_generator.PostOrderApply(
        sch_rules=[*generator.sch_rules, *(rule() for rule in EXTRA_RULES)],
        postprocs=list(generator.postprocs),
        mutator_probs={},
    )
