"""Describe the hardware: a TVM target, the facts for the prompt, and a fingerprint."""

from __future__ import annotations

import itertools
import json
import platform
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

from tlmd.alternatives.amx import amx
from tlmd.alternatives.amx.amx_code import BF16
from tlmd.alternatives.kernel import VectorUnit
from tlmd.alternatives.words import bfloat16, int8
from tlmd.data.errors import BadInput
from tlmd.data.types import TargetInfo, content_hash
from tlmd.space.hardware.system_cpu import cpu_model, flags, may_use_matrix_unit

# Widest first. The first one that the CPU has gives the ISA token and the vector bits.
_X86_ISAS = (("avx512vnni", "avx512vnni", 512), ("avx512f", "avx512", 512), ("avx2", "avx2", 256))
_AVX512_BITS = 512  # of a vector; x86 has 32 registers then, and TVM a rule for integers
_ORDER = "one order of sketches"
"""Keeps records apart that have the sketches of such CPUs in the order of earlier versions."""
_USED = (bfloat16.FEATURE, int8.FEATURE, *dict.fromkeys(itertools.chain(*amx.FEATURES.values())))
_NARROW = "prefer-256-bit"
"""With it LLVM splits vectors of 512 bits, by default on all CPUs of Intel that have them. The
first of these CPUs lowered their clock for them; the products need them anyway."""
_LEVEL = 2
_CACHE_DIR = Path("/sys/devices/system/cpu/cpu0/cache")


def resolve(spec: str, cores: int = 1) -> TargetInfo:
    """Convert `--target` to a `TargetInfo`: `native`, `cuda`, a TVM target as JSON, or a TVM tag.

    `cores` is the number of cores that a program may use (the size of a slot). `cuda` is the first
    CUDA card that this process sees. Raises `BadInput` for a target that TVM does not know, and for
    `cuda` where there is no card.
    """
    if spec == "native":
        return _native(cores)
    if spec == "cuda":
        return _card()
    try:
        config: Any = json.loads(spec) if spec.lstrip().startswith("{") else spec
        if isinstance(config, dict) and config.get("kind") == "llvm":
            config.setdefault("num-cores", cores)
        target = tvm.target.Target(config)
    except Exception as error:  # TVM raises several kinds for an unknown target
        reason = str(error).strip().splitlines()[-1][:160] if str(error).strip() else "rejected"
        raise BadInput(
            f"unknown target {spec!r} ({reason}); use 'native', 'cuda' or a TVM target as JSON, "
            'such as \'{"kind":"llvm","mcpu":"znver4"}\''
        ) from error
    return _describe(target)


def tvm_target(info: TargetInfo) -> Any:
    """The TVM target of `info`."""
    return tvm.target.Target(json.loads(info.spec))


def for_building(target: tvm.target.Target) -> Any:
    """The TVM target with which programs of `target` are compiled: LLVM's second level for CPUs.

    At the third level, which is TVM's default, LLVM takes up to twenty times as long for loops that
    it unrolls, and the programs are no faster (`python -m benchmarks.build_levels`).
    """
    if str(target.kind.name) != "llvm" or "opt-level" in target.attrs:
        return target
    return tvm.target.Target({**json.loads(str(target)), "opt-level": _LEVEL})


def vector_unit(target: tvm.target.Target) -> VectorUnit:
    """The registers of the vector instructions of a TVM target."""
    if str(target.kind.name) != "llvm":
        return VectorUnit(lanes=1)
    arch = architecture(str(_target_config(target).get("mtriple", "")))
    bits = _vectors(target, arch)[1]
    is_small = arch == "x86_64" and bits < _AVX512_BITS
    return VectorUnit(bits // 32, 16 if is_small else 32)


def has_bf16(info: TargetInfo) -> bool:
    """Whether the CPU has the dot product of AVX-512 BF16, with vectors of 512 bits."""
    return has_features(info, [bfloat16.FEATURE])


def has_vnni(info: TargetInfo) -> bool:
    """Whether the CPU has the dot product of AVX-512 VNNI, with vectors of 512 bits."""
    return has_features(info, [int8.FEATURE])


def has_amx(info: TargetInfo, numbers: str = BF16) -> bool:
    """Whether the CPU has a matrix unit for such numbers (Intel AMX), and vectors of 512 bits."""
    return has_features(info, amx.FEATURES[numbers])


def has_features(info: TargetInfo, needed: Collection[str]) -> bool:
    """Whether the CPU has these features of LLVM, if any, and vectors of 512 bits for them."""
    if not needed:
        return True
    if info.arch != "x86_64" or info.device != "cpu" or info.vector_bits != _AVX512_BITS:
        return False
    return _features(tvm_target(info)).issuperset(needed)


def _native(cores: int) -> TargetInfo:
    config = {"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu(), "num-cores": cores}
    if changed := _changed_features(tvm.target.Target(config)):
        config["mattr"] = changed
    return _describe(tvm.target.Target(config))


def _changed_features(target: tvm.target.Target) -> list[str]:
    """Features of this machine's CPU that tlmd uses and LLVM's CPU of that name lacks.

    Virtual machines may hide the model of the CPU; LLVM then names an older one. And without its
    matrix unit where the system forbids to use it, and without `_NARROW`.
    """
    if architecture("") != "x86_64":
        return []
    named, here = _features(target), flags()
    added = [f for f in _USED if f not in named and f.replace("-", "") in here]
    removed = [_NARROW] if _NARROW in named and "avx512f" in named else []
    if not may_use_matrix_unit():
        added = [feature for feature in added if "amx" not in feature]
        removed += ["amx-tile"] if "amx-tile" in named else []
    return [*(f"+{feature}" for feature in added), *(f"-{feature}" for feature in removed)]


def _describe(target: tvm.target.Target) -> TargetInfo:
    kind = str(target.kind.name)
    config = _target_config(target)
    if kind == "cuda":
        return _describe_cuda(target, config)
    if kind != "llvm":
        raise BadInput(f"target kind {kind!r} is not supported; use an llvm or cuda target")
    _check_cpu(config)
    arch = architecture(str(config.get("mtriple", "")))
    isa, bits = _vectors(target, arch)
    l1, l2, l3 = _caches()
    cores = int(config.get("num-cores", 1))
    spec = json.dumps(config, sort_keys=True, separators=(",", ":"))
    facts: tuple[Any, ...] = (spec, cpu_model(), l1, l2, l3, cores)
    if arch != "aarch64" and bits < _AVX512_BITS:
        facts = (*facts, _ORDER)
    fingerprint = content_hash(facts)[:16]
    return TargetInfo(spec, "cpu", arch, isa, bits, cores, l1, l2, l3, fingerprint)


def _check_cpu(config: dict[str, Any]) -> None:
    """Raise `BadInput` for an unknown CPU; LLVM would only print a warning and use another CPU."""
    cpu = str(config.get("mcpu", ""))
    triple = str(config.get("mtriple", "")) or codegen.llvm_get_system_triple()
    if cpu and not codegen.llvm_is_valid_cpu(cpu, triple):
        raise BadInput(f"unknown CPU {cpu!r} in the target; use 'native' or a CPU name of LLVM")


def _card() -> TargetInfo:
    """The first CUDA card, as its driver describes it; its name keeps unlike cards apart."""
    card = tvm.cuda(0)
    if not card.exist:
        raise BadInput(
            "there is no CUDA card that TVM can use here; "
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use 'native'"
        )
    config = {
        "kind": "cuda",
        "arch": f"sm_{card.compute_version.replace('.', '')}",
        "model": card.device_name,
        "max_shared_memory_per_block": card.max_shared_memory_per_block,
        "max_threads_per_block": card.max_threads_per_block,
        "thread_warp_size": card.warp_size,
        "l2_cache_size_bytes": card.l2_cache_size_bytes or 0,
    }
    return _describe(tvm.target.Target(config))


def _describe_cuda(target: tvm.target.Target, config: dict[str, Any]) -> TargetInfo:
    isa = str(config.get("arch", "sm_70"))
    spec = json.dumps(config, sort_keys=True, separators=(",", ":"))
    shared = int(config.get("max_shared_memory_per_block", 49152))
    l2 = int(config.get("l2_cache_size_bytes", 0))
    warp_bits = 32 * int(config.get("thread_warp_size", 32))
    fingerprint = content_hash(spec)[:16]
    return TargetInfo(spec, "cuda", "cuda", isa, warp_bits, 1, shared, l2, 0, fingerprint)


def _target_config(target: tvm.target.Target) -> dict[str, Any]:
    config = json.loads(str(target))
    # TVM derives these keys again. Without them, equal targets have equal specs.
    return {k: v for k, v in config.items() if k not in ("keys", "tag") and v != ""}


def architecture(triple: str) -> str:
    """The architecture of an LLVM triple, such as x86_64. An empty triple means this machine."""
    name = triple.split("-")[0] if triple else platform.machine()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name.lower(), name.lower())


def _vectors(target: tvm.target.Target, arch: str) -> tuple[str, int]:
    """The instruction set that decides the width of vectors, and the width in bits."""
    with target:
        width = int(codegen.llvm_get_vector_width(target))
    return _isa(arch, _features(target), width)


def _features(target: tvm.target.Target) -> set[str]:
    """Features of the CPU, as LLVM names them."""
    with target:
        return set(map(str, codegen.llvm_get_cpu_features(target)))


def _isa(arch: str, features: set[str], width: int) -> tuple[str, int]:
    if arch == "x86_64":
        for feature, isa, bits in _X86_ISAS:
            if feature in features:
                return isa, bits
        return "sse", 128
    if arch == "aarch64":
        return ("dotprod" if "dotprod" in features else "neon"), max(width, 128)
    if arch == "riscv64":
        return ("rvv" if "v" in features else "rv64"), max(width, 64)
    return "generic", max(width, 64)


def _caches() -> tuple[int, int, int]:
    """Data cache sizes (L1, L2, L3) in bytes; 0 if the system does not report them."""
    sizes = {1: 0, 2: 0, 3: 0}
    for entry in sorted(_CACHE_DIR.glob("index*")):
        try:
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            level = int((entry / "level").read_text())
            text = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        match = re.fullmatch(r"(\d+)([KM]?)", text)
        if match and level in sizes:
            unit = {"": 1, "K": 1 << 10, "M": 1 << 20}[match[2]]
            sizes[level] = int(match[1]) * unit
    return sizes[1], sizes[2], sizes[3]
