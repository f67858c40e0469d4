"""An upgrade keeps what was tuned: records of older revisions of a task are found for newer ones.

The store in `data/` was written by tlmd 0.1 (6434ab2): ``tlmd tune tests.small_network:make
--trials 2 --cores 1``.
"""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated import SimulatedWorkerPool, options
from tlmd.data.types import Candidate, Record, Task, Writer
from tlmd.pipeline.orders import WriteOrder
from tlmd.pipeline.state import PipelineState
from tlmd.records import job_specs
from tlmd.records.signature import signature
from tlmd.records.store import RecordStore

_OLD = Path(__file__).parent / "data" / "records_0_1.sqlite.xz"


def unpacked(folder: Path) -> Path:
    """A copy of the store of 0.1 in a folder."""
    path = folder / "records.sqlite"
    path.write_bytes(lzma.decompress(_OLD.read_bytes()))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return unpacked(tmp_path)


def revised(task: Task) -> Task:
    """The same computation as a newer tlmd may lower it: another program, another id."""
    return replace(task, id=f"t9{task.id[2:]}")


def carried(task: Task, record: Record) -> Record:
    """What measuring the old program for the newer revision gives."""
    decisions = record.candidate.decisions
    candidate = Candidate(revised(task).id, record.candidate.sketch, decisions)
    return replace(record, candidate=candidate, writer=Writer.CARRIED)


def test_a_store_of_0_1_is_upgraded_with_its_jobs_and_signatures(path: Path) -> None:
    for _ in range(2):
        with RecordStore(path) as store:
            tasks, counts = store.tasks(), store.counts()
            ((spec, state),) = job_specs.newest(store, 10)
            assert counts.records == 14 and counts.carried == 0 and state.is_finished
            assert spec.request.name == "tests.small_network:make" and spec.request.trials == 2
            assert all(store.best(*task.key) for task in tasks if task.flops)
    assert len({signature(task) for task in tasks}) == len(tasks) and "" not in map(
        signature, tasks
    )


def test_records_are_found_by_what_a_task_computes_on_the_same_hardware(path: Path) -> None:
    with RecordStore(path) as store:
        old = store.tasks()
        elsewhere = [replace(t, target=replace(t.target, fingerprint="other")) for t in old]
        store.add_tasks([*map(revised, old), *map(revised, elsewhere)])
        for task, other in zip(old, elsewhere, strict=True):
            found = store.earlier_records(*revised(task).key, 4)
            best = store.best(*task.key)
            assert (best is None) == (found == [])
            if best is not None:
                assert {r.candidate.task_id for r in found} == {task.id}
                assert found[0].outcome.seconds <= best.outcome.seconds
            assert store.earlier_records(*revised(other).key, 4) == []


def test_a_task_without_records_is_written_with_those_of_its_older_revision(path: Path) -> None:
    pool = SimulatedWorkerPool({})
    with RecordStore(path) as store:
        task = max(store.tasks(), key=lambda t: t.flops)
        store.add_task(revised(task))
        state = PipelineState(pool, store, options(), lambda *_a, **_k: None)
        known = state.task(revised(task))
        assert known.earlier and {c.task_id for c in known.earlier} == {task.id}
        assert known.trials == 0 and state.task(task).earlier == ()
        order = WriteOrder(0, revised(task), 4, earlier=known.earlier)
        assert len(order.earlier) == len(store.earlier_records(*revised(task).key, 4))


def test_programs_that_were_carried_over_are_counted_once(path: Path) -> None:
    with RecordStore(path) as store:
        task = max(store.tasks(), key=lambda t: t.flops)
        store.add_task(revised(task))
        new = [carried(task, r) for r in store.earlier_records(*revised(task).key, 4)]
        for batch in (100, 101):  # a program that is compared again is no second one
            store.add_records(replace(record, batch=batch) for record in new)
        assert store.counts().carried == len(new) > 0
        assert store.earlier_records(*task.key, 4)  # and back again, after a downgrade
