"""Nothing of tlmd runs code that a file or a request may hold: no pickle, no unsafe loads."""

from __future__ import annotations

import ast

import pytest

from tests.test_layout import ROOT, parsed, sources

PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
TORCH_LOADS = {"torch.load", "torch.serialization.load"}
NUMPY_LOADS = {"numpy.load", "numpy.lib.npyio.load"}
IMPORTERS = {"__import__", "importlib.import_module"}


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """``np.load`` as ``numpy.load``, where `names` says what the imports call what."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> full name, of everything that is imported."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def unpickles(tree: ast.AST) -> list[str]:
    """Parts of a program that could run code which a file holds."""
    names, found = aliases(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in PICKLERS]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or ""] * ((node.module or "").split(".")[0] in PICKLERS)
        elif isinstance(node, ast.Call):
            called = dotted(node.func, names)
            flags = {k.arg: getattr(k.value, "value", ...) for k in node.keywords}
            unsafe = (called in TORCH_LOADS and flags.get("weights_only") is not True) or (
                called in NUMPY_LOADS and flags.get("allow_pickle", False) is not False
            )
            by_name = called in IMPORTERS and getattr(node.args[0], "value", "") in PICKLERS
            found += [called] * (unsafe or by_name)
    return found


def test_nothing_is_unpickled() -> None:
    found = {str(path.relative_to(ROOT)): unpickles(parsed(path)) for path in sources()}
    assert {path: ways for path, ways in found.items() if ways} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "import joblib, json",
        "from shelve import open",
        "import marshal",
        "import importlib; importlib.import_module('pickle')",
        "import torch; torch.load(path)",
        "import torch; torch.load(path, weights_only=False)",
        "from torch import load; load(path)",
        "import torch as t; t.load(path, weights_only=flag)",
        "import numpy as np; np.load(path, allow_pickle=True)",
        "from numpy import load as read; read(path, allow_pickle=flag)",
    ],
)
def test_each_way_to_unpickle_is_noticed(source: str) -> None:
    assert unpickles(ast.parse(source))


def test_safe_ways_to_load_are_not_taken_for_unpickling() -> None:
    for source in (
        "import torch; torch.load(path, weights_only=True)",
        "import numpy as np; np.load(path); np.load(path, allow_pickle=False)",
        "import json; json.load(file); pickle = 1; torch.export.load(path)",
    ):
        assert unpickles(ast.parse(source)) == []
