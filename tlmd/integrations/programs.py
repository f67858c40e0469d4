"""Compiles a loaded model in this process with the best programs that are known now."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import tvm
from tvm import relax

from tlmd.data.types import TargetInfo
from tlmd.export import libraries
from tlmd.export.huge_pages import in_huge_pages
from tlmd.export.library import Library
from tlmd.export.program_source import ProgramSource
from tlmd.lowering.preparation import LoweredModel, merged_tasks
from tlmd.space.cache import SpaceCache

COMPILING = threading.RLock()
"""Held while something is exported or compiled: PyTorch's and TVM's tables are for one thread."""


@dataclass(frozen=True)
class CompiledHere:
    """A model compiled in this process."""

    library: Library

    has_known: bool
    """It has known programs that were not measured here."""


def compile_here(model: LoweredModel, target: TargetInfo, source: ProgramSource) -> CompiledHere:
    """Compile a lowered model with the programs of `source`. Raises the errors of TVM."""
    spaces = SpaceCache()  # of this model alone: tasks of one id may name their blocks differently
    result = source.find(model.spec.name, merged_tasks([model]), target, spaces)
    compiled = libraries.compiled_in_memory(model, result, spaces)
    with in_huge_pages():
        machine = relax.VirtualMachine(compiled.executable.jit(), tvm.cpu())
    return CompiledHere(Library(machine, model.source.inputs), bool(result.known))
