"""Register the tensor intrinsics of one kind of target, and only those.

`import tvm.s_tir.tensor_intrin` parses some 500 intrinsics of every vendor (24 s), and every
`TuneContext` imports it. A bare package object in `sys.modules` makes that import free; the
submodule of the target in hand is then imported by itself (0.2 s).
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import tvm

_PACKAGE = "tvm.s_tir.tensor_intrin"
_SUBMODULES = {
    "x86_64": ("x86",),
    "cuda": ("cuda",),
    "aarch64": ("arm_cpu",),
    "riscv64": ("riscv_cpu",),
}


def register(arch: str) -> None:
    """Make the intrinsics for `arch` (x86_64, aarch64, riscv64, cuda) known to TVM; idempotent."""
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
        sys.modules[_PACKAGE] = package
    for name in _SUBMODULES.get(arch, ()):
        importlib.import_module(f"{_PACKAGE}.{name}")
