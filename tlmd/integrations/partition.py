"""Splits a graph that TVM cannot compile as a whole: it compiles parts, and PyTorch runs the rest.

The graph is exported and normalised. Nodes that TVM can compile form regions, such that no region
needs its own outputs. Regions with little work stay in PyTorch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from tlmd.data.errors import BadInput, TlmdError
from tlmd.models.parts import levels
from tlmd.models.parts.regions import flat_graph, is_worth_it, reads_strides
from tlmd.models.pytorch import torch_frontend
from tlmd.models.pytorch.importer import check_effects, is_supported
from tlmd.models.pytorch.normalise import normalise
from tlmd.models.pytorch.operators import converters
from tlmd.models.sources import first_line

_PREFIX = "region_"
_MOST = 32  # regions of a graph; compiling one takes seconds


def split(
    name: str, module: torch.nn.Module, example: Sequence[Any], refused: Collection[str] = ()
) -> torch.fx.GraphModule:
    """`module` as a graph whose regions are submodules, named as `region_names` says.

    `module` takes and returns flat tensors. Weights are attributes of the region that uses them.
    `refused`: names of operators that stay in PyTorch, besides those that TVM lacks.
    Raises `BadInput` if there is no region that is worth it, or nothing to split.
    """
    try:
        return _split(name, module, example, refused)
    except TlmdError:
        raise
    except Exception as error:  # PyTorch raises many kinds
        raise BadInput(f"PyTorch cannot split {name} ({first_line(error)})") from error


def region_names(graph: torch.fx.GraphModule) -> list[str]:
    """The names of the submodules that are regions, in the order of their calls."""
    calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_module"]
    return [name for name in calls if name.startswith(_PREFIX)]


def region_inputs(
    graph: torch.fx.GraphModule, example: Sequence[torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """The inputs of each region when the graph runs on `example`."""
    examples: dict[str, list[torch.Tensor]] = {}
    hooks = []
    for name in region_names(graph):

        def keep(_: Any, inputs: tuple[torch.Tensor, ...], name: str = name) -> None:
            examples[name] = [value.detach().clone() for value in inputs]

        hooks.append(graph.get_submodule(name).register_forward_pre_hook(keep))
    try:
        with torch.no_grad():
            graph.forward(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return examples


def _split(
    name: str, module: torch.nn.Module, example: Sequence[Any], refused: Collection[str]
) -> torch.fx.GraphModule:
    convertible = converters()
    program = normalise(torch_frontend.exported(name, module, example), convertible)
    _check_effects(name, program)
    graph = flat_graph(program)
    _erase_old_weights(graph.graph)
    supported = _supported(graph.graph, set(convertible) - set(refused))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    if len(supported) == len(calls):
        raise BadInput(f"{name} has no operator to leave to PyTorch")
    regions = _regions(graph.graph, supported)
    if not regions:
        raise BadInput(f"{name} has no part that is worth a library of its own")
    parts = [dict.fromkeys(region) for region in regions]
    fused = fuse_by_partitions(graph, parts, prefix=_PREFIX, always_return_tuple=True)
    fused.delete_all_unused_submodules()
    fused.recompile()
    return fused


def _check_effects(name: str, program: Any) -> None:
    """Refuse what does more than compute outputs, and what depends on strides."""
    check_effects(name, program)
    for node in program.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise BadInput(f"{name} draws random numbers")
        if node.target._schema.is_mutable:
            raise BadInput(f"{name} changes a tensor ({node.target})")
        if reads_strides(node):
            raise BadInput(f"{name} reads a tensor by its strides ({node.target})")


def _erase_old_weights(graph: torch.fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _supported(graph: torch.fx.Graph, convertible: Collection[str]) -> set[torch.fx.Node]:
    """The nodes that TVM can compile. One with several outputs is among them if all of them are."""
    supported = {node for node in graph.nodes if is_supported(node, convertible)}
    for node in graph.nodes:
        several = isinstance(node.meta.get("val"), (tuple, list))
        if node in supported and several and not supported.issuperset(node.users):
            supported -= {node, *node.users}
    return supported


def _regions(graph: torch.fx.Graph, supported: set[torch.fx.Node]) -> list[list[torch.fx.Node]]:
    """The nodes of each region that is worth it."""
    constants = _own_constants(graph, supported)
    found = _levels(graph, supported, constants)
    for node in reversed(graph.nodes):
        if node in constants and node.users:
            (user,) = node.users
            if user in found:
                found[node] = found[user]
    by_level: dict[int, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if found.get(node, 1) % 2 == 0:
            by_level.setdefault(found[node], []).append(node)
    regions = [nodes for nodes in by_level.values() if is_worth_it(nodes)]
    return sorted(regions, key=len, reverse=True)[:_MOST]


def _own_constants(graph: torch.fx.Graph, supported: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Weights, and what is computed from nothing else. Afterwards each has at most one user."""
    constants: set[torch.fx.Node] = set()
    for node in graph.nodes:
        tensor = node.op == "get_attr" and isinstance(node.meta.get("val"), torch.Tensor)
        if tensor or (node in supported and constants.issuperset(node.all_input_nodes)):
            constants.add(node)
    for node in reversed(list(graph.nodes)):
        for user in list(node.users)[1:] if node in constants else ():
            with graph.inserting_after(node):
                copy = graph.node_copy(node, lambda source: source)
            user.replace_input_with(node, copy)
            constants.add(copy)
    return constants


def _levels(
    graph: torch.fx.Graph, supported: set[torch.fx.Node], constants: set[torch.fx.Node]
) -> dict[torch.fx.Node, int]:
    """The level of each call (`parts.levels`)."""
    calls = [n for n in graph.nodes if n.op == "call_function" and n not in constants]
    places = {node: place for place, node in enumerate(calls)}
    needs = [[places[s] for s in node.all_input_nodes if s in places] for node in calls]
    ours = {place for node, place in places.items() if node in supported}
    return dict(zip(calls, levels.levels(needs, ours), strict=True))
