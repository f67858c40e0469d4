"""The command line: mistakes are one line on standard error, and the right exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import endtoend

Run = Callable[..., str]


def test_flags(run: Run) -> None:
    assert "'x' is not a whole number" in run("tune", "gemm", "--trials", "x")
    assert "'x' is not a shape" in run("tune", "gemm", "--input-shape", "x")
    assert "'soon' is not a time" in run("tune", "gemm", "--time-budget", "soon")
    assert "--frobnicate" in run("tune", "gemm", "--frobnicate")
    assert "required: MODEL" in run("tune")
    assert "invalid choice: 'tuna'" in run("tuna")


def test_configuration(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tlmd.toml"
    file.write_text("[tune]\ntrails = 3\n")
    assert "did you mean 'tune.trials'" in run("tune", "gemm", "--config", file)
    assert "cannot read the configuration" in run("tune", "gemm", "--config", "none.toml")


def test_what_libraries_print_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    code = (
        "import os, pathlib\n"
        "from tlmd.client.display.output_capture import captured_output\n"
        f"with captured_output(pathlib.Path({str(log)!r})) as original:\n"
        "    os.write(1, b'from C, out\\n'); os.write(2, b'from C, error\\n')\n"
        "    print('from Python'); print('from tlmd', file=original)\n"
        "    raise ValueError('a bug')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=endtoend.ROOT)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("from tlmd\nTraceback")
    assert "ValueError: a bug" in done.stderr and str(log) in done.stderr
    text = log.read_text()
    assert all(f"from {what}" in text for what in ("C, out", "C, error", "Python"))
