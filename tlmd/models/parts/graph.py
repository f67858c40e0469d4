"""What the graphs of PyTorch and ONNX have in common: how one is cut into parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tlmd.models.parts import levels
from tlmd.models.parts.flow import Flow, FrameworkProgram, Part
from tlmd.models.parts.levels import Group
from tlmd.models.sources import SourceModel

Key: TypeAlias = Any
"""What names a value: a node of torch.fx, or a name of ONNX."""

_MOST_NAMED = 6  # operators that stay, in one line


class Graph(ABC):
    """The operators of a model by number, in an order in which they can run.

    A value has a key; weights and what is computed from nothing else have none, since each part has
    its own.
    """

    framework: str
    """What runs the operators that TVM does not compile."""

    name: str
    examples: Sequence[Sequence[np.ndarray]]
    """Sets of inputs of the model."""
    inputs: list[Key]
    """The keys of the inputs of the model, then of its state."""
    results: list[Key]
    """The keys of its outputs."""
    takes: list[list[Key]]
    """For each operator, the keys of the values that it takes."""
    gives: list[list[Key]]
    """For each operator, the keys of the values that it gives."""
    supported: set[int]
    """The operators that TVM may compile."""
    after: dict[int, int]
    """Operators that run after another one although they take nothing from it."""
    state: tuple[Any, ...] = ()
    writes: tuple[tuple[int, Key], ...] = ()
    """Pairs of the place of an input or state in `inputs`, and the key of what is written to it."""
    repeatable = True

    @abstractmethod
    def source(self, nodes: Sequence[int]) -> SourceModel:
        """A part imported into TVM. Its example are the values that it took in the first run.

        Raises `NotImportable`.
        """

    @abstractmethod
    def program(self, nodes: Sequence[int]) -> FrameworkProgram:
        """A part for the framework."""

    @abstractmethod
    def values(self, keys: Sequence[Key], number: int) -> list[Any]:
        """Values of a run on an example, as numpy arrays where they are tensors."""

    @abstractmethod
    def kind(self, node: int) -> Hashable:
        """Operators of one kind are imported by the same code in the same way."""

    @abstractmethod
    def label(self, node: int) -> str:
        """The name of an operator with its place in the model."""

    @abstractmethod
    def work(self, node: int) -> float:
        """About how many additions and multiplications it does."""

    @abstractmethod
    def is_worth_it(self, nodes: Sequence[int]) -> bool:
        """Whether a part of these operators is worth a library of its own."""

    def groups(self, left_out: Collection[int]) -> list[Group]:
        """The parts of the model if the operators `left_out` stay in the framework."""
        maker = {key: node for node, keys in enumerate(self.gives) for key in keys}
        needs = [{maker[key] for key in keys if key in maker} for keys in self.takes]
        for node, earlier in self.after.items():
            needs[node].add(earlier)
        return levels.groups(needs, self.supported - set(left_out), self.is_worth_it)

    def borders(self, nodes: Sequence[int]) -> tuple[list[Key], list[Key]]:
        """The keys of the values that a part takes from outside, and that it gives to outside."""
        inside = {key for node in nodes for key in self.gives[node]}
        taken = dict.fromkeys(key for node in nodes for key in self.takes[node])
        own = set(nodes)
        wanted = {key for n, keys in enumerate(self.takes) if n not in own for key in keys}
        wanted |= {*self.results, *(key for _, key in self.writes)}
        given = [key for node in nodes for key in self.gives[node] if key in wanted]
        return [key for key in taken if key not in inside], given

    def flow(self, groups: Sequence[Group], tuned: Sequence[SourceModel]) -> Flow:
        """The parts of `groups`; `tuned` are those that TVM compiles, in their order."""
        numbers = {key: number for number, key in enumerate(self.inputs)}
        sources, parts = iter(tuned), []
        for group in groups:
            takes, gives = self.borders(group.nodes)
            for key in gives:
                numbers.setdefault(key, len(numbers))
            program = next(sources) if group.tuned else self.program(group.nodes)
            parts.append(
                Part(tuple(numbers[k] for k in takes), tuple(numbers[k] for k in gives), program)
            )
        done = [sum(map(self.work, g.nodes)) for g in groups]
        total = sum(done)
        by_tvm = sum(w for w, g in zip(done, groups, strict=True) if g.tuned)
        return Flow(
            tuple(parts),
            tuple(numbers[key] for key in self.results),
            self.state,
            tuple((number, numbers[key]) for number, key in self.writes),
            self._stays(groups),
            by_tvm / total if total else 0.0,
            self.repeatable,
            self.framework,
        )

    def _stays(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """The operators of the framework that TVM cannot compile; else all that stay."""
        stay = [node for group in groups if not group.tuned for node in group.nodes]
        unsupported = [node for node in stay if node not in self.supported]
        labels: dict[str, str] = {}
        for node in unsupported or stay:
            label = self.label(node)
            labels.setdefault(label.split(" ")[0], label)
        named = list(labels.values())
        more = len(named) - _MOST_NAMED
        return (*named[:_MOST_NAMED], *([f"{more} more"] if more > 0 else []))
