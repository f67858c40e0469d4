"""Known programs: made from records, kept in a file, found for one kind of CPU."""

from __future__ import annotations

import itertools
import lzma
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import modules
from tests.support.measured_tasks import measured
from tlmd.client.commands import interchange
from tlmd.corpus import known_programs
from tlmd.corpus.best_programs import best_programs
from tlmd.corpus.known_programs import KnownFile, KnownProgram, KnownPrograms
from tlmd.data import wire
from tlmd.data.errors import BadInput
from tlmd.data.types import Candidate, Record, Task
from tlmd.records.store import RecordStore
from tlmd.space.space import TaskSpace, module_hash

TASK = modules.gemm()
SPACE = TaskSpace(TASK)


def program(name: str = "t", target: str = "zen", seconds: float = 1e-3) -> KnownProgram:
    return KnownProgram(target, name, Candidate(name, 0, ((1,),)), "aa", seconds)


def of(found: KnownPrograms, name: str, target: str = "zen") -> list[float]:
    task = replace(TASK, id=name, target=replace(TASK.target, spec=target))
    return [known.seconds for known in found.of(task)]


def record(seconds: float, seed: int = 0) -> Record:
    """A verified record of the task, with the hash of its program; another one for each seed."""
    (made,) = measured(TASK, seconds).records
    drawn = (SPACE.random(Random(number)) for number in itertools.count(100 * seed))
    candidate = next(filter(SPACE.accepts, drawn))
    digest = module_hash(SPACE.finish(candidate).mod)
    return replace(
        made, candidate=candidate, module_hash=digest, fingerprint=TASK.target.fingerprint
    )


def keep(folder: Path, records: list[Record], task: Task = TASK) -> None:
    baseline = measured(TASK, 1.0, baseline_s=0.5).baseline
    assert baseline is not None
    with RecordStore(folder / "records.sqlite") as store:
        store.add_task(task)
        store.put_baseline(replace(baseline, fingerprint=task.target.fingerprint))
        store.add_records(replace(r, fingerprint=task.target.fingerprint) for r in records)


def test_of_a_task_the_first_file_counts() -> None:
    new = [program(seconds=2e-3), program(seconds=1e-3)]
    old = [program(seconds=5e-4), program("u"), program(target="arm")]
    found = KnownPrograms([new, old])
    assert of(found, "t") == [2e-3, 1e-3]  # in the file's order: the first won a comparison
    assert of(found, "u") == of(found, "t", "arm") == [1e-3] and of(found, "v") == []
    assert len(found.all()) == 4 and found.timed(TASK) == ()


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = KnownPrograms([[program("u"), program(seconds=2.0), program(seconds=1.0)]])
    path = tmp_path / "known.xz"
    assert known_programs.write(path, found) == 3 and known_programs.is_known_file(path)
    assert known_programs.read(path) == found.all()
    assert KnownPrograms([known_programs.read(path)]).all() == found.all()


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_file_is_bad_input(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = wire.pack(KnownFile("tlmd-known", 1, (program(), program("u"))))
    whole = lzma.compress(raw) if data.draw(st.booleans()) else raw
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    if whole is raw:
        cut = lzma.compress(cut)
    path = tmp_path_factory.getbasetemp() / "damaged.xz"
    path.write_bytes(cut)
    known_programs.is_known_file(path)
    with pytest.raises(BadInput, match="damaged"):
        known_programs.read(path)


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "known.xz"
    for magic, version, message in (("x", 1, "holds no"), ("tlmd-known", 2, "newer tlmd")):
        path.write_bytes(lzma.compress(wire.pack(KnownFile(magic, version, ()))))
        with pytest.raises(BadInput, match=message):
            known_programs.read(path)
    assert not known_programs.is_known_file(tmp_path)


def test_a_file_that_cannot_be_read_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shipped = KnownPrograms.of_state(tmp_path).all()
    assert not caplog.records
    (tmp_path / known_programs.FILE).write_bytes(b"damaged")
    assert KnownPrograms.of_state(tmp_path).all() == shipped
    assert "known programs are not used" in caplog.text


def test_what_is_imported_replaces_what_was(tmp_path: Path) -> None:
    path, state = tmp_path / "file.xz", tmp_path / "state"
    state.mkdir()
    for programs in ([program(seconds=2.0), program("u")], [program(seconds=3.0)]):
        known_programs.write(path, KnownPrograms([programs]))
        counts = interchange.import_records(path, "native", 1, state)
        assert counts == {"tasks": len(programs), "records": len(programs), "skipped": 0}
    found = KnownPrograms.of_state(state)
    assert of(found, "t") == [3.0] and of(found, "u") == [1e-3]


def test_the_best_programs_are_exported(tmp_path: Path) -> None:
    slow, fast = record(2e-3, 1), record(1e-3, 2)
    default = record(0.7, 3)  # slower than TVM's default schedule
    changed = replace(record(1e-4, 4), module_hash="another program")
    keep(tmp_path, [slow, fast, default, changed])
    path = tmp_path / "known.xz"
    counts = interchange.export_best(path, tmp_path, 1)
    assert counts == {"tasks": 1, "records": 2, "skipped": 1}
    best, next_best = known_programs.read(path)
    assert best.candidate == fast.candidate and next_best.candidate == slow.candidate
    assert best.target == TASK.target.spec and best.seconds == 1e-3
    with pytest.raises(BadInput, match="has 9 verified programs"):
        interchange.export_best(path, tmp_path, 9)


def test_of_two_machines_that_with_more_records_counts(tmp_path: Path) -> None:
    other = replace(TASK, target=replace(TASK.target, fingerprint="another one"))
    keep(tmp_path, [record(1e-3, 1)])
    keep(tmp_path, [record(3e-3, 2), record(2e-3, 3)], other)
    with RecordStore(tmp_path / "records.sqlite") as store:
        found, left_out = best_programs(store)
    assert [p.seconds for p in found.of(TASK)] == [2e-3, 3e-3] and left_out == 0


def test_what_was_imported_is_exported_with_it(tmp_path: Path) -> None:
    path = tmp_path / "file.xz"
    known_programs.write(path, KnownPrograms([[program("u")]]))
    known_programs.add(tmp_path, path)
    keep(tmp_path, [record(1e-3)])
    assert interchange.export_best(path, tmp_path, 1)["tasks"] == 2
    assert {p.task for p in known_programs.read(path)} == {"u", TASK.name}
