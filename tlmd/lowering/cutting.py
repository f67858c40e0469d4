"""Which parts of a model TVM compiles rightly, where it cannot compile the model as a whole.

Operators that TVM lacks stay in the framework at once. A part that cannot be imported, or whose
outputs differ from the framework's, is searched for the operator at fault: the shortest beginning
of the part that fails ends with it. It stays in the framework, with those of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tlmd.data.errors import NotImportable, TlmdError
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import TargetInfo
from tlmd.lowering import comparison, isolation, lowering, quick_schedule
from tlmd.lowering.preparation import LoweredModel, PreparedModel, lower_source
from tlmd.lowering.trial_inputs import Expected
from tlmd.models.parts.flow import Flow, Program
from tlmd.models.parts.graph import Graph
from tlmd.models.parts.graphs import graph_of, original_alone
from tlmd.models.parts.levels import Group
from tlmd.models.sources import Original, first_line
from tlmd.space.hardware import target as targets

_MOST_SEARCHES = 24  # for operators at fault; then the parts that fail stay in the framework


class Cutting:
    """Finds the parts of one model.

    `compares`: whether their outputs can be compared here. `isolates`: each part is tried in a fork
    first, after `isolation.prepare`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        target: TargetInfo,
        functions: dict[str, Any],
        compares: bool,
        isolates: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._spec, self._target = spec, target
        self._functions, self._tell = functions, tell
        self._compares, self._isolates = compares, isolates
        self._found: dict[tuple[int, ...], LoweredModel | TlmdError] = {}
        self._runs: dict[tuple[int, ...], Program] = {}
        self._tuned_runs: list[Program] = []
        self._least = 0.0
        self._searches = 0

    def parts(
        self, original: Original, examples: Sequence[Sequence[np.ndarray]]
    ) -> tuple[Flow, tuple[LoweredModel, ...]]:
        """The parts, and those that TVM compiles. Their outputs are compared for all `examples`."""
        try:
            graph = graph_of(original, examples)
        except NotImportable:
            return original_alone(self._spec, original), ()
        groups = self._groups(graph)
        tuned = [group for group in groups if group.tuned]
        if not tuned:
            return graph.flow(groups, []), ()
        models = [self._lowered(graph, group.nodes) for group in tuned]
        self._tuned_runs = [self._runs[g.nodes] for g in tuned if g.nodes in self._runs]
        return graph.flow(groups, [model.source for model in models]), tuple(models)

    def _groups(self, graph: Graph) -> list[Group]:
        left_out: set[int] = set()
        while True:
            groups = graph.groups(left_out)
            failed = [g.nodes for g in groups if g.tuned and not self._works(graph, g.nodes)]
            if not failed:
                return groups
            for nodes in failed:
                left_out |= self._at_fault(graph, nodes)

    def _at_fault(self, graph: Graph, nodes: Sequence[int]) -> set[int]:
        """The operators of a part that fails which stay in the framework."""
        self._searches += 1
        if self._searches > _MOST_SEARCHES:
            return set(nodes)
        works, fails = 0, len(nodes)
        while fails - works > 1:
            middle = (works + fails) // 2
            if self._works(graph, nodes[:middle]):
                works = middle
            else:
                fails = middle
        kind = graph.kind(nodes[fails - 1])
        return {node for node in nodes if graph.kind(node) == kind}

    def _works(self, graph: Graph, nodes: Sequence[int]) -> bool:
        try:
            self._lowered(graph, nodes)
        except TlmdError:
            return False
        return True

    def _lowered(self, graph: Graph, nodes: Sequence[int]) -> LoweredModel:
        """A part that works. Raises `TlmdError` if it does not."""
        key = tuple(nodes)
        if key not in self._found:
            self._tell(f"trying {len(key)} operators of {self._spec.name} in TVM")
            try:
                self._found[key] = self._tried(graph, key)
            except TlmdError as error:
                self._found[key] = error
            except Exception as error:  # TVM raises many kinds
                self._found[key] = NotImportable(f"TVM cannot compile it ({first_line(error)})")
        found = self._found[key]
        if isinstance(found, TlmdError):
            raise found
        return found

    def _tried(self, graph: Graph, nodes: tuple[int, ...]) -> LoweredModel:
        if self._isolates:
            isolation.check(lambda: self._tried_here(graph, nodes))
        return self._tried_here(graph, nodes)

    def _tried_here(self, graph: Graph, nodes: tuple[int, ...]) -> LoweredModel:
        model = lower_source(self._spec, graph.source(nodes), self._target, self._functions)
        if self._compares:
            takes, gives = graph.borders(nodes)
            runs = range(len(graph.examples))
            expected = [(graph.values(takes, n), graph.values(gives, n)) for n in runs]
            self._runs[nodes] = self._compiled(model, expected)
        return model

    def _compiled(self, model: LoweredModel, expected: Expected) -> Program:
        """A function that runs a part. Raises `NotImportable` if its outputs are wrong."""
        target, source = targets.tvm_target(self._target), model.source
        quick = quick_schedule.scheduled(model.lowered, target)
        least = comparison.tolerated(source)
        error = NotImportable("")
        for lowered in (quick, model.lowered):
            run = comparison.runner(lowering.compile_model(lowered, target).executable)
            try:
                comparison.largest_of(source, run, expected, least)
                self._least = max(self._least, least)
                return comparison.for_arrays(run)
            except NotImportable as wrong:
                error = wrong
        raise error

    def compare(self, model: PreparedModel, expected: Expected) -> float:
        """The largest error of the outputs of all parts together. Raises `NotImportable`."""
        run = comparison.in_parts(model.flow, self._tuned_runs if model.lowered else [])
        return comparison.largest_of(model.source, run, expected, self._least)
