"""What tlmd can do, measured on this machine. README.md lists all benchmarks.

Each benchmark is a program, ``python -m benchmarks.NAME [--json FILE]``. It pins itself, prints the
machine, the commit and a table, and writes its figures. The headline of a comparison is the key
``ratio``: ours over the peer's, higher is better.
"""

from pathlib import Path

# `python -m benchmarks.NAME` finds NAME in each of the folders.
_FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/**/__init__.py"))
__path__ = [*__path__, *map(str, _FOLDERS)]
