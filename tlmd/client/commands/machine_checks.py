"""The checks of `tlmd doctor` that examine the machine: cores, noise, speed, disk space."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tlmd.client.commands.findings import FAIL, OK, WARN, CheckContext, Finding
from tlmd.data.errors import BadInput
from tlmd.measure.cores.core_plan import CARD

_LOW_BYTES, _NO_BYTES = 2_000_000_000, 200_000_000
_QUIET, _NOISY = 0.05, 0.20  # coefficient of variation
_SYSFS = Path("/sys/devices/system/cpu")


def processor(context: CheckContext) -> Iterator[Finding]:
    """Check the CPU, the run cores and the governor of their clock."""
    from tlmd.space.hardware.system_cpu import cpu_model
    from tlmd.space.hardware.target import has_amx

    cores, target = context.slot()
    unit = ", a matrix unit" if has_amx(target) else ""
    vectors = f"{target.isa}, {target.vector_bits}-bit vectors{unit}"
    detail = f"{cpu_model()}: {vectors}; fingerprint {target.fingerprint}"
    yield Finding("cpu", OK, detail)
    threads = len(os.sched_getaffinity(0))
    smt = _read(_SYSFS / "smt/active")
    siblings = {"1": "on", "0": "off"}.get(smt, "unknown")
    detail = (
        f"{threads} usable, SMT {siblings}; timing on {_listed(cores.run)}, "
        f"building on {_listed(cores.build)}"
    )
    mend = "give tlmd a second core, so that it can build and time at once" if cores.shared else ""
    yield Finding("cores", WARN if cores.shared else OK, detail, mend)
    governors = {_read(_SYSFS / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in cores.run} - {""}
    if governors <= {"performance"}:
        yield Finding("governor", OK, ", ".join(governors) or "this system does not report it")
    else:
        mend = "cpupower frequency-set -g performance"
        yield Finding(
            "governor", WARN, f"{', '.join(sorted(governors))}: times depend on load", mend
        )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _listed(cores: tuple[int, ...]) -> str:
    return ("core " if len(cores) == 1 else "cores ") + ",".join(map(str, cores))


def noise(context: CheckContext) -> Iterator[Finding]:
    """Check how much timings of the same program differ."""
    from tlmd.measure.timing import peak

    cores, target = context.slot()
    measured = peak.noise(target, cores.run)
    share = measured.variation
    verdict = "quiet" if share < _QUIET else "usable" if share < _NOISY else "too noisy to tune on"
    detail = f"timings vary by {share:.1%} ({verdict}); during {measured.crowded:.0%} of the time "
    detail += "other programs crowd the caches"
    if share < _QUIET:
        yield Finding("noise", OK, detail)
    else:
        yield Finding("noise", WARN, detail, f"stop other programs on {_listed(cores.run)}")


def speed(context: CheckContext) -> Iterator[Finding]:
    """Measure the peak speed of the run cores and of their memory."""
    from tlmd.measure.timing.peak import measure_roofline

    cores, target = context.slot()
    limits = measure_roofline(target, cores.run)
    core_list = _listed(cores.run)
    peaks = ", ".join(f"{dtype} {speed:.0f}" for dtype, speed in limits.gflops.items())
    yield Finding("peak", OK, f"1e9 multiply-add operations per second on {core_list}: {peaks}")
    caches = [f"{speed:.0f} from {size >> 20} MiB" for size, speed in limits.bandwidth[:-1]]
    speeds = ", ".join([f"{limits.memory_gb_s:.1f} from memory", *caches])
    yield Finding("memory", OK, f"GB/s on {core_list}: {speeds}")


def card(_context: CheckContext) -> Iterator[Finding]:
    """Say which CUDA card there is, and whether something can compile for it."""
    from tlmd.space.hardware import target as targets

    try:
        target = targets.resolve(CARD)
    except BadInput:
        yield Finding("card", OK, "no CUDA card; jobs are for CPUs")
        return
    name = f"{json.loads(target.spec)['model']} ({target.isa})"
    compiler = next((words for words, there in _compilers() if there), "")
    if compiler:
        yield Finding("card", OK, f"{name}; its programs are compiled with {compiler}")
    else:
        mend = "pip install cuda-bindings, or install nvcc and set TVM_CUDA_COMPILE_MODE=nvcc"
        yield Finding("card", WARN, f"{name}; nothing compiles for it", mend)


def _compilers() -> Iterator[tuple[str, bool]]:
    mode = os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower()
    yield "nvrtc", mode == "nvrtc" and _is_installed("cuda.bindings")
    yield "nvcc", mode == "nvcc" and shutil.which("nvcc") is not None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def disk(context: CheckContext) -> Iterator[Finding]:
    """Check the free disk space, and that the state directory is writable."""
    state = next(
        p for p in (context.state_dir, *context.state_dir.absolute().parents) if p.exists()
    )
    for name, path in (("state disk", state), ("tmp disk", Path(tempfile.gettempdir()))):
        free = context.free_bytes(path)
        status = FAIL if free < _NO_BYTES else WARN if free < _LOW_BYTES else OK
        mend = "" if status == OK else f"free some space on the disk of {path}"
        if name == "state disk" and mend:
            mend += " or use another --state-dir"
        yield Finding(name, status, f"{free / 1e9:.1f} GB free at {path}", mend)
    try:
        with tempfile.NamedTemporaryFile(dir=state) as file:
            file.write(b"tlmd")
            file.flush()
        yield Finding("state dir", OK, f"{context.state_dir} is writable")
    except OSError as error:
        detail = f"cannot write to {state}: {error.strerror}"
        mend = "use another --state-dir or change its permissions"
        yield Finding("state dir", FAIL, detail, mend)
