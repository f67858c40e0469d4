"""Load exported PyTorch programs (.pt2) without running code that they may contain.

`torch.export.load` unpickles some parts of an archive without restriction, and pickles can run any
code. Therefore tlmd checks the archive first, and refuses archives that need pickle.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.models.sources import first_line

# Script objects and opaque objects: they are code.
_CODE_PREFIXES = ("custom_obj_", "opaque_obj_")


def load_exported_program(path: Path) -> Any:
    """Load the `torch.export.ExportedProgram` in `path`. Raises `BadInput` for any other file."""
    import torch

    advice = "save it again with torch.export.save(torch.export.export(module, inputs), path)"
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is corrupt or not an exported program; {advice}")
    try:
        refusal = _why_unsafe(path)
        if refusal:
            raise BadInput(f"{path} {refusal} and is not loaded; {advice}")
        return torch.export.load(str(path))
    except BadInput:
        raise
    except Exception as error:  # torch raises many kinds for a damaged archive
        reason = first_line(error)
        raise BadInput(f"{path} is corrupt or of another version ({reason}); {advice}") from error


def _why_unsafe(path: Path) -> str:
    """The part of the archive that could run code when it is loaded; empty if none."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if not any(PurePosixPath(name).name == "archive_format" for name in names):
            return "is not an archive of torch.export"
        for name in names:
            parts = PurePosixPath(name)
            if parts.name.startswith(_CODE_PREFIXES) or "aotinductor" in parts.parts:
                return "contains code"
            if parts.name.endswith("_config.json") and _needs_pickle(archive.read(name)):
                return "contains pickled tensors"
            if parts.suffix in (".pt", ".pkl") and not _has_only_tensors(archive.read(name)):
                return "contains pickled objects"
    return ""


def _needs_pickle(config: bytes) -> bool:
    entries = json.loads(config).get("config", {}).values()
    return any(entry.get("use_pickle", False) for entry in entries)


def _has_only_tensors(data: bytes) -> bool:
    """Whether torch's restricted loader, which runs no code, can read `data`."""
    import torch

    if not data:
        return True
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:
        return False
    return True
