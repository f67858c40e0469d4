"""The rules of the layout: who imports whom, what loads what, what is named how."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"tvm", "torch", "ray", "transformers", "xgboost"}
# Who may import a heavy package (and the daemon its actors): rooms, or single files.
ALLOWED = {
    "tvm": {
        *("models", "lowering", "alternatives", "space", "measure", "export", "integrations"),
        *("corpus", "records/metaschedule_files.py"),
    },
    "torch": {"models", "tlm", "learn", "export", "integrations", "corpus"},
    # It takes seconds, which each actor would pay when it starts.
    "transformers": {"models"},
    "ray": {"actors"},
    "actors": {"actors", "daemon/service.py", "daemon/serve.py"},
}

# The rooms from the bottom to the top. A room imports only what stands before it.
ORDER = (
    *("version", "data", "processes", "language", "pipeline", "alternatives", "space"),
    *("tlm", "generate", "models", "measure", "records", "learn", "lowering"),
    *("corpus", "export", "actors", "daemon", "client", "integrations", "api", "__init__"),
    *("cli", "guide"),
)
# Rooms whose only imports of tlmd are `data` and `processes`.
ALONE = {"data", "processes", "language", "pipeline", "models"}
APART = {("client", "daemon"), ("client", "actors"), ("integrations", "daemon")}

# Folders and files of tests whose subjects load nothing heavy.
LIGHT_TESTS = (
    *("language", "pipeline", "records/test_store*", "data/test_[csw]*", "client/test_cli"),
    *("actors/test_cluster_yaml", "daemon/test_metrics", "test_layout"),
)
PICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
TORCH_LOADS = {"torch.load", "torch.serialization.load"}
NUMPY_LOADS = {"numpy.load", "numpy.lib.npyio.load"}
IMPORTERS = {"__import__", "importlib.import_module"}

# Names that classes, functions and modules had once.
OLD_NAMES = re.compile(
    r"\b(?:SlotKind|Crew|Board|JobBook|Ranker|Gauge|Attempt|Workplace|Verdict|Roof|Patience|Question"
    r"|Exam|Lesson|Turn|RaceOrder|Intaker?|FinePlan|_hear|_bury|silence\.py|book\.py|daemon\.(?:silence|book|intake|delivery))\b"
)
OLD_WORDS = re.compile(
    r"\b(?:crews?|board|rankers?|gauge|lend|lends|lent|bonds?|hurried|barren|the house|intake"
    r"|delivery|lessons?|raced|exams?|bury|buries|roof)\b",
    re.IGNORECASE,
)
ALLOWED_WORDS = {
    "tlmd/data/config_file.py": {"lend"},  # RENAMED: keys of 0.1
    "tests/data/test_config.py": {"lend"},
    "actors/ray_metrics.py": {"Gauge", "gauge"},  # a class of Ray
    "benchmarks/daemon/pipeline.md": {"lessons"},  # a key of older figures
    # the name of a file of every checkpoint
    "tlmd/tlm/checkpoint.py": {"ranker"},
    "tests/support/fake_checkpoints.py": {"ranker"},
    "tests/data/test_fuzz_settings.py": {"ranker"},
    "tests/tlm/test_tlm.py": {"ranker"},
}


def sources() -> list[Path]:
    return sorted([*ROOT.glob("tlmd/**/*.py"), *ROOT.glob("actors/*.py")])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def place(path: Path) -> Path:
    """The place of a file in the layout: ``client/tune.py``, ``actors/trainer.py``."""
    inside = path.relative_to(ROOT)
    return inside.relative_to("tlmd") if inside.parts[0] == "tlmd" else inside


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_heavy_packages_stay_where_they_belong() -> None:
    wrong = []
    for path in sources():
        inside = place(path)
        for name in imported(path):
            package = name.split(".")[0].replace("tvm_ffi", "tvm")
            places = ALLOWED.get(package, {inside.parts[0]})
            if inside.parts[0] not in places and str(inside) not in places:
                wrong.append(f"{inside} imports {name}")
    assert wrong == []


def room_of(name: str) -> str | None:
    """The room of a module of tlmd: ``tlmd.client.tune`` is in ``client``."""
    first, _, rest = name.partition(".")
    if first == "actors":
        return "actors"
    inside = rest.partition(".")[0]
    return inside if first == "tlmd" and inside in ORDER else None


def arrows() -> set[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second."""
    found = set()
    for path in sources():
        inside = place(path)
        here = inside.parts[0].removesuffix(".py")
        found |= {(here, there) for name in imported(path) if (there := room_of(name))}
    return {(here, there) for here, there in found if here != there}


def test_no_room_imports_upwards() -> None:
    rooms = {place(path).parts[0].removesuffix(".py") for path in sources()}
    assert rooms <= set(ORDER)
    assert [a for a in arrows() if ORDER.index(a[1]) > ORDER.index(a[0])] == []
    allowed = {"version", "data", "processes"}
    assert [
        (here, there) for here, there in arrows() if here in ALONE and there not in allowed
    ] == []
    assert arrows() & APART == set()


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
    for init in (*ROOT.glob("tlmd/*/**/__init__.py"), ROOT / "actors" / "__init__.py"):
        docstring = ast.get_docstring(parsed(init)) or ""
        assert len(docstring.splitlines()) >= 3, init


def test_tests_of_light_parts_load_nothing_heavy() -> None:
    names = [name if "test_" in name else f"{name}/test_*" for name in LIGHT_TESTS]
    files = [[*ROOT.glob(f"tests/{name}.py")] for name in names]
    assert all(files)
    inside = [file.relative_to(ROOT / "tests").with_suffix("") for some in files for file in some]
    light = ["conftest", *(".".join(file.parts) for file in inside)]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module('tests.' + name)\n"
        f"loaded = [name for name in {sorted(HEAVY)!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


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


def test_no_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in sources():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_file_is_longer_than_300_lines() -> None:
    folders = ("tlmd", "actors", "benchmarks", "tests")
    files = [*ROOT.glob("*.py"), *(f for d in folders for f in ROOT.glob(f"{d}/**/*.py"))]
    lengths = {str(f.relative_to(ROOT)): len(f.read_text().splitlines()) for f in files}
    assert {name: count for name, count in lengths.items() if count > 300} == {}


def texts() -> list[Path]:
    """Everything that is written for people: programs, pages, documents, workflows."""
    folders = ("tlmd", "actors", "benchmarks", "tests", ".github")
    kinds = {".py", ".html", ".md", ".toml", ".yaml", ".yml"}
    inside = [f for d in folders for f in ROOT.glob(f"{d}/**/*") if f.suffix in kinds]
    return sorted([ROOT / "README.md", *inside])


def test_old_words_do_not_come_back() -> None:
    found: dict[str, set[str]] = {}
    for path in texts():
        inside = str(path.relative_to(ROOT))
        text = path.read_text()
        words = {*OLD_NAMES.findall(text), *map(str.lower, OLD_WORDS.findall(text))}
        words -= ALLOWED_WORDS.get(inside, set())
        if words and inside != "tests/test_layout.py":
            found[inside] = words
    assert found == {}
