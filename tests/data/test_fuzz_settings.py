"""Damaged configurations, HTTP bodies, checkpoints: one clear line, nothing is written."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fake_checkpoints
from tests.support.fuzzing import changed, damaged, few, one_line, scalars, values
from tlmd.daemon.http import HttpServer, make_app
from tlmd.daemon.job_documents import make_spec, to_job
from tlmd.data import config, wire
from tlmd.data.errors import BadInput
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.checkpoint_registry import Registry

TOML = b"""
[measure]
slots = 2
cache = "hot"
budget = 1.5
[pipeline]
strict = true
[registry]
keep = 5
"""
REQUEST: dict[str, Any] = {
    "model": "resnet18",
    "input_shapes": [[1, 3, 224, 224]],
    "target": "native",
    "trials": 16,
    "time_budget": 60.0,
    "cwd": "/",
    "tasks": "",
    "strict_numerics": False,
    "precision": "fp32",
}


@few(150)
@given(damaged(TOML) | st.binary(max_size=60))
def test_a_damaged_configuration(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "tlmd.toml"
    path.write_bytes(data)
    one_line(lambda: config.load(path, environment={}))


@few(150)
@given(st.sampled_from(config.known_keys()), values, values)
@pytest.mark.slow
def test_keys_with_any_values(key: str, value: Any, text: Any) -> None:
    one_line(lambda: config.load(flags={key: value}, environment={}))
    name = f"TLMD_{key.upper().replace('.', '__')}"
    one_line(lambda: config.load(environment={name: str(text), f"{name}__X": "1"}))


class StubService:
    """Takes requests as the daemon does: what it accepts must be storable and tunable."""

    def __init__(self) -> None:
        self.snapshot: dict[str, Any] = {"jobs": []}
        self.archive = self

    def submit(self, request: dict[str, Any]) -> str:
        spec = make_spec(request)
        assert wire.unpack(type(spec), wire.pack(spec)) == spec
        to_job(spec)
        return spec.id

    def detail(self, job_id: str) -> dict[str, Any]:
        raise BadInput(f"no job {job_id!r}; `tlmd jobs` lists them")

    cancel = detail

    def summaries(self, count: int, before: str) -> list[Any]:
        assert 1 <= count <= 1000
        return []

    def use_checkpoint(self, method: str, version: int) -> int:
        return version

    def pause(self, paused: bool) -> None: ...

    def stop(self, now: bool) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    service: Any = StubService()
    server = HttpServer(make_app(service, "secret"), 0)
    server.start()
    yield server
    server.stop()


def ask(server: HttpServer, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def check(status: int, body: bytes) -> None:
    """An answer, or an error of one line; never a defect (5xx)."""
    assert status < 500, body
    if status >= 400:
        document = json.loads(body)
        text = document.get("error", "")
        assert "detail" in document or (text and len(text.splitlines()) == 1 and len(text) < 600)


fields = {key: st.just(value) | scalars for key, value in REQUEST.items()}
requests = st.fixed_dictionaries({}, optional={**fields, "corpus": scalars, "weights": scalars})
bodies = (requests | changed(REQUEST) | values).map(json.dumps)


@few(120)
@given(st.data())
def test_bodies_of_any_form(server: HttpServer, data: st.DataObject) -> None:
    body = data.draw(bodies).encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        body = data.draw(damaged(body) | st.binary(max_size=40))
    check(*ask(server, "POST", "/v1/jobs", body))


@few(80)
@given(st.data())
def test_paths_of_any_form(server: HttpServer, data: st.DataObject) -> None:
    word = quote(data.draw(st.text(max_size=12)), safe="")
    paths = [
        f"/v1/jobs/{word}",
        f"/v1/jobs/{word}/cancel",
        f"/v1/jobs?limit={word}&before={word}",
        f"/v1/jobs?limit={data.draw(st.integers(-(2**70), 2**70))}",
        f"/v1/checkpoints/{word}/promote",
        f"/v1/checkpoints/3/{word}",
        f"/v1/stop?now={word}",
        f"/{word}",
    ]
    method = data.draw(st.sampled_from(["GET", "POST", "PUT"]))
    check(*ask(server, method, data.draw(st.sampled_from(paths)), None))


@pytest.fixture(scope="module")
def blob() -> bytes:
    from tlmd.tlm import network
    from tlmd.tlm.cost_model import CostModel

    made = checkpoints.Checkpoint(1, "nano", network.create("nano", 0), CostModel(), {"steps": 3})
    return checkpoints.to_bytes(made)


def hashed(document: dict[str, Any]) -> bytes:
    """Bytes of a checkpoint whose hashes are right, whatever it holds."""
    manifest = document["manifest"]
    digest = hashlib.sha256(manifest).hexdigest() if isinstance(manifest, bytes) else ""
    packed: bytes = msgpack.packb({**document, "sha256": digest})
    return packed


@few(15)
@given(st.data())
def test_a_damaged_checkpoint(
    blob: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = msgpack.unpackb(blob)
    manifest = json.loads(document["manifest"])
    kind = data.draw(st.sampled_from(["bytes", "manifest", "weights", "trees"]))
    if kind == "bytes":
        new = data.draw(damaged(blob))
    elif kind == "manifest":
        text = json.dumps(data.draw(changed(manifest)))
        new = hashed({**document, "manifest": text.encode("utf-8", "surrogatepass")})
    else:
        name = "model.safetensors" if kind == "weights" else "ranker.ubj"
        start = document["files"][name][:2000] or b"{\x00"
        content = (
            data.draw(damaged(start) | st.binary(max_size=100)) + document["files"][name][2000:]
        )
        manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
        files = {**document["files"], name: content}
        new = hashed({"manifest": json.dumps(manifest).encode(), "files": files})
    one_line(lambda: checkpoints.from_bytes(new))
    folder = tmp_path_factory.mktemp("checkpoint") / "v000001"
    one_line(lambda: checkpoints.unpack(new, folder))
    if folder.exists():
        one_line(lambda: checkpoints.load(folder))


@pytest.fixture
def fake_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "load", fake_checkpoints.load)


@few(40)
@given(st.data())
@pytest.mark.usefixtures("fake_load")
def test_a_damaged_registry(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("registry")
    checkpoints.unpack(fake_checkpoints.blob(0), folder / "base")
    plain = {"schema": 1, "current": 1, "last": 3, "promoted": [1]}
    text = json.dumps(data.draw(changed(plain) | scalars)).encode("utf-8", "surrogatepass")
    (folder / "current.json").write_bytes(data.draw(st.just(text) | damaged(text)))
    registry = one_line(lambda: Registry(folder, folder / "base"))
    if registry is not None:
        one_line(registry.versions)
        one_line(registry.blob)
        one_line(lambda: registry.promote(1))
    assert {path.name for path in Path(folder).iterdir()} <= {"base", "current.json"}
