"""`tlmd tune` from end to end: every kind of model, what is written, and running again."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tlmd
from tests.support import endtoend, small_network
from tlmd.data.units import microseconds
from tlmd.export import untuned_model
from tlmd.records.store import RecordStore

TASK_KEYS = {
    *("name", "weight", "flops", "untuned_us", "best_us"),
    *("trials", "peak_fraction", "verified", "version"),
}
KEYS = {
    *("schema", "model", "target", "checkpoint", "wall_s", "measured", "failed"),
    *("tasks", "e2e"),
}
WHOLE_KEYS = {"untuned_ms", "tuned_ms", "max_abs_err", "functions", "functions_with_record"}
TRIALS = 3


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_tlm")]


@dataclass(frozen=True)
class Run:
    out: Path
    state: Path
    summary: dict[str, Any]
    stderr: str
    before: list[str]
    """What the daemon had measured for others."""


@pytest.fixture(scope="module")
def tuned(daemon: tlmd.Daemon, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of the command, as a user starts it; it hands its job over to the daemon.

    `test_interrupt.py` has the command end with a daemon of its own.
    """
    out, state = tmp_path_factory.mktemp("tuned") / "out", daemon.state_dir
    before = endtoend.candidates(state)
    flags = ("--trials", TRIALS, "--out", out, "--state-dir", state, "--json")
    done = endtoend.run("tune", endtoend.OTHER, *flags)
    assert done.returncode == 0, done.stderr
    return Run(out, state, json.loads(done.stdout), done.stderr, before)


def check(summary: dict[str, Any], trials: int) -> None:
    """A summary has exactly the documented keys, and values that can be true."""
    assert set(summary) == KEYS and summary["schema"] == 1
    assert set(summary["e2e"]) == WHOLE_KEYS
    assert all(set(task) == TASK_KEYS for task in summary["tasks"])
    whole = summary["e2e"]
    assert whole["functions_with_record"] == whole["functions"] >= len(summary["tasks"]) > 2
    assert 0 <= whole["max_abs_err"] < 1e-4
    assert min(whole["tuned_ms"], whole["untuned_ms"]) > 0
    assert summary["measured"] == sum(t["trials"] for t in summary["tasks"])
    for task in summary["tasks"]:
        assert 0 < task["trials"] <= trials and task["verified"]
        assert 0 < task["best_us"] <= task["untuned_us"]


def test_summary(tuned: Run) -> None:
    check(tuned.summary, TRIALS)
    assert json.loads((tuned.out / "summary.json").read_text()) == tuned.summary
    assert tuned.summary["model"] == endtoend.OTHER and tuned.summary["checkpoint"] >= 0
    assert json.loads(tuned.summary["target"])["kind"] == "llvm"
    # How large it may be depends on the moment: small tasks stay in near caches.
    assert all(0 <= t["peak_fraction"] < math.inf for t in tuned.summary["tasks"])
    assert endtoend.OTHER in (tuned.out / "report.html").read_text()


def test_nothing_but_its_own_display_is_shown(tuned: Run) -> None:
    # Progress, now and then, on a machine that is busy.
    assert all(
        line.startswith("tlmd: ") and "measured" in line for line in tuned.stderr.splitlines()
    ), tuned.stderr
    assert f"tune {endtoend.OTHER}" in (tuned.state / "logs" / "tune.log").read_text()


def test_run_py_needs_tvm_and_numpy_only(tuned: Run) -> None:
    block = (
        "import runpy, sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'onnx', 'xgboost', 'tlmd'):\n"
        "            raise ImportError(name + ' is not installed')\n"
        "sys.meta_path.insert(0, Block())\n"
        "runpy.run_path('run.py', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", block]
    done = subprocess.run(command, cwd=tuned.out, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "output 0: shape (1, 5), dtype float32" in done.stdout


def test_the_database_schedules_the_model_in_plain_tvm(tuned: Run) -> None:
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    from tlmd.lowering import lowering
    from tlmd.models import frontends

    target = tvm.target.Target(json.loads(tuned.summary["target"]))
    source = frontends.load_model(endtoend.OTHER)
    lowered = lowering.lower(source.module, target)
    database = ms.database.JSONDatabase(work_dir=str(tuned.out))
    with target, database, tvm.ir.transform.PassContext(opt_level=3):
        scheduled = relax.transform.MetaScheduleApplyDatabase()(lowered)
    functions = [f for f in scheduled.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert functions and all(f.attrs["tirx.is_scheduled"] for f in functions)
    machine = relax.VirtualMachine(tvm.compile(scheduled, target), tvm.cpu())
    inputs = source.random_inputs(5)
    (got,) = machine["main"](*map(tvm.runtime.tensor, inputs))
    assert source.reference is not None
    assert np.abs(got.numpy() - source.reference(*inputs)[0]).max() < 1e-4


def test_records_go_to_a_database_and_come_back(tuned: Run, tmp_path: Path) -> None:
    from tlmd.client.commands import interchange

    database, state = tmp_path / "database", tmp_path / "state"
    state.mkdir()
    written = interchange.export_records(database, tuned.state)
    read = interchange.import_records(database, tuned.summary["target"], 1, state)
    assert read == {**written, "skipped": 0}
    with RecordStore(tuned.state / "records.sqlite", read_only=True) as store:
        tasks = {t.id: t for t in store.tasks()}
        found = [store.best(t.id, t.target.fingerprint) for t in tasks.values()]
    best = [record for record in found if record is not None]
    assert len(tuned.summary["tasks"]) <= len(best) == read["records"]
    with RecordStore(state / "records.sqlite") as store:
        imported = {r.candidate: r for r in store.all_records()}
        read_back = {t.id: t.flops for t in store.tasks()}
    assert len(imported) == len(best)
    # A database does not say which columns of a packed program are only padding.
    plain = [t for t in tasks.values() if t.id in read_back and not t.alternative]
    assert plain and all(read_back[t.id] == t.flops for t in plain)
    for record in best:
        twin = imported[record.candidate]
        assert twin.outcome.seconds == pytest.approx(record.outcome.seconds, rel=1e-6)
        assert (twin.fingerprint, twin.module_hash) == (record.fingerprint, record.module_hash)
        assert not twin.outcome.verified and twin.version == -1
    again = interchange.import_records(database, tuned.summary["target"], 1, state)
    assert again["records"] == read["records"]
    with RecordStore(state / "records.sqlite", read_only=True) as store:
        assert len(store.all_records()) == len(imported)

    interchange.export_records(tmp_path / "all.msgpack.gz", tuned.state)
    counts = interchange.import_records(tmp_path / "all.msgpack.gz", "native", 1, state)
    assert counts["records"] >= tuned.summary["measured"]


def tune(model: object, daemon: tlmd.Daemon, trials: int, **options: Any) -> tlmd.TuneResult:
    """In this process, without measuring the machine's peak once more."""
    with endtoend.known_roofline():
        return tlmd.tune(str(model), state_dir=daemon.state_dir, trials=trials, **options)


def _best_us(name: str, daemon: tlmd.Daemon) -> set[float | None]:
    """The fastest of all records of each task of this name."""
    with RecordStore(daemon.state_dir / "records.sqlite", read_only=True) as store:
        tasks = [task for task in store.tasks() if task.name == name]
        best = [store.best(task.id, task.target.fingerprint) for task in tasks]
    return {microseconds(record.outcome.seconds) for record in best if record is not None}


def test_running_again_continues(tuned: Run, daemon: tlmd.Daemon) -> None:
    def own() -> list[str]:
        return endtoend.candidates(daemon.state_dir)[len(tuned.before) :]

    before = own()
    assert len(before) == tuned.summary["measured"]
    more = tune(endtoend.OTHER, daemon, TRIALS + 1)
    after = own()
    check(more.summary, TRIALS + 1)
    assert more.out is None
    assert after[: len(before)] == before and len(after) > len(before)
    assert len(set(after)) == len(after) == more.summary["measured"]
    # Finalists are timed again, so a best time may be corrected upwards; what was found is kept.
    for task, earlier in zip(more.summary["tasks"], tuned.summary["tasks"], strict=True):
        assert task["trials"] >= earlier["trials"]
        assert all(task[key] == earlier[key] for key in ("weight", "flops", "untuned_us"))
        assert task["best_us"] in {task["untuned_us"], *_best_us(task["name"], daemon)}

    less = daemon.submit(endtoend.OTHER, trials=TRIALS).wait(timeout=120)
    assert less["state"] == "done" and own() == after


def test_an_untuned_model_that_would_run_for_long_is_not_run(
    tuned: Run, daemon: tlmd.Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untuned_model, "_LONGEST_MS", 0.0)
    monkeypatch.setattr(untuned_model.UntunedModel, "library", lambda _: pytest.fail("compiled"))
    job = next(job for job in daemon.jobs() if job["model"] == tuned.summary["model"])
    with endtoend.known_roofline():
        result = daemon.job(job["id"]).export(tmp_path)
    check(result.summary, TRIALS + 1)
    total_us = sum(task["weight"] * task["untuned_us"] for task in result.summary["tasks"])
    assert result.untuned_is_sum
    assert result.summary["e2e"]["untuned_ms"] == pytest.approx(total_us / 1e3, abs=2e-4)
    assert "the sum of its tasks" in (tmp_path / "report.html").read_text()


def test_onnx_file(daemon: tlmd.Daemon, tmp_path: Path) -> None:
    model = small_network.save_onnx(tmp_path / "net.onnx")
    result = tune(model, daemon, 1, out=tmp_path / "out")
    check(result.summary, 1)
    assert result.pytorch_ms is None and (tmp_path / "out" / "model.so").exists()


def test_exported_program(daemon: tlmd.Daemon, tmp_path: Path) -> None:
    result = tune(small_network.save_pt2(tmp_path / "net.pt2"), daemon, 1)
    check(result.summary, 1)
    assert result.pytorch_ms and result.out is None


def test_a_zoo_name_with_two_shapes(daemon: tlmd.Daemon, tmp_path: Path) -> None:
    shapes = [(4, 32), (2, 32)]
    out = tmp_path / "out"
    result = tune("gemm", daemon, 1, input_shape=shapes, time_budget=1.0, out=out)
    assert not result.interrupted
    loaded = tlmd.load(out)
    assert [infos[0].shape for infos in loaded.inputs] == shapes
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_allclose(loaded(x[:2]), loaded(x)[:2], rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="or x"):
        loaded(x[:3])
