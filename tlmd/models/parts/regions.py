"""Regions of a normalised program: its flat graph, and what is worth a library of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.export import ExportedProgram

from tlmd.models.pytorch.normalise import allow_all_strides

_FEWEST = 3  # operators of a region, without those that only change a shape
# A region is worth it if the name of one of its operators begins so.
_HEAVY = (
    *("mm.", "_int_mm.", "addmm.", "bmm.", "baddbmm.", "matmul.", "linear."),
    *("conv", "_scaled_dot_product", "scaled_dot_product"),
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm"),
    *("layer_norm", "group_norm", "batch_norm", "_fused_rms_norm"),
)
_LIGHT = ("view.", "reshape.", "getitem", "permute.", "expand.", "unsqueeze.", "squeeze.")
_STRIDED = ("as_strided.default", "as_strided_copy.default")


def flat_graph(program: ExportedProgram) -> torch.fx.GraphModule:
    """The graph of a normalised program, with flat inputs and outputs and weights as attributes.

    Its views accept all strides, as outputs of libraries are contiguous.
    """
    module: torch.fx.GraphModule = program.module(check_guards=False)
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    allow_all_strides(module.graph)
    return module


def is_worth_it(nodes: Sequence[torch.fx.Node]) -> bool:
    """Whether these operators of a normalised program are worth a library of their own."""
    names = [str(getattr(n.target, "__name__", "")) for n in nodes if n.op == "call_function"]
    work = [name for name in names if not name.startswith(_LIGHT)]
    return len(work) >= _FEWEST and any(name.startswith(_HEAVY) for name in work)


def reads_strides(node: torch.fx.Node) -> bool:
    """Whether an operator reads a tensor by its strides."""
    return getattr(node.target, "__name__", "") in _STRIDED
