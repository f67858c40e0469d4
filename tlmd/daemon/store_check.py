"""Checks a large record store while the daemon already works."""

from __future__ import annotations

import logging
import threading

from tlmd.data.errors import BadInput, TlmdError
from tlmd.records.store import RecordStore

_log = logging.getLogger("tlmd")


class StoreCheck:
    """Reads the whole store in a thread, if it was too large to be checked when it was opened."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._damage = ""
        self._thread = threading.Thread(target=self._run, name="check", daemon=True)
        if store.needs_check:
            _log.info("checking the record store beside the work")
            self._thread.start()

    def raise_damage(self) -> None:
        """Raise `BadInput` if damage was found up to now."""
        if self._damage:
            raise BadInput(self._damage)

    def _run(self) -> None:
        try:
            self._store.check_whole()
            _log.info("the record store is whole")
        except BadInput as error:
            self._damage = str(error)
        except TlmdError as error:  # such as a disk that is slow to answer: nothing is known
            _log.warning("the record store could not be checked: %s", error)
