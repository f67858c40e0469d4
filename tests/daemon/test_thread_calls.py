"""Calls of other threads: a call that timed out never runs, one that has begun is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tlmd.daemon.thread_calls import CallQueue
from tlmd.data.errors import BadInput, Failed


def never() -> bool:
    return False


def in_thread(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_call_gets_its_result_or_its_error() -> None:
    calls, told = CallQueue(), []

    def refuse() -> None:
        raise BadInput("no")

    def ask() -> None:
        told.append(calls.call(lambda: 7, 5.0, never))
        with pytest.raises(BadInput, match="no"):
            calls.call(refuse, 5.0, never)
        told.append("refused")

    thread = in_thread(ask)
    while thread.is_alive():
        calls.answer(0.05, lambda: told.append("then"))
    assert told == ["then", 7, "refused"]


def test_a_call_that_timed_out_never_runs() -> None:
    calls, ran = CallQueue(), []
    with pytest.raises(TimeoutError):
        calls.call(lambda: ran.append(1), 0.01, never)
    calls.answer(0.0, lambda: None)
    assert not ran


def test_a_call_that_has_begun_is_waited_for() -> None:
    calls, found = CallQueue(), []

    def slow() -> int:
        time.sleep(0.2)
        return 3

    thread = in_thread(lambda: found.append(calls.call(slow, 0.1, never)))
    while thread.is_alive():
        calls.answer(0.05, lambda: None)
    assert found == [3]


def test_nobody_waits_for_a_daemon_that_has_ended() -> None:
    with pytest.raises(Failed, match="has ended"):
        CallQueue().call(lambda: 1, 60.0, lambda: True)
