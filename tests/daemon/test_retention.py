"""What a daemon keeps of the past: jobs, files of tasks, logs, its trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipeline_run import Run
from tests.support.simulated import SimulatedWorkerPool, options, task
from tlmd.daemon.event_log import EventLog
from tlmd.daemon.extraction_requests import ExtractionRequests
from tlmd.daemon.job_archive import JobArchive
from tlmd.daemon.job_documents import make_spec
from tlmd.daemon.job_manager import JobManager
from tlmd.daemon.log_files import bound_logs
from tlmd.data import wire
from tlmd.data.config import CheckConfig
from tlmd.data.errors import BadInput
from tlmd.data.types import JobState
from tlmd.pipeline.tuning_jobs import TuningJob
from tlmd.records import job_specs
from tlmd.records.store import RecordStore
from tlmd.records.task_file import save_tasks


class Jobs:
    """A job manager on a store and a pipeline with simulated workers."""

    def __init__(self, state_dir: Path, keep: int = 1000) -> None:
        self.state_dir = state_dir
        self.store = RecordStore(state_dir / "records.sqlite")
        self.run = Run(options(batch=8, per_task=4, train=False), SimulatedWorkerPool({"a": 900}))
        self.archive = JobArchive(state_dir, self.store, keep)
        self.log = EventLog(state_dir / "trace.jsonl")
        call: Any = lambda function: function()  # noqa: E731
        requests = ExtractionRequests(state_dir, 1, lambda: ([], None), True, lambda: False)
        self.manager = JobManager(self.archive, self.log, call, requests, CheckConfig())
        self.manager.attach(self.run.pipeline)

    def submit(self, trials: int) -> str:
        """A job whose model is lowered already."""
        spec = make_spec({"model": "m", "trials": trials})
        path = self.state_dir / "jobs" / f"{spec.id}.tasks"
        save_tasks(path, [task("a")])
        return self.manager.start(replace(spec, tasks=str(path)))

    def until_idle(self) -> None:
        while not self.run.pipeline.is_idle:
            self.run.pipeline.step(1.0)
            self.manager.keep()


def fill(store: RecordStore, count: int) -> None:
    """Store finished jobs."""
    rows, ended = [], replace(make_spec({"model": "old"}), ended=1.0)
    for number in range(count):
        spec = replace(ended, id=f"old-{number:06d}")
        rows.append((spec.id, str(JobState.DONE), wire.pack(spec)))
    store._write_many("INSERT INTO jobs (id, state, payload) VALUES (?, ?, ?)", rows)


def test_finished_jobs_leave_the_pipeline_and_are_shown_from_the_store(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    ids = []
    for trials in (8, 16, 24):
        ids.append(jobs.submit(trials))
        jobs.until_idle()
    assert list(jobs.run.pipeline.jobs) == ids[-1:], "the last one is kept for the status"
    assert [j["id"] for j in jobs.manager.summaries()] == ids
    assert all(j["progress"]["done"] == 1 for j in jobs.manager.summaries())
    assert jobs.manager.detail(ids[0]) is None
    jobs.store.add_records(jobs.run.store.rows)
    detail = jobs.archive.detail(ids[0])
    assert detail["state"] == "done" and detail["tasks"][0]["trials"] == 24
    assert detail["progress"]["measured"] == 8, "as it was when the job ended"
    assert jobs.manager.counts() == {"done": 3}
    with pytest.raises(BadInput, match="no job 'x'"):
        jobs.archive.detail("x")


def test_a_finished_job_gives_back_its_tasks(tmp_path: Path) -> None:
    run = Run(options(batch=8, per_task=4, train=False), SimulatedWorkerPool({"a": 90, "b": 90}))
    for name in ("a", "b"):
        run.add(TuningJob(name, trials=8), name)
        run.until_idle()
        run.pipeline.forget_finished()
    assert set(run.pipeline.jobs) == {"b"}
    assert set(run.pipeline.state.tasks) == {("b", "here")}
    again = run.add(TuningJob("c", trials=12), "a")
    run.until_idle()
    assert again.state is JobState.DONE and again.measured_now == 4, "the store knows eight"


def test_the_oldest_finished_jobs_and_their_files_are_removed(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, keep=2)
    ids = []
    for trials in (8, 16, 24, 32):
        ids.append(jobs.submit(trials))
        jobs.until_idle()
    assert [spec.id for spec, _ in job_specs.newest(jobs.store, 9)] == ids[2:]
    names = {path.stem for path in (tmp_path / "jobs").iterdir()}
    assert names == set(ids[2:])


def test_a_hundred_thousand_finished_jobs_are_neither_read_nor_shown(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, keep=0)
    fill(jobs.store, 100_000)
    jobs.manager.open(resume=True)
    assert len(jobs.manager.summaries()) == len(jobs.manager._specs) == 20
    assert jobs.manager.counts() == {"done": 100_000}
    page = jobs.archive.summaries(30)
    assert [page[0]["id"], page[-1]["id"]] == ["old-099970", "old-099999"]
    page = jobs.archive.summaries(30, before=page[0]["id"])
    assert [page[0]["id"], page[-1]["id"]] == ["old-099940", "old-099969"]
    with pytest.raises(BadInput, match="no job"):
        jobs.archive.summaries(30, before="nothing")
    job = jobs.submit(8)
    jobs.until_idle()
    assert jobs.archive.find(job)[1] is JobState.DONE


def test_a_step_looks_at_few_of_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(options(batch=4, per_task=4, train=False), SimulatedWorkerPool({"a": 9, "b": 9}))
    for number in range(300):
        run.pipeline.add_job(TuningJob(f"j{number}", trials=4, all_tasks_known=False), [])
    wanted = run.add(TuningJob("wanted", trials=4), "a")
    run.pipeline.step(1.0)  # looks at all once, since all are new
    looked: list[str] = []
    look = run.pipeline._unfinished.due

    def noted() -> list[TuningJob]:
        looked[:] = [job.id for job in look()]
        return [run.pipeline.jobs[name] for name in looked]

    monkeypatch.setattr(run.pipeline._unfinished, "due", noted)
    for _ in range(40):
        run.pipeline.step(1.0)
        assert len(looked) <= 33
    assert wanted.state is JobState.DONE
    last = run.pipeline.jobs["j299"]
    last.all_tasks_known = True
    for _ in range(10):  # by turns, it is looked at without news
        run.pipeline.step(1.0)
    assert last.state is JobState.DONE


def test_the_trace_and_the_logs_are_bounded(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "trace.jsonl", size=2000, keep=2)
    for number in range(200):
        log.emit("measured", number=number)
    log.close()
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["trace.jsonl", "trace.jsonl.1", "trace.jsonl.2"]
    assert all(path.stat().st_size < 2200 for path in tmp_path.iterdir())
    newest = (tmp_path / "trace.jsonl.1").read_text() + (tmp_path / "trace.jsonl").read_text()
    assert json.loads(newest.splitlines()[-1])["number"] == 199

    folder = tmp_path / "logs"
    folder.mkdir()
    with (folder / "daemon.log").open("ab", buffering=0) as daemon:
        for turn in range(4):
            daemon.write(b"%d" % turn * 3000)
            bound_logs(folder, 2000, 2)
        daemon.write(b"end")
    assert (folder / "daemon.log").read_bytes() == b"end"
    assert [(folder / f"daemon.log.{n}").read_bytes()[:1] for n in (1, 2)] == [b"3", b"2"]
    assert len(list(folder.iterdir())) == 3


def test_reading_checkpoints_does_not_wait_for_the_pipeline(tmp_path: Path) -> None:
    from tlmd.daemon.service import Service
    from tlmd.data.config import Config

    class Cluster:
        def ask_registry(self, method: str, *arguments: object) -> list[str]:
            return [method]

    from actors.session import Settings

    service = Service(tmp_path, Config(), Settings(Config(), tmp_path))
    service._cluster = Cluster()  # type: ignore[assignment]
    service._pipeline = object()  # type: ignore[assignment]
    # Nothing carries out calls: one would end in a timeout.
    found: Any = service.checkpoints()
    assert found == ["versions"]
    service.store.close()
    service.event_log.close()
    service.done.set()
    service._renew_snapshot()  # calls that were late do not ask the closed store
