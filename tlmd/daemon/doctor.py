"""`tlmd doctor`: check this machine and say how to mend what is wrong.

Everything heavy is imported inside the check that needs it, so that a broken installation is a
finding and not a traceback.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tlmd.config import Config
from tlmd.daemon.state import default_state_dir
from tlmd.errors import TlmdError

OK, WARN, FAIL = "ok", "warn", "fail"

# Always shown; other requirements only where something is wrong with them.
_SHOWN = ("apache-tvm", "apache-tvm-ffi", "torch", "transformers", "xgboost-cpu")
_ALTERNATIVES = {"xgboost-cpu": "xgboost"}  # the same module from another package
_LINKERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")  # as TVM looks for one
_LOW_BYTES, _NO_BYTES = 2_000_000_000, 200_000_000
_QUIET, _NOISY = 0.05, 0.20  # coefficient of variation
_SYSFS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Check:
    """One finding; ``status`` is ok, warn or fail, ``mend`` what to do, empty if nothing is."""

    check: str
    status: str
    detail: str
    mend: str = ""


def requirements() -> tuple[str, list[str]]:
    """Python versions and packages that tlmd asks for: of the installation, else of the source."""
    try:
        found = importlib.metadata.metadata("tlmd")
        return found["Requires-Python"] or "", importlib.metadata.requires("tlmd") or []
    except importlib.metadata.PackageNotFoundError:
        source = Path(__file__).parents[2] / "pyproject.toml"
        project = tomllib.loads(source.read_text())["project"]
        return project["requires-python"], project["dependencies"]


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class Patient:
    """What is examined; tests replace the ways to look at it."""

    state_dir: Path
    config: Config
    version: Callable[[str], str] = importlib.metadata.version
    requirements: Callable[[], tuple[str, list[str]]] = requirements
    free_bytes: Callable[[Path], int] = _free_bytes
    which: Callable[[str], str | None] = shutil.which

    def slot(self) -> tuple[Any, Any]:
        """Core layout and target, as `tlmd tune` would use them."""
        from tlmd.measure.cores import plan_cores
        from tlmd.space.target import resolve

        cores = plan_cores(run=self.config.measure.run_cores or None)
        return cores, resolve("native", len(cores.run))


Examination = Callable[[Patient], Iterator[Check]]


def run(state_dir: Path | None, config: Config, as_json: bool) -> int:
    """Check everything and print it (about 20 s); 0 if nothing failed, else 1."""
    warnings.filterwarnings("ignore")
    patient = Patient(state_dir or default_state_dir(), config)
    checks = []
    for check in examine(patient):
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    return 1 if any(check.status == FAIL for check in checks) else 0


def examine(
    patient: Patient, examinations: dict[str, Examination] | None = None
) -> Iterator[Check]:
    """All findings, each as soon as it is known; an examination that fails is one itself."""
    for name, examination in (examinations or EXAMINATIONS).items():
        try:
            yield from examination(patient)
        except TlmdError as error:  # these name the mend themselves
            yield Check(name, FAIL, str(error))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            yield Check(name, FAIL, f"{type(error).__name__}: {reason}")


def _print(check: Check) -> None:
    from rich.console import Console
    from rich.markup import escape

    colour = {OK: "green", WARN: "yellow", FAIL: "red"}[check.status]
    mend = f"\n{'':22}mend: {escape(check.mend)}" if check.mend else ""
    line = f"[{colour}]{check.status:4}[/]  {check.check:16}{escape(check.detail)}{mend}"
    Console(highlight=False, soft_wrap=True).print(line)


def versions(patient: Patient) -> Iterator[Check]:
    """Python and every requirement."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python, lines = patient.requirements()
    here = platform.python_version()
    fits = SpecifierSet(python).contains(here, prereleases=True)
    mend = "" if fits else f"use a Python that is {python}"
    yield Check("python", OK if fits else FAIL, here, mend)
    wanted = [Requirement(line) for line in lines]
    needed = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in needed:
        check = _version(patient, requirement.name, requirement.specifier)
        if check.status != OK or requirement.name in _SHOWN:
            yield check
    ray = next((r.specifier for r in wanted if r.name == "ray"), SpecifierSet())
    if "ray" not in {r.name for r in needed} and _installed(patient, "ray"):
        yield _version(patient, "ray", ray)


def _version(patient: Patient, name: str, allowed: Any) -> Check:
    version = _installed(patient, name) or _installed(patient, _ALTERNATIVES.get(name, name))
    if version and allowed.contains(version, prereleases=True):
        return Check(name, OK, version)
    detail = f"{version or 'not installed'}; {allowed or 'any version'} is needed"
    return Check(name, FAIL, detail, f"pip install '{name}{allowed}'")


def _installed(patient: Patient, name: str) -> str | None:
    try:
        return patient.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def linker(patient: Patient) -> Iterator[Check]:
    """What links ``model.so``."""
    found = next((path for name in _LINKERS if (path := patient.which(name))), None)
    if found:
        yield Check("linker", OK, found)
    else:
        mend = "install a C++ compiler, for example: apt install g++"
        yield Check("linker", FAIL, "neither gcc nor clang found; model.so needs one", mend)


def processor(patient: Patient) -> Iterator[Check]:
    """The CPU, the cores that time and the governor of their clock."""
    from tlmd.space import target as targets

    cores, target = patient.slot()
    yield Check("cpu", OK, f"{targets.cpu_model()}: {target.isa}, {target.vector_bits}-bit vectors")
    threads = len(os.sched_getaffinity(0))
    smt = _read(_SYSFS / "smt/active")
    siblings = {"1": "on", "0": "off"}.get(smt, "unknown")
    detail = (
        f"{threads} usable, SMT {siblings}; timing on {_listed(cores.run)}, "
        f"building on {_listed(cores.build)}"
    )
    mend = "give tlmd a second core, else building and timing take turns" if cores.shared else ""
    yield Check("cores", WARN if cores.shared else OK, detail, mend)
    governors = {_read(_SYSFS / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in cores.run} - {""}
    if governors <= {"performance"}:
        yield Check("governor", OK, ", ".join(governors) or "not told by this system")
    else:
        mend = "cpupower frequency-set -g performance"
        yield Check("governor", WARN, f"{', '.join(sorted(governors))}: times depend on load", mend)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _listed(cores: tuple[int, ...]) -> str:
    return ("core " if len(cores) == 1 else "cores ") + ",".join(map(str, cores))


def noise(patient: Patient) -> Iterator[Check]:
    """How far two timings of the same program differ."""
    from tlmd.measure import peak

    cores, target = patient.slot()
    found = peak.noise(target, cores.run)
    share = found.variation
    verdict = "quiet" if share < _QUIET else "usable" if share < _NOISY else "too noisy to tune on"
    detail = f"timings vary by {share:.1%} ({verdict}), caches are crowded {found.crowded:.0%}"
    detail += " of the time"
    if share < _QUIET:
        yield Check("noise", OK, detail)
    else:
        yield Check("noise", WARN, detail, f"stop other programs on {_listed(cores.run)}")


def speed(patient: Patient) -> Iterator[Check]:
    """What the run cores can do at most."""
    from tlmd.measure.peak import roof

    cores, target = patient.slot()
    limits = roof(target, cores.run)
    where = _listed(cores.run)
    peaks = ", ".join(f"{dtype} {speed:.0f}" for dtype, speed in limits.gflops.items())
    yield Check("peak", OK, f"1e9 multiply-add operations per second on {where}: {peaks}")
    caches = [f"{speed:.0f} from {size >> 20} MiB" for size, speed in limits.bandwidth[:-1]]
    speeds = ", ".join([f"{limits.memory_gb_s:.1f} from memory", *caches])
    yield Check("memory", OK, f"GB/s on {where}: {speeds}")


def disk(patient: Patient) -> Iterator[Check]:
    """Space for records and for what is compiled, and the right to write."""
    state = next(
        p for p in (patient.state_dir, *patient.state_dir.absolute().parents) if p.exists()
    )
    for name, path in (("state disk", state), ("tmp disk", Path(tempfile.gettempdir()))):
        free = patient.free_bytes(path)
        status = FAIL if free < _NO_BYTES else WARN if free < _LOW_BYTES else OK
        mend = "" if status == OK else f"free some space on the disk of {path}"
        if name == "state disk" and mend:
            mend += " or use another --state-dir"
        yield Check(name, status, f"{free / 1e9:.1f} GB free at {path}", mend)
    try:
        with tempfile.NamedTemporaryFile(dir=state) as file:
            file.write(b"tlmd")
            file.flush()
        yield Check("state dir", OK, f"{patient.state_dir} is writable")
    except OSError as error:
        detail = f"cannot write to {state}: {error.strerror}"
        yield Check("state dir", FAIL, detail, "use another --state-dir or mend its permissions")


def checkpoint(patient: Patient) -> Iterator[Check]:
    """The TLM that would be used: it loads, and speaks this vocabulary."""
    from tlmd.config import SHIPPED
    from tlmd.model import checkpoint as checkpoints
    from tlmd.model import network

    configured = patient.config.generate.checkpoint
    source = Path(configured) if configured else SHIPPED
    try:
        found = checkpoints.load(source)
    except Exception as error:
        mend = "reinstall tlmd, or make a checkpoint with 'python -m tlmd.learn.pretrain'"
        if configured:
            mend = "correct generate.checkpoint in the configuration"
        yield Check("checkpoint", FAIL, " ".join(str(error).split())[:200], mend)
        return
    size = network.parameters(found.model)
    detail = f"{found.preset}, version {found.version}, {size / 1e6:.1f}M parameters"
    if found.ranker.trained:
        yield Check("checkpoint", OK, detail)
    else:
        mend = "train it: 'python -m tlmd.learn.pretrain'"
        yield Check("checkpoint", WARN, f"{detail}, ranker not trained", mend)


EXAMINATIONS: dict[str, Examination] = {
    "versions": versions,
    "linker": linker,
    "processor": processor,
    "disk": disk,
    "checkpoint": checkpoint,
    "noise": noise,
    "speed": speed,
}
