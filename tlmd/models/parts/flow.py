"""A model as parts that run one after the other, and the values that they hand on.

Values have numbers: first the inputs of the model, then its state, then what each part gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tlmd.models.pytorch.tensors import as_array, as_tensor, is_torch
from tlmd.models.sources import SourceModel

Links = tuple[Sequence[int], Sequence[int]]
"""The numbers of the values that a part takes, and of those that it gives."""

Program = Callable[[Sequence[Any]], Sequence[Any]]
"""Runs a part: flat lists of values in and out."""


class FrameworkProgram(Protocol):
    """A part that PyTorch or ONNX Runtime runs."""

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run it."""

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write it to files of `folder` whose names begin with `name`; how to load it, as JSON."""


@dataclass(frozen=True)
class Part:
    """One part of a model."""

    takes: tuple[int, ...]
    """The numbers of the values that it takes."""

    gives: tuple[int, ...]
    """The numbers of the values that it gives."""

    program: SourceModel | FrameworkProgram
    """What TVM compiles, or what the framework runs."""


@dataclass(frozen=True)
class Flow:
    """The parts of a model for one set of input shapes."""

    parts: tuple[Part, ...]

    results: tuple[int, ...]
    """The numbers of the outputs of the model."""

    state: tuple[Any, ...] = ()
    """The first values of its state: numpy arrays, such as buffers that its forward writes."""

    writes: tuple[tuple[int, int], ...] = ()
    """Pairs of an input or a state and the value that is written to it when a run is done."""

    stays: tuple[str, ...] = ()
    """The operators that stay in the framework, each with its place in the model."""

    tuned_share: float = 1.0
    """The share of the arithmetic that TVM compiles."""

    repeatable: bool = True
    """Whether two runs give the same. Random numbers of ONNX Runtime do not."""

    framework: str = ""
    """The name of the framework that runs the rest."""


class FlowRunner:
    """Runs the parts of a model, and keeps its state between two runs. Not thread-safe.

    `links` are the values that each part takes and gives, and `programs` run the parts.
    """

    def __init__(
        self,
        links: Sequence[Links],
        programs: Sequence[Program],
        results: Sequence[int],
        state: Sequence[Any] = (),
        writes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._steps = list(zip(links, programs, strict=True))
        self._results, self._writes = results, writes
        self._state = list(state)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run all parts. Inputs and outputs are numpy arrays or torch tensors."""
        values: dict[int, Any] = dict(enumerate([*inputs, *self._state]))
        for (takes, gives), program in self._steps:
            outputs = program([values[number] for number in takes])
            values.update(zip(gives, outputs, strict=True))
        results = [values[number] for number in self._results]
        for place, number in self._writes:
            value = values[number]
            if place < len(inputs):
                _write(inputs[place], value)
            else:  # a copy, because the caller may change an output in place
                self._state[place - len(inputs)] = (
                    value.clone() if is_torch(value) else value.copy()
                )
        return results


def runner(flow: Flow, programs: Sequence[Program]) -> FlowRunner:
    """A function that runs a model with these programs for its parts."""
    links = [(part.takes, part.gives) for part in flow.parts]
    return FlowRunner(links, programs, flow.results, flow.state, flow.writes)


def _write(target: Any, value: Any) -> None:
    """Write a value to the memory of an input."""
    if is_torch(target):
        target.copy_(as_tensor(value))
    else:
        target[...] = as_array(value)
