"""Files are whole or not there, whatever happens while they are written."""

import multiprocessing
from pathlib import Path

import pytest

from tlmd.processes.durable import replacing

_SIZE = 1 << 20


def _write(path: Path, letter: str, times: int) -> None:
    for _ in range(times):
        with replacing(path) as new:
            new.write_text(letter * _SIZE)


def test_where_writing_fails_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as new:
        new.write_text("half of the ne")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # nothing was written
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "b") as new:
        new.write_text("b")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_reader_beside_several_writers_sees_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "b"
    _write(path, "0", 1)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write, args=(path, letter, 30)) for letter in "ab"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        text = path.read_text()
        assert len(text) == _SIZE and len(set(text)) == 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
