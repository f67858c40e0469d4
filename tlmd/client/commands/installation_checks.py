"""The checks of `tlmd doctor` that examine the installation: packages, linker, checkpoint."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tlmd.client.commands.findings import FAIL, OK, WARN, CheckContext, Finding

# Always shown. Other requirements are shown only if something is wrong with them.
_SHOWN = ("apache-tvm", "apache-tvm-ffi", "torch", "transformers", "xgboost-cpu")
_ALTERNATIVES = {"xgboost-cpu": "xgboost"}  # another package with the same module
_LINKERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")  # the order in which TVM searches


def versions(context: CheckContext) -> Iterator[Finding]:
    """Check the versions of Python and of all required packages."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python, lines = context.requirements()
    installed = platform.python_version()
    fits = SpecifierSet(python).contains(installed, prereleases=True)
    mend = "" if fits else f"install Python {python}"
    yield Finding("python", OK if fits else FAIL, installed, mend)
    declared = [Requirement(line) for line in lines]
    needed = [r for r in declared if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in needed:
        finding = _version(context, requirement.name, requirement.specifier)
        if finding.status != OK or requirement.name in _SHOWN:
            yield finding
    ray = next((r.specifier for r in declared if r.name == "ray"), SpecifierSet())
    if "ray" not in {r.name for r in needed} and _installed(context, "ray"):
        yield _version(context, "ray", ray)


def _version(context: CheckContext, name: str, allowed: Any) -> Finding:
    version = _installed(context, name) or _installed(context, _ALTERNATIVES.get(name, name))
    if version and allowed.contains(version, prereleases=True):
        return Finding(name, OK, version)
    detail = f"{version or 'not installed'}; {allowed or 'any version'} is needed"
    return Finding(name, FAIL, detail, f"pip install '{name}{allowed}'")


def _installed(context: CheckContext, name: str) -> str | None:
    try:
        return context.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torchvision(context: CheckContext) -> Iterator[Finding]:
    """Check that torchvision can be imported where it is: transformers imports it then, too."""
    version = _installed(context, "torchvision")
    if version is None:
        return
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # it raises other kinds where it does not fit the torch
        reason = " ".join(str(error).split())[:160]
        mend = "install the torchvision of this torch, or: pip uninstall torchvision"
        yield Finding("torchvision", FAIL, f"{version} cannot be imported: {reason}", mend)


def linker(context: CheckContext) -> Iterator[Finding]:
    """Check for a compiler that can link ``model.so``."""
    compiler = next((path for name in _LINKERS if (path := context.which(name))), None)
    if compiler:
        yield Finding("linker", OK, compiler)
    else:
        mend = "install a C++ compiler, for example: apt install g++"
        yield Finding("linker", FAIL, "neither gcc nor clang found; model.so needs one", mend)


def checkpoint(context: CheckContext) -> Iterator[Finding]:
    """Check that the configured TLM loads and has the vocabulary of this tlmd."""
    from tlmd.data.config import SHIPPED
    from tlmd.tlm import checkpoint as checkpoints
    from tlmd.tlm import network

    configured = context.config.generate.checkpoint
    source = Path(configured) if configured else SHIPPED
    try:
        loaded = checkpoints.load(source)
    except Exception as error:
        mend = "reinstall tlmd, or make a checkpoint with 'python -m tlmd.learn.make_base'"
        if configured:
            mend = "correct generate.checkpoint in the configuration"
        yield Finding("checkpoint", FAIL, " ".join(str(error).split())[:200], mend)
        return
    size = network.parameters(loaded.model)
    detail = f"{loaded.preset}, version {loaded.version}, {size / 1e6:.1f}M parameters"
    if loaded.cost_model.trained:
        yield Finding("checkpoint", OK, detail)
    else:
        mend = "train it: 'python -m tlmd.learn.make_base'"
        yield Finding("checkpoint", WARN, f"{detail}, cost model not trained", mend)
