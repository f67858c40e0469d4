"""Checkpoints without a network, for sweeps over what the registry does with their files.

They have the files, the manifest and the hashes of real ones, so that `checkpoint.read` and
`checkpoint.unpack` take them; `load` checks the same and builds nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tlmd.language import vocabulary
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.checkpoint_registry import GateResult

_NO_NETWORK: Any = None
_NO_COST_MODEL: Any = None


def blob(version: int) -> bytes:
    """What `checkpoint.to_bytes` would give, with a few bytes instead of weights and trees."""
    files = {"model.safetensors": b"weights %d" % version, "ranker.ubj": b"trees %d" % version}
    manifest = {
        "schema": 1,
        "version": version,
        "preset": "none",
        "vocabulary": vocabulary.FINGERPRINT,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "notes": {"made": version},
    }
    text = (json.dumps(manifest, indent=1) + "\n").encode()
    document = {"manifest": text, "sha256": hashlib.sha256(text).hexdigest(), "files": files}
    packed: bytes = msgpack.packb(document, use_bin_type=True)
    return packed


def load(directory: Path) -> Checkpoint:
    """In place of `checkpoint.load`: raises `BadInput` for the same missing or damaged files."""
    checkpoints.read(directory)
    entries = checkpoints.manifest(directory)
    version, preset, notes = (entries[name] for name in ("version", "preset", "notes"))
    return Checkpoint(version, preset, _NO_NETWORK, _NO_COST_MODEL, notes)


@contextlib.contextmanager
def in_place_of_networks() -> Iterator[None]:
    """The registry loads these during the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "load", load)
        yield


def accept(new: Checkpoint, _rivals: Sequence[Checkpoint]) -> GateResult:
    return GateResult("", (new.version,))


def refuse(_new: Checkpoint, rivals: Sequence[Checkpoint]) -> GateResult:
    return GateResult("held-out loss 2.31 against 1.90 nats", (rivals[0].version,))


def folders(directory: Path) -> list[int]:
    return sorted(int(path.name[1:]) for path in directory.glob("v*"))
