"""The parts of `.ci/release` and `.ci/weekly` that read files. Needs the standard library only.

python .ci/parts.py version          the version of tlmd
python .ci/parts.py lowest           constraints for pip: the lowest version of each requirement
python .ci/parts.py first-command    what follows `tlmd` in the README's first command, one a line
python .ci/parts.py notes            what the changelog says of the version that is released
python .ci/parts.py cut DATE         give the unreleased entries of the changelog that version

The changelog has a section ``## [Unreleased]``, then ``## [0.2.0] - 2026-11-29`` and so on. The
kinds in a section are those of Keep a Changelog (``### Added``), after ``### Breaking``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHANGELOG = ROOT / ".github" / "CHANGELOG.md"
UNRELEASED = "Unreleased"
KINDS = ("Breaking", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
TRIALS = "RELEASE_TRIALS"
"""Environment variable: the number of trials of the first command, if fewer are enough."""


def version(source: str) -> str:
    """The version in the text of ``tlmd/version.py``."""
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        sys.exit("tlmd/version.py has no __version__")
    return found[1]


def lowest(project: dict[str, object]) -> list[str]:
    """Constraints with the lowest allowed version of each requirement of the package and its tests.

    `project` is the table of ``pyproject.toml``. A requirement without a lower bound is refused.
    """
    lines: list[str] = [*project["dependencies"], *project["optional-dependencies"]["test"]]  # type: ignore
    found = {}
    for line in lines:
        name, bound = re.match(r"([\w.-]+)", line), re.search(r"[>=]=\s*([\w.]+)", line)
        if name is None or bound is None:
            sys.exit(f"the requirement {line!r} has no lowest version")
        found[name[1]] = bound[1]
    return [f"{name}=={bound}" for name, bound in found.items()]


def first_command(readme: str, trials: str = "") -> list[str]:
    """The arguments of the first `tlmd` command in the first block of the README.

    `trials` takes the place of the value of ``--trials``, if it is not empty.
    """
    block = re.search(r"^```bash\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    commands = re.split(r"&&|;|\n", block[1].replace("\\\n", " ")) if block else []
    for command in commands:
        words = shlex.split(command, comments=True)
        if words and Path(words[0]).name == "tlmd":
            if trials and "--trials" in words:
                words[words.index("--trials") + 1] = trials
            return words[1:]
    sys.exit("the README's first block has no tlmd command")


def sections(changelog: str) -> dict[str, str]:
    """What the changelog says of each version."""
    parts = re.split(r"^## \[?([\w.]+)\]?.*\n", changelog, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def check_kinds(section: str) -> None:
    """Refuse a section of the changelog with another kind than those of `KINDS`."""
    kinds = re.findall(r"^### (.+)$", section, re.MULTILINE)
    for kind in kinds:
        if kind not in KINDS:
            sys.exit(f"the changelog has the kind {kind!r}; there are {', '.join(KINDS)}")
    if KINDS[0] in kinds[1:]:
        sys.exit(f"{KINDS[0]!r} must be the first kind of the changelog's section")


def notes(changelog: str, wanted: str) -> str:
    """What the changelog says of the version `wanted`, which may still be unreleased."""
    found = sections(changelog)
    if found.get(wanted) and found.get(UNRELEASED):
        sys.exit(
            f"the changelog has unreleased entries beside {wanted}; move them, or raise version"
        )
    text = found.get(wanted) or found.get(UNRELEASED) or ""
    if not text:
        sys.exit(f"the changelog has neither a section {wanted} nor unreleased entries")
    check_kinds(text)
    return text


def cut(changelog: str, wanted: str, date: str) -> str:
    """The changelog with the unreleased entries in a section of the version `wanted`."""
    if wanted in sections(changelog):
        return changelog
    heading = rf"^## (\[?){UNRELEASED}(\]?).*\n"
    section = rf"## \g<1>{UNRELEASED}\g<2>\n\n## \g<1>{wanted}\g<2> - {date}\n"
    return re.sub(heading, section, changelog, count=1, flags=re.MULTILINE)


def main(arguments: list[str]) -> None:
    """Do what the docstring of this file says."""
    released = version((ROOT / "tlmd" / "version.py").read_text())
    match arguments:
        case ["version"]:
            print(released)
        case ["lowest"]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            print("\n".join(lowest(project)))
        case ["first-command"]:
            readme = (ROOT / "README.md").read_text()
            print("\n".join(first_command(readme, os.environ.get(TRIALS, ""))))
        case ["notes"]:
            print(notes(CHANGELOG.read_text(), released))
        case ["cut", date]:
            CHANGELOG.write_text(cut(CHANGELOG.read_text(), released, date))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
