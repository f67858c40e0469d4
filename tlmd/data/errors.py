"""The errors that a user sees, each with its exit code of the command line.

Any other exception that reaches the user is a bug; tlmd prints it with its traceback.
"""

from __future__ import annotations


class TlmdError(Exception):
    """Base class of all errors that tlmd raises on purpose.

    The message is one line: the cause, then what the user can do.
    """

    exit_code = 1


class BadInput(TlmdError):
    """The user's model, flag, file or configuration cannot be used (exit code 2)."""

    exit_code = 2


class Crashed(BadInput):
    """The process that held a model was ended by a signal, such as that of an invalid address."""


class NotImportable(BadInput):
    """TVM cannot import or compile a model or a part of it; its own framework may run it."""


class Failed(TlmdError):
    """The work failed, for example because the disk is full or no record applies (exit code 1)."""


class DiskFull(Failed):
    """No space is left to write to. The same can be written when there is room again."""


class Unavailable(TlmdError):
    """A need of the daemon is not met now (exit code 75), such as room on the disk.

    75 is ``EX_TEMPFAIL`` of sysexits.h: whatever supervises the daemon should start it again.
    """

    exit_code = 75


class ClusterLost(Unavailable):
    """Ray's own processes have died: a daemon that is started again goes on."""


class Interrupted(BaseException):
    """The command received SIGINT or SIGTERM and has to end.

    tlmd does not raise `KeyboardInterrupt` here: when that passes through code that was made by
    `exec`, Python ends the process by a signal and ignores all handlers.
    """


class NoDaemon(TlmdError):
    """No daemon answers for this state directory (exit code 3)."""

    exit_code = 3


def in_one_line(error: BaseException) -> str:
    """The text of a library's error as one line of at most 200 characters, or its class."""
    return " ".join(str(error).split())[:200] or type(error).__name__
