"""What a generator must not write again, as its orders have told it bit by bit."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class WrittenHistory:
    """Ids and module hashes of candidates, by task."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def add(
        self, task: tuple[str, str], known: int, news: Sequence[tuple[str, str]]
    ) -> Collection[tuple[str, str]]:
        """All candidates of a task, after `news` came to the `known` ones; 0: to none.

        Raises `ValueError` where another number is known.
        """
        have = self._known.setdefault(task, [])
        if known == 0:
            have.clear()
        if len(have) != known:
            raise ValueError(f"{len(have)} candidates of the task are known here, not {known}")
        have += news
        return have
