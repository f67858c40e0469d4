"""The rules of the house: who imports whom, what loads what, and what crosses a process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"tvm", "torch", "ray", "transformers", "xgboost"}
ALLOWED = {
    "tvm": {"workloads", "space", "measure", "records/metaschedule.py"},
    "torch": {"model", "workloads", "daemon/tune.py", "learn", "actors/trainer.py"},
    "ray": {"actors"},
    "actors": {"actors", "daemon/service.py", "daemon/serve.py"},
}
MAY_IMPORT = {
    "language": set(),
    "space": set(),
    "model": {"language"},
    "generate": {"space", "language", "model"},
    "learn": {"generate", "space", "language", "model", "records"},
    "measure": {"space"},
    "workloads": {"space"},
    "records": {"space"},
    "pipeline": set(),
    "actors": {"generate", "learn", "measure", "model", "pipeline", "space"},
}
SHARED = {"types", "wire", "errors", "config", "children", "ranking"}


def sources() -> list[Path]:
    return sorted([*ROOT.glob("tlmd/**/*.py"), *ROOT.glob("actors/*.py")])


def place(path: Path) -> Path:
    """Where a file is in the house: ``daemon/tune.py``, ``actors/trainer.py``."""
    inside = path.relative_to(ROOT)
    return inside.relative_to("tlmd") if inside.parts[0] == "tlmd" else inside


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    inside = place(path)
    for name in imported(path):
        package = name.split(".")[0].replace("tvm_ffi", "tvm")
        if package in ALLOWED:
            places = ALLOWED[package]
            assert inside.parts[0] in places or str(inside) in places, f"{inside} imports {name}"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_folders_import_only_what_they_may(path: Path) -> None:
    inside = place(path)
    folder = inside.parts[0]
    if folder not in MAY_IMPORT:
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "tlmd" and len(parts) > 1 and parts[1] not in SHARED:
            assert parts[1] in {folder, *MAY_IMPORT[folder]}, f"{inside} imports {name}"


def test_importing_tlmd_and_asking_for_help_load_nothing_heavy() -> None:
    code = (
        "import sys, tlmd, tlmd.cli\n"
        "try: tlmd.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"heavy = {sorted(HEAVY | {'pydantic', 'rich', 'numpy'})!r}\n"
        "loaded = [name for name in heavy if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_folder_says_what_it_is_for() -> None:
    for init in (*ROOT.glob("tlmd/*/__init__.py"), ROOT / "actors" / "__init__.py"):
        docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
        assert len(docstring.splitlines()) >= 3, init


def test_nothing_is_unpickled() -> None:
    for path in sources():
        text = path.read_text()
        assert "import pickle" not in text and "allow_pickle=True" not in text, path
