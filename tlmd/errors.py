"""The errors that users of the Python interface catch: ``from tlmd.errors import BadInput``."""

from tlmd.data.errors import BadInput, Failed, Interrupted, NoDaemon, TlmdError

__all__ = ["BadInput", "Failed", "Interrupted", "NoDaemon", "TlmdError"]
