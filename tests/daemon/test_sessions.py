"""Sessions of browsers outlive a daemon that died; so does the port on which their pages wait."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from tlmd.daemon.serve import _last_port
from tlmd.daemon.sessions import Sessions


def test_a_daemon_that_was_started_again_knows_the_sessions(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    secret = Sessions("token", file).open()
    again = Sessions("token", file)
    assert secret in again and "" not in again and "other" not in again
    assert again.open() != secret and secret in Sessions("token", file)


def test_the_file_opens_no_session(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    secret = Sessions("token", file).open()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    digest = file.read_text().strip()
    assert secret not in digest and digest not in Sessions("token", file)
    assert secret not in Sessions("another token", file)


def test_a_damaged_file_or_a_missing_folder_costs_the_old_sessions_only(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    for damage in (b"", b"\xff\xfe\x00", b"x" * 100):
        file.write_bytes(damage)
        sessions = Sessions("token", file)
        assert sessions.open() in sessions
    nowhere = Sessions("token", tmp_path / "missing" / "sessions")
    assert nowhere.open() in nowhere


def test_the_newest_hundred_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    secrets = [Sessions("token", file).open() for _ in range(101)]
    kept = Sessions("token", file)
    assert secrets[0] not in kept and all(secret in kept for secret in secrets[1:])


def test_the_port_of_a_daemon_that_died(tmp_path: Path) -> None:
    note = tmp_path / "daemon.json"
    assert _last_port(note) == 0
    for text in ("", "{}", "[]", "3", '{"url": 3}', '{"url": "http://127.0.0.1:99999"}'):
        note.write_text(text)
        assert _last_port(note) == 0
    note.write_text(json.dumps({"url": "http://127.0.0.1:8123"}))
    assert _last_port(note) == 8123
