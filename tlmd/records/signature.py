"""The signature of a task's computation; by it an upgrade finds tasks that were tuned before.

The id of a task is the hash of its program, so every time belongs to exactly one program. A newer
tlmd may lower the same operators to another program, with another id: a newer revision. Both have
the same signature: the operators, the arguments with their shapes and dtypes, and the alternative.
Two tasks that differ in something else may share a signature, too; this is harmless, because what
is carried over is applied, verified and measured like all other candidates.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tlmd.data.types import Task


def signature(task: Task) -> str:
    """Hash of a task's computation; empty where its module cannot be read.

    TVM is not needed: its JSON is a list of nodes that name each other by their places.
    """
    try:
        arguments = _arguments(json.loads(task.module)["nodes"])
    except (ValueError, KeyError, TypeError, IndexError, StopIteration):
        return ""
    operators = re.sub(r"\d+", "", task.name)
    text = json.dumps([operators, task.alternative, arguments])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _arguments(nodes: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """Dtype and shape of each argument of the module's function."""
    function = next(node for node in nodes if node["type"].endswith(".PrimFunc"))
    arguments = []
    for place in nodes[function["data"]["params"]]["data"]:
        buffer = nodes[nodes[place]["data"]["ty"]]["data"]
        sizes = [nodes[size]["data"]["value"] for size in nodes[buffer["shape"]]["data"]]
        shape = [int(nodes[size]["data"]) for size in sizes]
        arguments.append((str(nodes[buffer["dtype"]]["data"]["dtype"]), shape))
    return arguments
