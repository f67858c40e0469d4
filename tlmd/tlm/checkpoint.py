"""Checkpoints: network, cost model and a manifest with SHA-256, in a folder or as bytes.

The network is a safetensors file; nothing is pickled. A folder holds the three files; the manifest
is written last. As bytes, which processes and the registry send to each other, a checkpoint is one
msgpack document ``{"manifest", "sha256", "files"}`` with the content of the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput
from tlmd.language import vocabulary
from tlmd.processes.durable import sync

if TYPE_CHECKING:
    from tlmd.tlm.cost_model import CostModel
    from tlmd.tlm.network import Gpt2

_SCHEMA = 1
_MODEL, _COST_MODEL, _MANIFEST = "model.safetensors", "ranker.ubj", "manifest.json"
_BLOB = "the received checkpoint"


@dataclass
class Checkpoint:
    """One version of the TLM in memory."""

    version: int
    """Version 0 is TLM-base."""

    preset: str
    """The size of the network, a key of `network.PRESETS`."""

    model: Gpt2

    cost_model: CostModel

    notes: dict[str, Any] = field(default_factory=dict)
    """Facts about its training, as plain JSON values."""


@dataclass(frozen=True)
class _Parts:
    """A checkpoint as it is stored: the text of its manifest, and the files of the manifest."""

    manifest: bytes
    files: dict[str, bytes]


def save(checkpoint: Checkpoint, directory: Path) -> None:
    """Write `directory` atomically, so that it is complete or missing. Replaces an existing one."""
    _replace(_parts(checkpoint), directory)


def load(directory: Path = SHIPPED) -> Checkpoint:
    """Read a checkpoint. Raises `BadInput` if it is missing, damaged or not one of tlmd."""
    return _restore(_read(directory), f"checkpoint {directory}")


def load_cost_model(directory: Path = SHIPPED) -> CostModel:
    """Read only the cost model of a checkpoint, which needs no torch. Raises as `load` does."""
    from tlmd.tlm.cost_model import CostModel

    try:
        return CostModel.from_bytes(_read(directory).files[_COST_MODEL])
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise BadInput(f"checkpoint {directory} has a damaged cost model") from error


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """Encode the checkpoint as one msgpack document."""
    return _pack(_parts(checkpoint))


def from_bytes(data: bytes) -> Checkpoint:
    """Decode what `to_bytes` encoded. Raises `BadInput` for damaged or other data."""
    return _restore(_unpack(data), _BLOB)


def read(directory: Path, version: int | None = None) -> bytes:
    """Return the checkpoint in `directory` as bytes. Checks it, but does not build the network.

    If `version` is given, it replaces the version in the manifest. Raises the errors of `load`,
    except for weights that do not fit the network.
    """
    parts = _read(directory)
    if version is not None:
        manifest = _manifest(parts.manifest, f"checkpoint {directory}")
        parts = _Parts(_json({**manifest, "version": version}), parts.files)
    return _pack(parts)


def unpack(data: bytes, directory: Path) -> None:
    """Write the bytes of `to_bytes` to a new directory, the manifest last, and sync all files.

    The caller can then rename `directory`. Raises `BadInput` for damaged or other bytes; then
    nothing is written.
    """
    _fill(_unpack(data), directory)


def manifest(directory: Path) -> dict[str, Any]:
    """The manifest (``version``, ``preset``, ``notes``, ...). Raises `BadInput` if damaged."""
    return _manifest(_manifest_text(directory), f"checkpoint {directory}")


def _parts(checkpoint: Checkpoint) -> _Parts:
    import safetensors.torch

    weights = checkpoint.model.state_dict()
    files = {_MODEL: safetensors.torch.save(weights), _COST_MODEL: checkpoint.cost_model.to_bytes()}
    entries = {
        "schema": _SCHEMA,
        "version": checkpoint.version,
        "preset": checkpoint.preset,
        "vocabulary": vocabulary.FINGERPRINT,
        "sha256": {name: _sha256(content) for name, content in files.items()},
        "notes": checkpoint.notes,
    }
    return _Parts(_json(entries), files)


def _restore(parts: _Parts, where: str) -> Checkpoint:
    # Imported here, so that the registry, which only copies files, needs neither torch nor xgboost.
    import safetensors.torch

    from tlmd.tlm import network
    from tlmd.tlm.cost_model import CostModel

    entries = _manifest(parts.manifest, where)
    preset = entries["preset"]
    model = network.create(preset)
    try:
        weights = safetensors.torch.load(parts.files[_MODEL])
        model.load_state_dict(weights)
        cost_model = CostModel.from_bytes(parts.files[_COST_MODEL])
    except (
        *(RuntimeError, ValueError, TypeError, KeyError),  # of torch, xgboost and msgpack
        safetensors.SafetensorError,
        msgpack.UnpackException,
    ) as error:
        raise BadInput(f"{where} does not fit the network {preset!r}") from error
    return Checkpoint(
        entries["version"], preset, model.eval(), cost_model, entries.get("notes", {})
    )


def _read(directory: Path) -> _Parts:
    text = _manifest_text(directory)
    entries = _manifest(text, f"checkpoint {directory}")
    files: dict[str, bytes] = {}
    for name, expected in entries["sha256"].items():
        path = directory / name
        try:
            files[name] = path.read_bytes()
        except OSError as error:
            raise BadInput(f"cannot read the checkpoint file {path}: {error.strerror}") from error
        if _sha256(files[name]) != expected:
            raise BadInput(f"checkpoint file {path} is damaged; restore it or use another version")
    return _Parts(text, files)


def _replace(parts: _Parts, directory: Path) -> None:
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    _fill(parts, draft)
    if directory.exists():
        shutil.rmtree(directory)
    draft.replace(directory)
    sync(directory.parent)


def _fill(parts: _Parts, directory: Path) -> None:
    directory.mkdir(parents=True)
    for name, content in (*parts.files.items(), (_MANIFEST, parts.manifest)):
        path = directory / name
        path.write_bytes(content)
        path.chmod(0o644)  # independent of the umask: all users of a package may read it
        sync(path)
    sync(directory)


def _pack(parts: _Parts) -> bytes:
    document = {
        "manifest": parts.manifest,
        "sha256": _sha256(parts.manifest),
        "files": parts.files,
    }
    packed: bytes = msgpack.packb(document, use_bin_type=True)
    return packed


def _unpack(data: bytes) -> _Parts:
    damaged = f"{_BLOB} is damaged; send it again"
    try:
        document = msgpack.unpackb(data, raw=False)
        parts = _Parts(document["manifest"], document["files"])
        intact = _sha256(parts.manifest) == document["sha256"]
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise BadInput(damaged) from error
    if not intact or not isinstance(parts.files, dict):
        raise BadInput(damaged)
    expected = _manifest(parts.manifest, _BLOB)["sha256"]
    for name in (*expected, *parts.files):
        content = parts.files.get(name)
        if not isinstance(content, bytes) or _sha256(content) != expected.get(name):
            raise BadInput(damaged)
    return parts


def _manifest_text(directory: Path) -> bytes:
    try:
        return (directory / _MANIFEST).read_bytes()
    except OSError as error:
        raise BadInput(f"{directory} holds no checkpoint ({error})") from error


def _manifest(text: bytes, where: str) -> dict[str, Any]:
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{where}: its manifest is damaged ({error})") from error
    schema = entries.get("schema") if isinstance(entries, dict) else None
    if isinstance(schema, int) and schema > _SCHEMA:
        raise BadInput(
            f"{where} was made by a newer tlmd (schema {schema}, this one reads up to {_SCHEMA}); "
            "upgrade tlmd or use another checkpoint"
        )
    if schema != _SCHEMA:
        raise BadInput(f"{where} has schema {schema}, not {_SCHEMA}; use another checkpoint")
    if entries.get("vocabulary") != vocabulary.FINGERPRINT:
        raise BadInput(
            f"{where} has another vocabulary; make a new one with 'python -m tlmd.learn.make_base'"
        )
    shape = {"version": int, "preset": str, "sha256": dict}
    if any(not isinstance(entries.get(name), kind) for name, kind in shape.items()):
        raise BadInput(f"{where}: its manifest is damaged")
    if set(entries["sha256"]) != {_MODEL, _COST_MODEL}:  # names become paths: allow no others
        raise BadInput(f"{where}: its manifest lists other files")
    return dict(entries)


def _json(entries: dict[str, Any]) -> bytes:
    return (json.dumps(entries, indent=1) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
