"""One graph for fixed shapes of which TVM compiles parts and PyTorch runs the rest."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tlmd.data.errors import BadInput, TlmdError
from tlmd.export.program_source import ProgramSource
from tlmd.integrations import hot_swap, partition
from tlmd.integrations.graph_options import GraphOptions
from tlmd.integrations.hot_swap import Function, HotSwapped
from tlmd.models.sources import first_line
from tlmd.records.task_file import save_tasks

_log = logging.getLogger("tlmd.integrations")


class Partitioned:
    """Runs `module` on flat lists of tensors: with a library for each region, or eager PyTorch.

    It is used as a `HotSwapped` is. Raises `BadInput` if no region can be compiled.
    """

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        example: Sequence[torch.Tensor],
        options: GraphOptions,
        refused: Collection[str] = (),
    ) -> None:
        self._module = module
        self._example = [t.detach().clone().contiguous() for t in example]
        self.reason = ""
        """Why all of it runs in eager PyTorch; empty if a region runs a compiled library."""
        self.swaps: list[float] = []
        """Seconds per run of the whole graph, each time that it was found to be faster."""
        self._graph = partition.split(name, module, self._example, refused)
        self.regions = _compiled(name, self._graph, self._example, options)
        """One for each region; its `reason` says why, if it runs eager PyTorch."""
        if not any(region.tasks for region in self.regions):
            raise BadInput(f"no region can be compiled ({self.regions[0].reason})")
        self._is_usable = True
        self._tolerated = options.tolerated
        self._choose()
        if options.background:
            hot_swap.improve_in_background(self, name, options.state_dir)

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Run it once."""
        if self.reason:
            return self._eager(tensors)
        try:
            return self._in_parts(tensors)
        except Exception as error:
            outputs = self._eager(tensors)  # it raises what the model raises
            self._is_usable = False
            self.reason = f"the regions cannot run ({first_line(error)})"
            _log.warning("a graph runs in eager PyTorch: %s", self.reason)
            return outputs

    def improve(self) -> bool:
        """Compile with the records there are now; whether a region has a faster library."""
        improved = [_improve(region) for region in self.regions]
        if any(improved) and self._is_usable:
            self._choose()
        return any(improved)

    def save_tasks(self, path: Path) -> None:
        """Write the tasks of all regions for a daemon."""
        tasks = {task.id: task for region in self.regions for task in region.tasks}
        save_tasks(path, tasks.values())

    def _eager(self, tensors: Sequence[Any]) -> list[Any]:
        return list(self._module(*tensors))

    def _in_parts(self, tensors: Sequence[Any]) -> list[Any]:
        return list(self._graph.forward(*[t.contiguous() for t in tensors]))

    def _choose(self) -> None:
        """Use the regions if their outputs are right and they are faster."""
        reason, seconds = self._compare()
        if not reason:
            self.swaps.append(seconds)
        self.reason = reason  # one assignment: a call sees the old or the new one

    def _compare(self) -> tuple[str, float]:
        """Why eager PyTorch is better, or nothing; and the seconds of a run in parts."""
        if not any(region.swaps for region in self.regions):
            return "eager PyTorch is faster in all regions", 0.0
        try:
            hot_swap.check_outputs(self._in_parts, self._eager, self._example, self._tolerated)
        except Exception as error:  # PyTorch raises many kinds
            return f"the regions do not fit together ({first_line(error)})", 0.0
        runs = [self._eager, self._in_parts]
        old, new = hot_swap.shortest_times(runs, self._example)
        return ("" if new <= old * hot_swap.FASTER else "eager PyTorch is faster"), new


def build(
    name: str,
    module: torch.nn.Module,
    example: Sequence[torch.Tensor],
    options: GraphOptions,
) -> Function:
    """`module` as one library if TVM can compile it, else in parts, else in eager PyTorch."""
    whole = HotSwapped(name, module, example, options)
    if whole.tasks:
        return whole
    try:
        refused = [whole.obstacle] if whole.obstacle else []
        parts = Partitioned(name, module, example, options, refused)
    except TlmdError as error:
        if str(error) not in whole.reason:
            whole.reason += f"; {error}"
        _log.warning("%s runs in eager PyTorch: %s", name, whole.reason)
        return whole
    _log.info("%s runs in parts, because %s", name, whole.reason)
    return parts


def _compiled(
    name: str, graph: torch.fx.GraphModule, example: Sequence[torch.Tensor], options: GraphOptions
) -> list[HotSwapped]:
    """A `HotSwapped` for each region of the graph, which calls it from now on."""
    programs, options = ProgramSource(options.state_dir), replace(options, background=False)
    regions = []
    for region, inputs in partition.region_inputs(graph, example).items():
        module, label = graph.get_submodule(region), f"{name}.{region}"
        function = HotSwapped(label, module, inputs, options, programs)
        setattr(graph, region, _Region(function))
        regions.append(function)
    return regions


def _improve(region: HotSwapped) -> bool:
    try:
        return bool(region.tasks) and region.improve()
    except TlmdError:
        return False


class _Region(torch.nn.Module):
    """Calls the function of a region as a submodule of the graph."""

    def __init__(self, function: HotSwapped) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        return tuple(self._function(tensors))
