"""What users give that cannot be tuned: models, targets, checkpoints, databases, full disks."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.small_disk import SmallDisk
from tests.support import endtoend, small_network

Run = Callable[..., str]


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = endtoend.save_checkpoint(tmp_path / "tlm")
    monkeypatch.setenv("TLMD_GENERATE__CHECKPOINT", str(path))


def test_more_cores_than_there_are(run: Run, tmp_path: Path) -> None:
    cores = tmp_path / "cores.toml"
    cores.write_text("[measure]\nrun_cores = 4096\n")
    assert "ask for fewer cores" in run("tune", "gemm", "--config", cores)


@pytest.mark.slow
def test_models_that_are_not_there(run: Run, tmp_path: Path) -> None:
    assert "no such file: missing.onnx" in run("tune", "missing.onnx")
    assert "did you mean 'bert-tiny'" in run("tune", "bert-tyny")
    assert "cannot import no_such_module" in run("tune", "no_such_module:make")


@pytest.mark.slow
def test_damaged_models(run: Run, tmp_path: Path) -> None:
    onnx = tmp_path / "net.onnx"
    onnx.write_bytes(small_network.save_onnx(onnx).read_bytes()[:500])
    assert "not a valid ONNX model" in run("check", onnx)
    pt2 = tmp_path / "net.pt2"
    pt2.write_bytes(small_network.save_pt2(pt2).read_bytes()[:500])
    assert "corrupt" in run("check", pt2)


@pytest.mark.slow
def test_a_shape_that_does_not_fit(run: Run) -> None:
    line = run("check", endtoend.MODEL, "--input-shape", "1,4,8,8")
    assert "cannot run on inputs 1,4,8,8" in line


@pytest.mark.slow
def test_targets(run: Run) -> None:
    assert "unknown target 'toaster'" in run("check", "gemm", "--target", "toaster")
    cpu = '{"kind":"llvm","mcpu":"pentium9"}'
    assert "unknown CPU 'pentium9'" in run("check", "gemm", "--target", cpu)


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
    from tlmd.records import metaschedule_files

    assert "holds no MetaSchedule database" in run("records", "import", tmp_path)
    for name in (metaschedule_files.WORKLOADS, metaschedule_files.RECORDS):
        (tmp_path / name).write_text('["half of a li\n')
    assert "line 1 of database_workload.json" in run("records", "import", tmp_path)
    (tmp_path / "set.msgpack").write_bytes(b"\x00\x01")
    assert "is not a tlmd data set" in run("records", "import", tmp_path / "set.msgpack")
    assert "no verified program" in run("records", "export", tmp_path / "out")
    assert "nothing was measured" in run(
        "records", "export", tmp_path / "out", "--state-dir", tmp_path / "other"
    )


@pytest.mark.slow
def test_a_daemon_waits_for_room_on_the_disk(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk")
    try:
        if not disk.is_small:
            pytest.skip("only the system's administrator can make a small file system")
        with disk.filled():
            done = endtoend.run("serve", "--state-dir", disk.folder / "state")
    finally:
        disk.remove()
    (line,) = done.stderr.splitlines()
    assert done.returncode == 75 and "no space left to write to" in line, done.stderr


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, checkpoint: None) -> None:
    """No file may grow beyond 40 KB, which the record store soon does."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = endtoend.run("tune", endtoend.MODEL, "--state-dir", tmp_path / "s", preexec_fn=limit)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("tlmd: cannot "), done.stderr
    assert str(tmp_path / "s") in line and "disk" in line
