"""Damaged files for tests: changes of a file's bytes, and of a value inside a plain document.

``FUZZ_EXAMPLES=2000 pytest -n 0 tests/*/test_fuzz*.py`` tries 2,000 inputs of each format;
without it a few dozen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tlmd.data.errors import TlmdError

T = TypeVar("T")
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
_LONGEST_LINE = 600

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "0", "-1", "native", "../../etc/passwd", "\x00", "\ud800", 2**63])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def few(count: int) -> settings:
    """The settings of a fuzz test: `count` examples, or as many as the environment says."""
    return settings(
        max_examples=EXAMPLES or count,
        deadline=timedelta(seconds=30),  # longer counts as a hang
        suppress_health_check=list(HealthCheck),
        derandomize=not EXAMPLES,
        database=None,
    )


def one_line(call: Callable[[], T]) -> T | None:
    """What a call returns, or None where it was refused: by a `TlmdError`, in one line."""
    try:
        return call()
    except TlmdError as error:
        text = str(error)
        assert text.strip() and len(text.splitlines()) == 1, text
        assert len(text) <= _LONGEST_LINE, text
        assert "Traceback" not in text
        text.encode()  # it can be printed
        return None


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` after one to three changes: bytes flipped, overwritten, cut, moved or repeated."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        size = max(len(data), 1)
        at = draw(st.integers(0, size - 1))
        length = draw(st.integers(1, min(64, size)) | st.integers(1, size))
        kind = draw(st.sampled_from(["flip", "write", "cut", "remove", "repeat", "fill"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "write":
            new = draw(st.binary(min_size=1, max_size=16))
            data[at : at + len(new)] = new
        elif kind == "cut":
            del data[at:]
        elif kind == "remove":
            del data[at : at + length]
        elif kind == "repeat":
            data[at:at] = data[at : at + length]
        else:
            data[at : at + length] = bytes([draw(st.sampled_from([0, 255, 127]))]) * length
    return bytes(data)


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A copy of a plain document in which one or two values are others, missing or too many."""
    document = json.loads(json.dumps(document)) if not _has_bytes(document) else _copy(document)
    for _ in range(draw(st.integers(1, 2))):
        document = _change(draw, document)
    return document


def _change(draw: st.DrawFn, node: Any) -> Any:
    inside = isinstance(node, list | dict) and len(node) > 0
    if not inside or draw(st.integers(0, 4)) == 0:
        return draw(values | st.binary(max_size=8)) if _has_bytes(node) else draw(values)
    keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = draw(st.sampled_from(keys))
    kind = draw(st.sampled_from(["change", "change", "change", "remove", "add"]))
    if kind == "remove":
        del node[key]
    elif kind == "add" and isinstance(node, list):
        node.insert(key, draw(values))
    elif kind == "add":
        node[draw(st.text(max_size=6))] = draw(values)
    else:
        node[key] = _change(draw, node[key])
    return node


def _has_bytes(node: Any) -> bool:
    if isinstance(node, dict):
        return any(map(_has_bytes, node.values()))
    return isinstance(node, bytes) or (isinstance(node, list) and any(map(_has_bytes, node)))


def _copy(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copy(value) for key, value in node.items()}
    return [_copy(value) for value in node] if isinstance(node, list) else node
