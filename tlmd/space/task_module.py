"""Reads the TVM module of a task."""

from __future__ import annotations

from typing import Any

import tvm
from tvm_ffi.serialization import from_json_graph_str


def load(text: str) -> Any:
    """The module that `tvm.ir.save_json` has written. Raises the errors of TVM.

    `tvm.ir.load_json` first rewrites what an older TVM wrote, in Python: ten times the work of
    reading it. It is asked only if TVM cannot read the text as it is.
    """
    try:
        return from_json_graph_str(text)
    except Exception:  # TVM raises many kinds
        return tvm.ir.load_json(text)
