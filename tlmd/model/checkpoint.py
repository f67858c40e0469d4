"""Checkpoints on disk: safetensors + ranker + a manifest with SHA-256, written last. No pickle."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch

from tlmd.errors import BadInput
from tlmd.language import vocabulary
from tlmd.model import network
from tlmd.model.ranker import Ranker

SHIPPED = Path(__file__).parent.parent / "pretrained"
_SCHEMA = 1
_MODEL, _RANKER, _MANIFEST = "model.safetensors", "ranker.ubj", "manifest.json"


@dataclass
class Checkpoint:
    """One version of the TLM in memory; version 0 is TLM-base.

    ``notes`` says what it was trained on (plain JSON values).
    """

    version: int
    preset: str
    model: Any
    ranker: Ranker
    notes: dict[str, Any] = field(default_factory=dict)


def save(checkpoint: Checkpoint, directory: Path) -> None:
    """Write `directory` atomically: it appears whole or not at all (existing: replaced)."""
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    # The tied output layer shares the embedding's storage and is not written twice.
    weights = {k: v for k, v in checkpoint.model.state_dict().items() if k != "lm_head.weight"}
    safetensors.torch.save_file(weights, draft / _MODEL)
    (draft / _RANKER).write_bytes(checkpoint.ranker.to_bytes())
    manifest = {
        "schema": _SCHEMA,
        "version": checkpoint.version,
        "preset": checkpoint.preset,
        "vocabulary": vocabulary.FINGERPRINT,
        "sha256": {name: _sha256(draft / name) for name in (_MODEL, _RANKER)},
        "notes": checkpoint.notes,
    }
    (draft / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in draft.iterdir():
        path.chmod(0o644)  # safetensors writes for the owner only; a package is for everyone
        _sync(path)
    _sync(draft)
    if directory.exists():
        shutil.rmtree(directory)
    draft.replace(directory)
    _sync(directory.parent)


def load(directory: Path = SHIPPED) -> Checkpoint:
    """Read a checkpoint; raises `BadInput` for a missing, damaged or foreign one."""
    manifest = _manifest(directory)
    for name, expected in manifest["sha256"].items():
        path = directory / name
        if not path.is_file() or _sha256(path) != expected:
            raise BadInput(f"checkpoint file {path} is damaged; restore it or use another version")
    model = network.create(manifest["preset"])
    weights = safetensors.torch.load_file(directory / _MODEL)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise BadInput(f"checkpoint {directory} does not fit the network {manifest['preset']!r}")
    model.tie_weights()
    ranker = Ranker.from_bytes((directory / _RANKER).read_bytes())
    return Checkpoint(
        manifest["version"], manifest["preset"], model.eval(), ranker, manifest.get("notes", {})
    )


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((directory / _MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{directory} holds no checkpoint ({error})") from error
    if manifest.get("schema") != _SCHEMA:
        raise BadInput(f"checkpoint {directory} has schema {manifest.get('schema')}, not {_SCHEMA}")
    if manifest["vocabulary"] != vocabulary.FINGERPRINT:
        raise BadInput(
            f"checkpoint {directory} speaks another vocabulary; "
            "make a new one with 'python -m tlmd.daemon.pretrain'"
        )
    return manifest


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
