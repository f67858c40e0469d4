"""Builds a scheduled model as TVM's `relax.build` does, with its functions compiled side by side.

LLVM compiles one function after the other, which is most of the time of a build. Here several
processes compile one function each into an object file, and linking puts the files together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax import vm_build
from tvm.runtime import load_static_library

from tlmd.processes import forks

_FEWEST = 6  # functions; fewer are compiled as fast as a process begins


def build(
    module: IRModule, target: tvm.target.Target, pipeline: Any, to_link: bool = False
) -> relax.VMExecutable:
    """An executable of a scheduled module; `pipeline` is the pass over its graph.

    `to_link`: it will be linked. Otherwise one process is faster, because nothing is then linked.
    """
    with target:
        lowered = pipeline(module)
    constants = dict(lowered.attrs.get("const_name_to_constant", {})) if lowered.attrs else {}
    builder = relax.ExecBuilder()
    functions = vm_build._filter_tir(vm_build._vmcodegen(builder, lowered))
    library = None if functions is None else _library(functions, target, to_link)
    linked = vm_build._ffi_api.VMLink(builder, target, library, [], constants)
    return relax.VMExecutable(linked)


def _library(functions: IRModule, target: tvm.target.Target, to_link: bool) -> Any:
    """The compiled functions as one module of TVM, which has others inside."""
    helps = to_link and len(functions.functions) >= _FEWEST and forks.processes() > 1
    if not helps or str(target.kind.name) != "llvm":
        return tirx.build(functions, target=target)
    ordered = sorted(functions.functions.items(), key=lambda pair: -_size(pair[1]))
    *parts, last = [IRModule({var: func}, attrs=functions.attrs) for var, func in ordered]
    with tempfile.TemporaryDirectory(prefix="tlmd-build-") as folder:
        objects = _objects(parts, target, Path(folder))
    # TVM asks a module that LLVM has made for the target of what it adds when it links.
    library = tirx.build(last, target=target)
    for one in objects:
        library.import_module(one)
    return library


def _objects(parts: Sequence[IRModule], target: tvm.target.Target, folder: Path) -> list[Any]:
    """The object file of each part, as a module of TVM. `folder` is for the files."""

    def compiled(index: int) -> bytes:
        tirx.build(parts[index], target=target).write_to_file(str(folder / f"{index}.o"))
        return b""

    forks.each(compiled, len(parts))
    names = [[str(f.attrs["global_symbol"]) for f in part.functions.values()] for part in parts]
    return [
        load_static_library(str(folder / f"{index}.o"), of_part)
        for index, of_part in enumerate(names)
    ]


def _size(func: tirx.PrimFunc) -> int:
    """The number of stores of a function, of which most take LLVM equally long."""
    stores: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stores.append))
    return len(stores)
