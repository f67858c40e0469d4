"""Content hashes of tensor programs. They depend on the computation, not on names of variables."""

from __future__ import annotations

import functools
import hashlib
import io
import keyword
import tokenize
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.ir import IRModule

# Part of every id. Change it when the canonical text changes, so that old ids match no new ones.
VERSION = "t1"
_KEPT = {"T", "I", "Module", "main", "range", *keyword.kwlist, *keyword.softkwlist}
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def task_id(module: IRModule) -> str:
    """The id of a TensorIR module with one function `main`.

    Modules that differ only in names (of functions, buffers, loops, blocks) have the same id. Other
    shapes, dtypes, constants or arithmetic give another id. The id does not depend on the process
    or the platform.
    """
    func = module["main"]
    for attr in ("global_symbol", "op_pattern"):
        func = func.without_attr(attr)
    return _id_of(type(module)({"main": func}).script(show_meta=False))


@functools.lru_cache(maxsize=1024)  # a model is lowered, cut into tasks, and given other programs
def _id_of(text: str) -> str:
    digest = hashlib.sha256("\0".join(_canonical_words(text)).encode()).hexdigest()
    return f"{VERSION}{digest[:30]}"


def _canonical_words(text: str) -> Iterator[str]:
    """The words of a TVMScript, with names replaced by ``v0``, ``v1``, ... in order."""
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
