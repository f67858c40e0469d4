"""Candidates that a generator must not write again; each order names the new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class WrittenHistory:
    """Ids and module hashes of candidates, by task."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def add(
        self, task: tuple[str, str], count: int, news: Sequence[tuple[str, str]]
    ) -> Collection[tuple[str, str]]:
        """All candidates of a task: the `count` earlier ones, and `news`.

        Raises `ValueError` where the history holds another number of earlier ones. With a `count`
        of 0 it forgets them.
        """
        have = self._written.setdefault(task, [])
        if count == 0:
            have.clear()
        if len(have) != count:
            raise ValueError(f"{len(have)} candidates of the task are known here, not {count}")
        have += news
        return have
