"""Files of the user that Python imports instead of a package, because they stand before it.

The user's folder comes first when Python looks for modules, so that it finds the model. A file
`numpy.py` there hides numpy from tlmd. It is named only when something has failed for its sake:
files called `test.py` or `code.py` also hide modules, and do no harm.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_OWN = {"tlmd", "actors"}


def blamed(trace: str, folders: Iterable[str]) -> str:
    """The line about a file in `folders` that an error comes from; empty if there is none.

    `trace` is the traceback. It names the file, or the module that lacks something.
    """
    places = list(dict.fromkeys(Path(folder or ".").resolve() for folder in folders))
    others = [entry for entry in sys.path if Path(entry or ".").resolve() not in places]
    for place in places:
        for file in sorted([*place.glob("*.py"), *place.glob("*/__init__.py")]):
            name = file.parent.name if file.name == "__init__.py" else file.stem
            named = str(file) in trace or f"'{name}'" in trace
            if named and name not in _OWN and PathFinder.find_spec(name, others) is not None:
                return f"{file} shadows the package {name}, which tlmd needs; rename that file"
    return ""


def blamed_for(error: BaseException) -> str:
    """The same for an error of this process."""
    search = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # What a parent has put before tlmd (`children`) is the user's.
    here = [Path(entry or ".").resolve() for entry in search]
    first = search[: here.index(_ROOT)] if _ROOT in here else []
    folders = [str(Path.cwd()), *sys.path[:1], *first]
    return blamed("".join(traceback.format_exception(error)), folders)
