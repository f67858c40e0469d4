"""Content hashes of tensor programs: what a task computes, not what its variables are called."""

from __future__ import annotations

import hashlib
import io
import keyword
import tokenize
from collections.abc import Iterator
from typing import Any

# Part of every id: bump it when the canonical text changes, so that old ids cannot match new ones.
VERSION = "t1"
_KEPT = {"T", "I", "Module", "main", "range", *keyword.kwlist, *keyword.softkwlist}
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def task_id(module: Any) -> str:
    """The id of a TensorIR module with one function `main`.

    Equal for modules that differ in names only (functions, buffers, loops, blocks); different for
    other shapes, dtypes, constants or arithmetic. The same in every process and on every platform.
    """
    digest = hashlib.sha256("\0".join(canonical_tokens(module)).encode()).hexdigest()
    return f"{VERSION}{digest[:30]}"


def canonical_tokens(module: Any) -> Iterator[str]:
    """The words of the module's TVMScript, every bound name replaced by its rank of appearance."""
    func = module["main"]
    for attr in ("global_symbol", "op_pattern"):
        func = func.without_attr(attr)
    text = type(module)({"main": func}).script(show_meta=False)
    names: dict[str, str] = {}
    tokens = [
        t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in _SKIPPED
    ]
    before, before2 = "", ""
    depth = 0
    for index, token in enumerate(tokens):
        word = token.string
        if token.type == tokenize.NAME:
            after = tokens[index + 1].string
            argument = depth > 0 and after == "=" and before in ("(", ",")
            if not (word in _KEPT or before == "." or argument):
                word = names.setdefault(word, f"v{len(names)}")
        elif token.type == tokenize.STRING and before == "(" and before2 == "sblock":
            word = '"block"'
        elif token.type == tokenize.OP:
            depth += (word in "([{") - (word in ")]}")
        elif token.type in (tokenize.INDENT, tokenize.DEDENT):
            word = tokenize.tok_name[token.type]
        yield word
        before2, before = before, token.string
