"""Calls of other threads, which one thread carries out when it has time for them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tlmd.data.errors import Failed


class CallQueue:
    """The calls that wait. `call` may be used by any thread, `answer` by one."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()

    def call(self, function: Callable[[], Any], timeout: float, ended: Callable[[], bool]) -> Any:
        """Have `function` run; return its result or raise its error.

        Raises `TimeoutError` where it was not begun within `timeout` seconds; then it never runs,
        so that the caller may try again. Raises `Failed` where the daemon has `ended`.
        """
        future: Future[Any] = Future()
        self._waiting.put((function, future))
        if ended():
            raise Failed("the daemon has ended")
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.cancel():
                raise
            return future.result()  # it has begun

    def answer(self, seconds: float, then: Callable[[], None]) -> None:
        """Carry out the calls that wait; wait up to `seconds` for the first one.

        `then` runs after each of them, before its caller goes on.
        """
        while True:
            try:
                function, future = self._waiting.get(seconds > 0, seconds)
            except queue.Empty:
                return
            seconds = 0.0
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
                then()
                future.set_result(result)
            except Exception as error:
                future.set_exception(error)
