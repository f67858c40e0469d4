"""Old configuration keys: one warning each, with the new key and the version that drops the old."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from tests.support import endtoend
from tlmd.data import config, config_file
from tlmd.data.config_file import REMOVED_IN, RENAMED
from tlmd.version import __version__

VALUES = {"measure.build_on_run_cores": False, "registry.tolerated_order": 0.25}


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    """A process says each warning once; here each test is to see it."""
    config_file._warn.cache_clear()
    yield
    config_file._warn.cache_clear()


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_key_works_and_gives_one_warning(old: str, caplog: pytest.LogCaptureFixture) -> None:
    value = VALUES.get(RENAMED[old], 4)
    for _ in range(2):
        read = config.load(flags={old: value}, environment={})
    section, _, key = RENAMED[old].partition(".")
    assert getattr(getattr(read, section), key) == value
    (line,) = caplog.messages
    assert repr(old) in line and repr(RENAMED[old]) in line and f"tlmd {REMOVED_IN}" in line


def test_new_keys_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    config.load(flags={"pipeline.per_task": 4, "generate.oversample": 4}, environment={})
    assert caplog.messages == []


def test_a_command_prints_one_line_for_each_old_key(tmp_path: Path) -> None:
    file = tmp_path / "tlmd.toml"
    file.write_text("[generate]\nover = 4\n[pipeline]\nturn = 5\n[tune]\ntrials = 0\n")
    command = endtoend.command("tune", "gemm", "--config", file, "--state-dir", tmp_path)
    done = subprocess.run(command, cwd=endtoend.ROOT, capture_output=True, text=True, check=False)
    first, second, error = done.stderr.splitlines()
    assert "'generate.over'" in first and "'pipeline.turn'" in second
    assert error.startswith("tlmd: configuration key 'tune.trials'") and done.returncode == 2


def test_the_old_keys_go_with_the_version_that_the_warning_names() -> None:
    assert not RENAMED or Version(__version__) < Version(REMOVED_IN)
