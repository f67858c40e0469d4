"""Register the tensor intrinsics of one kind of target, and tlmd's own, and no others.

Every `TuneContext` imports `tvm.s_tir.tensor_intrin`, which parses about 500 intrinsics of all
vendors (24 s). This module puts an empty package into `sys.modules`, so that this import does
nothing, and then imports only the submodule of the target (0.2 s).
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import tvm

from tlmd.alternatives.named_intrinsics import WORDS
from tlmd.alternatives.words.words import register as register_words

_PACKAGE = "tvm.s_tir.tensor_intrin"
_SUBMODULES = {
    "x86_64": ("x86",),
    "aarch64": ("arm_cpu",),
    "riscv64": ("riscv_cpu",),
}


def register(arch: str) -> None:
    """Register the intrinsics of `arch` (x86_64, aarch64, riscv64) with TVM. Idempotent.

    Others, such as cuda, use none.
    """
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
        sys.modules[_PACKAGE] = package
    for name in _SUBMODULES.get(arch, ()):
        importlib.import_module(f"{_PACKAGE}.{name}")
    if arch == "x86_64":
        for words in WORDS:
            register_words(words)
