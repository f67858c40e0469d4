"""Output on terminals and into files that do not know every letter.

Where the environment says ASCII (`LANG=C`), Python raises an error for the sign of microseconds or
a file name with an umlaut. What is printed never ends a command: such letters are replaced.
"""

from __future__ import annotations

import codecs
import contextlib
import sys

ERRORS = "tlmd.replace"
"""The name under which Python knows `_replaced`, for the argument `errors` of streams."""

# Signs of tlmd's own output, and letters that look alike.
_LETTERS = dict(zip("µ\u00d7\u2013\u2014·•┃┊", "ux---*||", strict=True)) | {"…": "..."}


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Letters that look alike instead of those that cannot be written, or question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_LETTERS.get(letter, "?") for letter in wrong), error.end


def write_anything() -> None:
    """Let standard output and standard error take every text."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # it is no file, or it is closed
            stream.reconfigure(errors=ERRORS)  # type: ignore[union-attr]


codecs.register_error(ERRORS, _replaced)
