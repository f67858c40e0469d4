"""The doctor with simulated illnesses: wrong versions, a full disk, checks that crash."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm

from tlmd.client.commands import doctor, installation_checks, machine_checks
from tlmd.client.commands.findings import CheckContext, Finding, MachineCheck, requirements
from tlmd.data.config import Config
from tlmd.data.errors import Failed
from tlmd.space.hardware.target import resolve

CONFIG = Config()
WANTED = [
    "apache-tvm-ffi==0.1.14.post1 # pinned",
    "torch>=2.9,<2.14",
    "xgboost-cpu>=3,<4",
    "rich>=14",
]
GOOD = {"apache-tvm-ffi": "0.1.14.post1", "torch": "2.13.0+cpu", "xgboost": "3.1", "rich": "15"}


def context(
    state_dir: Path = Path("/tmp"), installed: dict[str, str] | None = None, free: int = 10**10
) -> CheckContext:
    versions = GOOD if installed is None else installed

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    wanted = [line.partition(" #")[0] for line in WANTED]
    wanted.append("onnx>=1.19; extra == 'onnx'")
    return CheckContext(
        state_dir,
        CONFIG,
        version,
        lambda: (">=3.11", wanted),
        lambda path: free,
        lambda name: "/usr/bin/gcc" if name == "gcc" else None,
    )


def by_name(checks: Iterator[Finding]) -> dict[str, Finding]:
    return {check.check: check for check in checks}


def test_right_versions_pass_and_only_the_main_ones_are_listed() -> None:
    found = by_name(installation_checks.versions(context()))
    assert {check.status for check in found.values()} == {"ok"}
    assert set(found) == {"python", "apache-tvm-ffi", "torch", "xgboost-cpu"}
    assert found["xgboost-cpu"].detail == "3.1"  # the full package serves as well


@pytest.mark.parametrize(
    ("name", "version", "mend"),
    [
        ("apache-tvm-ffi", "0.1.15.post2", "pip install 'apache-tvm-ffi==0.1.14.post1'"),
        ("torch", "2.14.1", "pip install 'torch<2.14,>=2.9'"),
        ("rich", "13.0", "pip install 'rich>=14'"),
        ("rich", None, "pip install 'rich>=14'"),
    ],
)
def test_wrong_version_names_the_mend(name: str, version: str | None, mend: str) -> None:
    installed = {k: v for k, v in GOOD.items() if k != name}
    if version:
        installed[name] = version
    found = by_name(installation_checks.versions(context(installed=installed)))
    assert (found[name].status, found[name].mend) == ("fail", mend)
    assert sum(check.status == "fail" for check in found.values()) == 1


@pytest.mark.parametrize("compiles", [True, False])
def test_a_card_needs_something_that_compiles_for_it(
    compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(
        exist=True,
        compute_version="9.0",
        device_name="a card",
        max_shared_memory_per_block=49152,
        max_threads_per_block=1024,
        warp_size=32,
        l2_cache_size_bytes=50 << 20,
    )
    monkeypatch.setattr(tvm, "cuda", lambda _: card)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if compiles else None)
    found = by_name(machine_checks.card(context()))["card"]
    assert found.detail.startswith("a card (sm_90); ")
    assert (found.status, bool(found.mend)) == (("ok", False) if compiles else ("warn", True))
    info = resolve("cuda")
    assert (info.device, info.isa, info.l2_bytes) == ("cuda", "sm_90", 50 << 20)
    card.exist = False
    assert "no CUDA card" in by_name(machine_checks.card(context()))["card"].detail


def test_ray_is_looked_at_only_where_it_is_installed() -> None:
    assert "ray" not in by_name(installation_checks.versions(context()))
    found = by_name(installation_checks.versions(context(installed={**GOOD, "ray": "2.60.0"})))
    assert found["ray"] == Finding("ray", "ok", "2.60.0")


def test_a_torchvision_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", fail)
    assert not list(installation_checks.torchvision(context()))
    installed = {**GOOD, "torchvision": "0.28.0"}
    (found,) = installation_checks.torchvision(context(installed=installed))
    assert found.status == "fail" and "nms" in found.detail and "uninstall" in found.mend


def test_requirements_of_this_installation_name_the_pinned_ffi() -> None:
    python, lines = requirements()
    assert "3.11" in python
    assert any(line.startswith("apache-tvm-ffi==") for line in lines)


@pytest.mark.parametrize(("free", "status"), [(10**8, "fail"), (10**9, "warn"), (10**10, "ok")])
def test_disk_space(free: int, status: str, tmp_path: Path) -> None:
    found = by_name(machine_checks.disk(context(tmp_path / "not" / "made", free=free)))
    assert found["state disk"].status == found["tmp disk"].status == status
    assert bool(found["state disk"].mend) == (status != "ok")
    assert found["state dir"].status == "ok"
    assert not (tmp_path / "not").exists()


def test_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    found = by_name(machine_checks.disk(context(tmp_path / "state")))
    assert found["state dir"].status == "fail"
    assert "--state-dir" in found["state dir"].mend


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_read_only_state_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert by_name(machine_checks.disk(context(tmp_path)))["state dir"].status == "fail"


def test_linker() -> None:
    assert by_name(installation_checks.linker(context()))["linker"].detail == "/usr/bin/gcc"
    missing = CheckContext(Path("/tmp"), CONFIG, which=lambda name: None)
    assert by_name(installation_checks.linker(missing))["linker"].status == "fail"


def test_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    config = Config.model_validate({"generate": {"checkpoint": str(tmp_path)}})
    found = by_name(installation_checks.checkpoint(CheckContext(tmp_path, config)))
    assert found["checkpoint"].status == "fail"
    assert "generate.checkpoint" in found["checkpoint"].mend


def test_a_check_that_crashes_is_a_finding_and_the_rest_goes_on() -> None:
    def crash(_: CheckContext) -> Iterator[Finding]:
        yield Finding("first", "ok", "")
        raise ZeroDivisionError("oops")

    def refuse(_: CheckContext) -> Iterator[Finding]:
        raise Failed("measuring failed; stop the other program")
        yield

    checks = doctor.run_checks(context(), {"a": crash, "b": refuse, "disk": machine_checks.disk})
    found = by_name(checks)
    assert found["first"].status == "ok"
    assert found["a"].detail == "ZeroDivisionError: oops"
    assert found["b"].detail == "measuring failed; stop the other program"
    assert found["state dir"].status == "ok"


@pytest.mark.parametrize("as_json", [True, False])
def test_output_and_exit_code(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def one(status: str) -> MachineCheck:
        return lambda _: iter([Finding("thing", status, "is [bold]so", "turn it off")])

    for status, code in (("ok", 0), ("warn", 0), ("fail", 1)):
        monkeypatch.setattr(doctor, "CHECKS", {"thing": one(status)})
        assert doctor.run(tmp_path, CONFIG, as_json) == code
        out = capsys.readouterr().out
        if as_json:
            wanted = {"check": "thing", "detail": "is [bold]so", "mend": "turn it off"}
            assert json.loads(out) == [{**wanted, "status": status}]
        else:
            assert out.split()[:2] == [status, "thing"]
            assert "is [bold]so" in out
            assert "mend: turn it off" in out
