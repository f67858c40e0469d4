"""Whether this machine can run the programs of a target: TVM builds for any of them."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

from tlmd.data.errors import BadInput
from tlmd.data.types import TargetInfo, Task
from tlmd.space.hardware.system_cpu import CPUINFO, cpu_model, flags
from tlmd.space.hardware.target import architecture, resolve, tvm_target

# Instruction sets that LLVM uses where it may; its other features are about tuning.
_CHECKED = {
    "x86_64": re.compile(r"amx|avx|fma|f16c|sse4|bmi"),
    "aarch64": re.compile(r"sve2?$|sme2?$|dotprod$|i8mm$|bf16$"),
}
# Linux' names where they are not LLVM's without dots and dashes.
_LINUX_NAMES = {"dotprod": "asimddp", "bmi": "bmi1"}


def check(info: TargetInfo) -> None:
    """Raise `BadInput`, which says what is missing, if this machine cannot run a target."""
    if missing := missing_for(info):
        cpu = json.loads(info.spec).get("mcpu", info.arch)
        raise BadInput(
            f"no slot can run programs for {cpu}: {missing}; this machine is {this_machine()}"
        )


def missing_for(info: TargetInfo, cpuinfo: Path = CPUINFO) -> str:
    """The features that this machine lacks for a target, in a few words; empty: none."""
    if info.device == "cuda":
        return "" if tvm.cuda(0).exist else "there is no CUDA card that TVM can use"
    here = architecture("")
    if info.arch != here:
        return f"it is for {info.arch}"
    there = flags(cpuinfo)
    if not there or here not in _CHECKED:
        return ""  # the system does not say
    if json.loads(info.spec).get("mcpu") == codegen.llvm_get_system_cpu():
        return ""  # the native target
    target = tvm_target(info)
    lacking = sorted(f for f in _features(target) if _CHECKED[here].match(f) and f not in there)
    return f"the CPU lacks {', '.join(lacking)}" if lacking else ""


def of_this_machine(task: Task) -> Task:
    """A task that is to be measured here, which may have been made on another machine.

    Raises `BadInput` if this machine cannot run its programs.
    """
    return replace(task, target=_resolved(task.target.spec))


@functools.cache
def _resolved(spec: str) -> TargetInfo:
    target = resolve(spec)
    check(target)
    return target


def this_machine() -> str:
    """Architecture, CPU in LLVM's words and in the system's, for messages."""
    return f"{architecture('')} {codegen.llvm_get_system_cpu()} ({cpu_model()})"


def _features(target: tvm.target.Target) -> set[str]:
    with target:
        names: Any = codegen.llvm_get_cpu_features(target)
    plain = (re.sub(r"[._-]", "", str(name)) for name in names)
    return {_LINUX_NAMES.get(name, name) for name in plain}
