"""The command line: mistakes are one line on standard error, and the right exit code."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import endtoend
from tlmd import cli

Run = Callable[..., str]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """A command in this process: its exit code and the one line that it prints."""

    def one(*arguments: object, code: int = 2) -> str:
        state = () if "--state-dir" in arguments else ("--state-dir", tmp_path / "state")
        assert cli.main([*map(str, arguments), *map(str, state)]) == code
        printed = capfd.readouterr()
        (line,) = printed.err.splitlines()
        assert line.startswith("tlmd: ") and printed.out == ""
        return line

    return one


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = endtoend.save_checkpoint(tmp_path / "tlm")
    monkeypatch.setenv("TLMD_GENERATE__CHECKPOINT", str(path))


def test_models_that_are_not_there(run: Run, tmp_path: Path) -> None:
    assert "no such file: missing.onnx" in run("tune", "missing.onnx")
    assert "did you mean 'bert-tiny'" in run("tune", "bert-tyny")
    assert "cannot import no_such_module" in run("tune", "no_such_module:make")


def test_damaged_models(run: Run, tmp_path: Path) -> None:
    onnx = tmp_path / "net.onnx"
    onnx.write_bytes(endtoend.save_onnx(onnx).read_bytes()[:500])
    assert "not a valid ONNX model" in run("tune", onnx)
    pt2 = tmp_path / "net.pt2"
    pt2.write_bytes(endtoend.save_pt2(pt2).read_bytes()[:500])
    assert "corrupt" in run("tune", pt2)


def test_a_shape_that_does_not_fit(run: Run) -> None:
    line = run("tune", endtoend.MODEL, "--input-shape", "1,4,8,8")
    assert "cannot run on inputs 1,4,8,8" in line


def test_targets(run: Run) -> None:
    assert "unknown target 'toaster'" in run("tune", "gemm", "--target", "toaster")
    cpu = '{"kind":"llvm","mcpu":"pentium9"}'
    assert "unknown CPU 'pentium9'" in run("tune", "gemm", "--target", cpu)


def test_flags(run: Run) -> None:
    assert "'0' is not a number of at least 1" in run("tune", "gemm", "--trials", "0")
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
    cores = tmp_path / "cores.toml"
    cores.write_text("[measure]\nrun_cores = 4096\n")
    assert "ask for fewer cores" in run("tune", "gemm", "--config", cores)


def test_places_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    assert "cannot write to --out" in run("tune", "gemm", "--out", file)
    assert "cannot use state directory" in run("tune", "gemm", "--state-dir", file / "state")


def test_a_missing_or_damaged_checkpoint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: None
) -> None:
    weights = tmp_path / "tlm" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "model.safetensors" in run("tune", endtoend.MODEL)
    monkeypatch.setenv("TLMD_GENERATE__CHECKPOINT", str(tmp_path / "nowhere"))
    assert "nowhere" in run("tune", endtoend.MODEL)


def test_databases(run: Run, tmp_path: Path) -> None:
    from tlmd.records import metaschedule

    assert "holds no MetaSchedule database" in run("records", "import", tmp_path)
    for name in (metaschedule.WORKLOADS, metaschedule.RECORDS):
        (tmp_path / name).write_text('["half of a li\n')
    assert "line 1 of database_workload.json" in run("records", "import", tmp_path)
    (tmp_path / "set.msgpack").write_bytes(b"\x00\x01")
    assert "is not a tlmd data set" in run("records", "import", tmp_path / "set.msgpack")
    assert "no verified program" in run("records", "export", tmp_path / "out")
    assert "nothing was measured" in run(
        "records", "export", tmp_path / "out", "--state-dir", tmp_path / "other"
    )


def test_a_full_disk(tmp_path: Path, checkpoint: None) -> None:
    """No file may grow beyond 40 KB, which the record store soon does."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = endtoend.run("tune", endtoend.MODEL, "--state-dir", tmp_path / "s", preexec_fn=limit)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("tlmd: cannot "), done.stderr
    assert str(tmp_path / "s") in line and "disk" in line


def test_what_libraries_print_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    code = (
        "import os, pathlib\n"
        "from tlmd.daemon.silence import silenced\n"
        f"with silenced(pathlib.Path({str(log)!r})) as original:\n"
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
