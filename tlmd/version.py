"""The version of tlmd. It stands here only; the package's metadata are read from this file."""

__version__ = "0.2.0"
