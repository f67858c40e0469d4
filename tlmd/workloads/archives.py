"""Open exported PyTorch programs (.pt2) without running what they may carry.

`torch.export.load` unpickles some parts of an archive without restriction, and pickles can run any
code. So the archive is looked through first, and one that needs pickle is refused.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from tlmd.errors import BadInput
from tlmd.workloads.sources import first_line

# Script objects, opaque objects and compiled libraries: all of them are code.
_CODE_PREFIXES = ("custom_obj_", "opaque_obj_")


def load_exported_program(path: Path) -> Any:
    """The `torch.export.ExportedProgram` in `path`; raises `BadInput` for anything else."""
    import torch

    advice = "save it again with torch.export.save(torch.export.export(module, inputs), path)"
    if not zipfile.is_zipfile(path):
        raise BadInput(f"{path} is corrupt or no exported program; {advice}")
    try:
        refusal = _why_unsafe(path)
        if refusal:
            raise BadInput(f"{path} {refusal} and is not loaded; {advice}")
        return torch.export.load(str(path))
    except BadInput:
        raise
    except Exception as error:  # torch raises nearly every kind for a damaged archive
        reason = first_line(error)
        raise BadInput(f"{path} is corrupt or of another version ({reason}); {advice}") from error


def _why_unsafe(path: Path) -> str:
    """What in the archive would be executed on loading, empty if nothing."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if not any(PurePosixPath(name).name == "archive_format" for name in names):
            return "is not an archive of torch.export"
        for name in names:
            parts = PurePosixPath(name)
            if parts.name.startswith(_CODE_PREFIXES) or "aotinductor" in parts.parts:
                return "contains code"
            if parts.name.endswith("_config.json") and _wants_pickle(archive.read(name)):
                return "contains pickled tensors"
            if parts.suffix in (".pt", ".pkl") and not _plain_tensors(archive.read(name)):
                return "contains pickled objects"
    return ""


def _wants_pickle(config: bytes) -> bool:
    entries = json.loads(config).get("config", {}).values()
    return any(entry.get("use_pickle", False) for entry in entries)


def _plain_tensors(data: bytes) -> bool:
    """Whether torch's restricted loader, which runs no code, can read it."""
    import torch

    if not data:
        return True
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception:
        return False
    return True
