"""The errors a user sees, each with the exit code of the command line.

Everything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations


class TlmdError(Exception):
    """Base of all errors tlmd raises on purpose; the message is one line: cause, then mend."""

    exit_code = 1


class BadInput(TlmdError):
    """The user's model, flag, file or configuration cannot be used (exit code 2)."""

    exit_code = 2


class Failed(TlmdError):
    """The work itself failed: nothing measured, a record not applied, a full disk (exit code 1)."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM asked the command to end.

    Not `KeyboardInterrupt`: where that passes through code made by `exec`, Python ends the process
    by a signal in spite of every handler.
    """


class NoDaemon(TlmdError):
    """No daemon answers for this state directory (exit code 3)."""

    exit_code = 3
