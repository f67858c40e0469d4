"""A target that no slot can run is refused in one line, and which ones are waited for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import tlmd
from actors import placement, session
from tests.actors import test_cluster_yaml
from tests.support import endtoend
from tests.support.simulated import TARGET, task
from tests.system.card_daemon import CARD
from tlmd.daemon.extraction_requests import ExtractionRequests, Slots
from tlmd.daemon.job_documents import make_spec
from tlmd.data import config
from tlmd.data.errors import BadInput
from tlmd.data.types import TargetInfo
from tlmd.measure.cores.core_plan import CoreLayout, card_cores
from tlmd.pipeline.orders import Worker, WorkerKind
from tlmd.records.task_file import save_tasks
from tlmd.space.hardware import host_cpu
from tlmd.space.hardware import target as targets

_NARROW = replace(TARGET, spec='{"kind":"llvm","mcpu":"x86-64-v3"}', fingerprint="narrow")
_WIDE = replace(TARGET, spec='{"kind":"llvm","mcpu":"znver5"}', isa="avx512", fingerprint="wide")


def slot(name: str, target: TargetInfo) -> Worker:
    resource = f"measure:{name}" if name else "measure"
    return Worker(name, WorkerKind.MEASURER, local=False, target=target, resource=resource)


class Nodes:
    """The slots of a cluster; each look at them may make a further one join."""

    def __init__(
        self, *joined: Worker, offered: set[str] | None = None, is_local: bool = False
    ) -> None:
        self.joined, self.later = list(joined), list[Worker]()
        self.stages: list[str] = []
        self._offered = {s.resource for s in joined} if offered is None else offered
        self.requests = ExtractionRequests(Path("/"), 1, self._look, is_local, lambda: False)

    def _look(self) -> Slots:
        found = list(self.joined)
        if self.stages:
            self.joined += self.later
        return found, frozenset(self._offered | {s.resource for s in found})

    def target_of(self, target: str, **request: Any) -> TargetInfo | None:
        spec = make_spec({"model": "m", "target": target, **request})
        return self.requests.of(spec, self.stages.append).slot


BOTH = slot("narrow", _NARROW), slot("wide", _WIDE)


def test_a_job_gets_the_slot_that_it_names() -> None:
    nodes = Nodes(*BOTH)
    assert nodes.target_of("native") is _NARROW
    assert nodes.target_of("slot:wide") is _WIDE
    assert nodes.target_of('{"kind":"llvm","mcpu":"znver5"}') is _WIDE


@pytest.mark.parametrize("target", ["slot:gpu", '{"kind":"cuda"}', '{"mcpu":"x86-64-v4"}'])
def test_a_target_that_no_slot_has_is_refused_with_what_there_is(target: str) -> None:
    with pytest.raises(BadInput) as caught:
        Nodes(*BOTH).target_of(target)
    line = str(caught.value)
    assert repr(target) in line and "\n" not in line
    assert "slot:narrow (x86-64-v3 avx2), slot:wide (znver5 avx512)" in line
    assert "--wait-for-hardware" in line


def test_a_cluster_without_slots_has_no_target() -> None:
    with pytest.raises(BadInput, match="there are no slots"):
        Nodes().target_of("native")
    with pytest.raises(BadInput, match="use the target 'native'"):
        Nodes(*BOTH).target_of("rocm")


def test_a_card_is_a_slot_of_its_own() -> None:
    card = slot("cuda", CARD)
    nodes = Nodes(card, *BOTH)
    assert nodes.target_of("native") is _NARROW
    for target in ("cuda", "slot:cuda", '{"kind":"cuda","arch":"sm_80"}'):
        assert nodes.target_of(target) is CARD
    here = Nodes(slot("", TARGET), card, is_local=True)
    assert here.target_of("native") is None and here.target_of("cuda") is CARD
    with pytest.raises(BadInput, match=r"no slot can run the target 'cuda'.*measure\.cards"):
        Nodes(slot("", TARGET), is_local=True).target_of("cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_local_slot_accepts_what_its_device_can_run(device: str) -> None:
    local = replace(slot("", TARGET if device == "cpu" else CARD), local=True)
    other = replace(TARGET, spec="{}", fingerprint="another CPU")
    assert local.accepts(CARD) is (device == "cuda")
    assert local.accepts(TARGET) is local.accepts(other) is (device == "cpu")


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": True, "Resources": resources}


def test_cards_go_to_slots_first_then_to_training_then_to_writing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def specs(nodes: list[dict[str, Any]], **flags: Any) -> dict[str, placement.ActorSpec]:
        monkeypatch.setattr(ray, "nodes", lambda: nodes)
        context = SimpleNamespace(get_node_id=lambda: "head")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        loaded = config.load(flags={"daemon.generators": 2, **flags})
        settings = session.Settings(loaded, tmp_path, "auto")
        return {spec.name: spec for spec in placement.actor_specs(settings)}

    one = specs([node("head", measure=2, GPU=1, **{"measure:cuda": 1})])
    assert one["slot-card-0"].gpus == 1 and one["slot-card-0"].resource == "measure:cuda"
    assert [one[f"slot-{i}"].gpus for i in range(2)] == [0, 0]
    assert (one["slot-0"].index, one["slot-1"].index, one["slot-1"].count) == (0, 1, 2)
    assert one["trainer"].gpus == one["generator-0"].gpus == 0
    three = specs([node("head", GPU=3, **{"measure:lab": 1})], **{"measure.targets.lab": "cuda"})
    assert three["slot-card-0"].gpus == three["trainer"].gpus == 1
    assert [three[f"generator-{i}"].gpus for i in range(2)] == [0.5, 0.5]


def test_a_private_instance_offers_the_cards_that_it_is_told(tmp_path: Path) -> None:
    with_cards = config.load(flags={"measure.cards": 2})
    offered = session.Settings(with_cards, tmp_path).offered
    assert offered == {"measure": 1, "measure:cuda": 2}
    assert session.Settings(config.load(), tmp_path).offered == {"measure": 1}


def test_a_card_is_served_by_cores_on_which_no_slot_times() -> None:
    assert card_cores({3, 5}, 0) == CoreLayout((3,), (3, 5))
    assert card_cores({3, 5}, 3) == CoreLayout((5,), (3, 5))


@pytest.mark.parametrize("target", ["slot:gpu", '{"mcpu":"x86-64-v4"}'])
def test_a_kind_that_will_come_or_is_away_is_waited_for(target: str) -> None:
    info = replace(_WIDE, spec='{"kind":"llvm","mcpu":"x86-64-v4"}', fingerprint="gpu")
    nodes = Nodes(*BOTH, offered={"measure:gpu"})
    nodes.later = [slot("gpu", info)]
    assert nodes.target_of(target) is info
    assert "waiting for a slot" in nodes.stages[0]


def test_a_user_may_wait_for_hardware_that_nobody_has_promised() -> None:
    nodes = Nodes(*BOTH)
    nodes.later = [slot("gpu", replace(TARGET, fingerprint="gpu"))]
    found = nodes.target_of("slot:gpu", wait_for_hardware=True)
    assert found is not None and found.fingerprint == "gpu"


def test_tasks_of_other_hardware_are_refused_unless_a_slot_is_away() -> None:
    here, foreign = task("a", target=_NARROW), task("b", target=replace(_WIDE, fingerprint="x"))
    spec = make_spec({"corpus": "file"})
    patient = spec.request.model_copy(update={"wait_for_hardware": True})
    Nodes(*BOTH).requests.check_tasks(spec, [here])
    with pytest.raises(BadInput, match="can run tasks made on another machine"):
        Nodes(*BOTH).requests.check_tasks(spec, [here, foreign])
    Nodes(*BOTH, offered={"measure:gpu"}).requests.check_tasks(spec, [here, foreign])
    Nodes(*BOTH).requests.check_tasks(replace(spec, request=patient), [foreign])


def test_the_description_of_a_cluster_says_which_slots_will_come(tmp_path: Path) -> None:
    described = placement.described(test_cluster_yaml.ROOT / "ray_cluster.yaml")
    assert described == {"measure:x86", "measure:arm"}
    damaged = tmp_path / "x.yaml"
    for text in ("[1]", "available_node_types: [x]", "{", "available_node_types: {a: 3}"):
        damaged.write_text(text)
        assert placement.described(damaged) == frozenset()
    assert placement.described(tmp_path / "none") == frozenset()


def test_what_this_machine_cannot_run_is_known(tmp_path: Path) -> None:
    assert host_cpu.missing_for(targets.resolve("native")) == ""
    there = "riscv64-linux-gnu" if targets.architecture("") == "aarch64" else "aarch64-linux-gnu"
    for spec in (json.dumps({"kind": "llvm", "mtriple": there}), "nvidia/nvidia-a100"):
        with pytest.raises(BadInput, match=r"no slot can run programs for .*; this machine is"):
            host_cpu.check(targets.resolve(spec))


@pytest.mark.skipif(targets.architecture("") != "x86_64", reason="reads x86's flags")
def test_the_flags_of_the_cpu_decide(tmp_path: Path) -> None:
    flags = "avx avx2 bmi1 bmi2 f16c fma sse4_1 sse4_2"
    cpu = tmp_path / "cpuinfo"
    cpu.write_text(f"processor : 0\nflags\t\t: fpu {flags}\n")
    narrow, wide = (
        targets.resolve(json.dumps({"kind": "llvm", "mcpu": name}))
        for name in ("x86-64-v3", "x86-64-v4")
    )
    assert host_cpu.missing_for(narrow, cpu) == ""
    assert "avx512f" in host_cpu.missing_for(wide, cpu)
    cpu.write_text(f"flags : {flags} avx512bw avx512cd avx512dq avx512f avx512vl\n")
    assert host_cpu.missing_for(wide, cpu) == ""
    cpu.write_text("nothing that is known\n")
    assert host_cpu.missing_for(wide, cpu) == ""


def test_a_task_of_another_machine_is_measured_as_one_of_this() -> None:
    foreign = task("a", target=replace(_NARROW, spec='{"kind":"llvm"}', fingerprint="there"))
    own = host_cpu.of_this_machine(foreign)
    assert own.target == targets.resolve('{"kind":"llvm"}') and own.target.fingerprint != "there"
    assert replace(own, target=foreign.target) == foreign


@pytest.mark.slow
def test_a_daemon_refuses_what_its_machine_cannot_run(daemon: tlmd.Daemon, tmp_path: Path) -> None:
    there = json.dumps({"kind": "llvm", "mtriple": "riscv64-linux-gnu"})
    state = daemon.state_dir
    done = endtoend.run(
        "submit", endtoend.FOURTH, "--target", there, "--state-dir", state, timeout=120
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no slot can run programs for" in line and "riscv64" in line
    path = tmp_path / "foreign.tasks"
    save_tasks(path, [task("a", target=replace(TARGET, spec=there, arch="riscv64"))])
    job = daemon.submit(corpus=str(path), trials=2)
    with pytest.raises(tlmd.data.errors.Failed, match="no slot can run programs for"):
        job.wait(timeout=120)
