"""The rules of the layout: who imports whom, what loads what, what is named how."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

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
    *("errors", "cli", "guide"),
)
# Rooms whose only imports of tlmd are `data` and `processes`.
ALONE = {"data", "processes", "language", "pipeline", "models"}
APART = {("client", "daemon"), ("client", "actors"), ("integrations", "daemon")}

# Folders and files of tests whose subjects load nothing heavy.
LIGHT_TESTS = (
    *("language", "pipeline", "records/test_store*", "data/test_[csw]*", "client/test_cli"),
    *("actors/test_cluster_yaml", "daemon/test_metrics", "test_layout"),
)
_MOST_FILES, _MOST_LINES, _SHORT = 20, 2_700, 30
# Files of less than 30 lines, and the reason of each to be a file.
SHORT_FILES = {
    "tlmd/version.py": "a release changes it, and nothing else",
    "tlmd/errors.py": "the errors that users catch",
    "tlmd/data/units.py": "units of documents and reports",
    "tlmd/processes/wall_clock.py": "the time of day of records",
    "tlmd/space/cache.py": "how many spaces are kept",
    "tlmd/space/gpu_default.py": "what a card runs where nothing was searched",
    "tlmd/space/task_module.py": "how the TVM module of a task is read",
    "tlmd/space/tvm_alone.py": "how TVM is imported without torch",
    "tlmd/generate/history.py": "what a generator must not write again",
    "tlmd/client/tune_request.py": "what one run of `tlmd tune` is asked to do",
    "tlmd/guide/__main__.py": "`python -m tlmd.guide`",
    "tlmd/alternatives/named_intrinsics.py": "intrinsics that a text names",
}
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


def test_no_class_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in sources():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def sizes() -> dict[str, list[int]]:
    """The lengths of the files of each folder of Python files."""
    lengths: dict[str, list[int]] = {}
    for folder in ("tlmd", "actors", "benchmarks", "tests"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            lines = len(path.read_text().splitlines())
            lengths.setdefault(str(path.parent.relative_to(ROOT)), []).append(lines)
    return lengths


def test_no_folder_is_too_large_to_be_known() -> None:
    found = sizes()
    assert {name: len(files) for name, files in found.items() if len(files) > _MOST_FILES} == {}
    assert {name: sum(files) for name, files in found.items() if sum(files) > _MOST_LINES} == {}


def test_a_short_file_has_a_reason_of_its_own_to_change() -> None:
    short = {
        str(path.relative_to(ROOT))
        for path in sources()
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < _SHORT
    }
    assert short == set(SHORT_FILES)


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
