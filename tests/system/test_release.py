"""Releases: one version, the README's first command, the changelog, the lowest versions."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import tlmd
from tests.support.endtoend import ROOT
from tlmd.version import __version__

CHANGELOG = """# Changelog

## [Unreleased]

### Breaking

- a key

### Added

- a command

## [0.1.0] - 2026-10-01

- the first version
"""


def load_parts() -> ModuleType:
    """The module of `.ci`, which is no package."""
    spec = importlib.util.spec_from_file_location("parts", ROOT / ".ci" / "parts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


parts = load_parts()


def test_the_version_stands_in_one_place() -> None:
    assert parts.version((ROOT / "tlmd" / "version.py").read_text()) == __version__
    assert tlmd.__version__ == __version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project and project["dynamic"] == ["version"]


def test_the_first_command_is_read_out_of_the_readme() -> None:
    assert parts.first_command((ROOT / "README.md").read_text())[0] == "tune"
    commands = "pip install . && \\\n  .venv/bin/tlmd tune m --trials 16\ntlmd later"
    readme = f"```text\ntlmd no\n```\n```bash\n{commands}\n```\n"
    assert parts.first_command(readme) == ["tune", "m", "--trials", "16"]
    assert parts.first_command(readme, "2") == ["tune", "m", "--trials", "2"]
    with pytest.raises(SystemExit, match="no tlmd command"):
        parts.first_command("nothing")


def test_unreleased_entries_become_those_of_the_version() -> None:
    text = parts.cut(CHANGELOG, "0.2.0", "2026-11-29")
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-11-29\n\n### Breaking" in text
    assert parts.sections(text)["Unreleased"] == ""
    assert parts.notes(text, "0.2.0") == parts.notes(CHANGELOG, "0.2.0")
    assert parts.cut(text, "0.2.0", "2027-01-01") == text, "it has its section already"
    assert parts.sections(text)["0.1.0"] == "- the first version"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("### Added", "### New", "kind 'New'"),
        ("### Added", "### Breaking", "must be the first"),
        ("[0.1.0]", "[0.2.0]", "unreleased entries beside 0.2.0"),
        (CHANGELOG, "# Changelog\n", "neither"),
    ],
)
def test_a_changelog_that_cannot_be_released(old: str, new: str, says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        parts.notes(CHANGELOG.replace(old, new), "0.2.0")


def test_the_kinds_of_the_changelog() -> None:
    for section in parts.sections(parts.CHANGELOG.read_text()).values():
        parts.check_kinds(section)


def test_each_requirement_has_a_lowest_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = parts.lowest(project)
    required = {*project["dependencies"], *project["optional-dependencies"]["test"]}
    assert len(lines) == len(required) and all("==" in line for line in lines)
    with pytest.raises(SystemExit, match="'rich'"):
        parts.lowest({"dependencies": ["rich"], "optional-dependencies": {"test": []}})


@pytest.mark.parametrize("change", ["a file", "a tag"])
def test_no_release_of_what_is_not_committed_or_released_already(
    tmp_path: Path, change: str
) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tlmd").mkdir()
    for name in (".ci/release", ".ci/parts.py", "tlmd/version.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    user = {
        f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = {
        **os.environ,
        **user,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, env=environment, check=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    if change == "a file":
        (tmp_path / "new").touch()
    else:
        git("tag", f"v{__version__}")
    command = ["bash", str(tmp_path / ".ci" / "release"), "--dry-run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    expected = "the tree has changes" if change == "a file" else f"v{__version__} exists"
    assert expected in done.stderr
