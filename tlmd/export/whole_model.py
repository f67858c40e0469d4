"""The whole model after tuning: its library, and the files that run it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tlmd.data.errors import Failed
from tlmd.data.types import TargetInfo
from tlmd.export import compiled_model, run_scripts
from tlmd.export.library import Entry
from tlmd.models.sources import SourceModel

if TYPE_CHECKING:
    from tvm import relax

_FULL_BYTES = 1 << 20  # if less disk is free, linking failed because the disk is full


def link(executable: relax.VMExecutable, library: Path) -> Path:
    """Write a compiled model as a shared library; its path. Raises `Failed`."""
    try:
        executable.export_library(str(library))
    except OSError as error:
        raise Failed(f"cannot write {library}: {error.strerror or error}") from error
    except RuntimeError as error:
        if "No space left" in str(error) or shutil.disk_usage(library.parent).free < _FULL_BYTES:
            raise Failed(f"no space left to write {library}; free some disk") from error
        reason = str(error).strip().splitlines()[-1][:200]
        raise Failed(f"linking {library} failed: {reason}; is gcc installed?") from error
    return library


def write_runners(
    directory: Path,
    source: SourceModel,
    entries: Sequence[Entry],
    target: TargetInfo,
    framework: str = "",
) -> None:
    """Write ``run.py``, which runs the first entry, and ``model.json`` for `tlmd.load`.

    The libraries were compiled for `target`. Of a model in parts, `framework` runs the others.
    Raises `Failed` if writing fails.
    """
    try:
        text = run_scripts.run_py(source.inputs, target.cores, target.device, framework)
        (directory / "run.py").write_text(text)
        compiled_model.write(directory, source, entries, target.cores, target.device)
    except OSError as error:
        raise Failed(f"cannot write to {directory}: {error.strerror or error}") from error
