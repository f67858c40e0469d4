"""Importing TVM without torch, for processes of tlmd that give it no tensors of PyTorch.

TVM's foreign function interface imports torch where it is installed: 2.4 s instead of 0.7 s, and
200 MB. Call `import_tvm` before any other module of tlmd imports TVM.
"""

from __future__ import annotations

import sys
from typing import Any


def import_tvm() -> None:
    """Import TVM. It does not import torch unless this process has done so already."""
    if "torch" in sys.modules or "tvm" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None  # `import torch` then raises ImportError, which TVM expects
    try:
        import tvm  # noqa: F401
    finally:
        del modules["torch"]
