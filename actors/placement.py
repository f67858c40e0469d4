"""The actors that there should be, on which node, with which cores; and those of the pool."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import yaml  # type: ignore[import-untyped]
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster_head import DAEMON
from actors.host import actor_class
from actors.session import Settings
from tlmd.data.errors import ClusterLost
from tlmd.measure.cores.core_plan import CARD, plan_slots
from tlmd.pipeline.orders import Order, WorkerKind

MEASURE = "measure"  # nodes offer slots as the resource "measure" or "measure:NAME"
_DESCRIPTION = Path("~/ray_bootstrap_config.yaml")  # where `ray up` puts it on the head
_SPARE_CORES = 4  # cores that no slot owns, per generator


@dataclass(frozen=True)
class ActorSpec:
    """An actor that should run."""

    name: str
    kind: WorkerKind
    node: str
    """Ray's id of its node; empty: any node."""
    local: bool
    """On the daemon's node."""
    index: int = 0
    count: int = 1
    """Slots of the node that time on CPUs, of which this is number ``index``, or its cards."""
    resource: str = ""
    optional: bool = False
    """It may be missing: its node may never come back, and measuring needs no trainer."""
    gpus: float = 0
    """Cards that Ray gives to it; a fraction shares one."""


@dataclass
class Member:
    """An actor of the worker pool."""

    spec: ActorSpec
    life: int
    """A number that no other actor has, also not one of the same name."""
    handle: Any
    since: float
    joined: bool = False
    pid: int = 0
    """0: it has not joined."""
    in_flight: list[Order] = field(default_factory=list)


def actor_specs(settings: Settings) -> list[ActorSpec]:
    """All actors that should run on the nodes that are alive. Raises `ClusterLost`."""
    head = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not any(node["NodeID"] == head for node in nodes):
        raise ClusterLost("Ray's own processes have died; `tlmd start` goes on")
    slots = [
        spec
        for node in nodes
        for spec in _slots(settings, node["NodeID"], node["Resources"], node["NodeID"] == head)
    ]
    left = _cards_left(nodes, slots)
    trainer = []
    if settings.config.train.enabled:
        node = _best_nodes(nodes, "train", head, settings)[0]
        gpus = min(left[node], 1)
        left[node] -= gpus
        kind = WorkerKind.TRAINER
        trainer = [ActorSpec("trainer", kind, node, node == head, optional=True, gpus=gpus)]
    count = settings.config.daemon.generators or _generators(settings)
    spread = _best_nodes(nodes, "generate", head, settings)
    each = -(-count // len(spread))
    generators = []
    for i in range(count):
        node = spread[i % len(spread)]
        share = 1 / each if left[node] >= 1 else 0.0  # of one card
        kind = WorkerKind.GENERATOR
        generators.append(ActorSpec(f"generator-{i}", kind, node, node == head, gpus=share))
    registry = ActorSpec("registry", WorkerKind.REGISTRY, head, True)
    return [registry, *generators, *slots, *trainer]  # a generator takes longest to start


def _cards_left(nodes: list[dict[str, Any]], slots: list[ActorSpec]) -> Counter[str]:
    """Cards of each node that no slot times on: other work on a card would disturb its times."""
    left = Counter({n["NodeID"]: int(n["Resources"].get("GPU", 0)) for n in nodes})
    for spec in slots:
        left[spec.node] -= int(spec.gpus)
    return left


def described(path: Path = _DESCRIPTION) -> frozenset[str]:
    """The resources of slots that a cluster of `ray up` is to have; none for any other cluster."""
    try:
        types = yaml.safe_load(path.expanduser().read_text())["available_node_types"]
        resources = [t.get("resources", {}) for t in types.values() if t.get("max_workers")]
    except (OSError, ValueError, yaml.YAMLError, KeyError, AttributeError, TypeError):
        return frozenset()
    return frozenset(r for of in resources for r in of if str(r).partition(":")[0] == MEASURE)


def _slots(
    settings: Settings, node: str, resources: dict[str, float], local: bool
) -> list[ActorSpec]:
    slots: list[str] = []
    cards: list[str] = []
    for resource, amount in sorted(resources.items()):
        if resource.partition(":")[0] == MEASURE:
            kind = cards if _target(settings, resource) == CARD else slots
            kind += [resource] * int(amount)
    name = "slot" if local else f"slot-{node[:6]}"
    count = max(1, len(slots))

    def spec(label: str, index: int, resource: str, gpus: int) -> ActorSpec:
        made = f"{name}-{label}{index}"
        kind = WorkerKind.MEASURER
        return ActorSpec(made, kind, node, local, index, count, resource, not local, gpus)

    return [
        *(spec("", i, resource, 0) for i, resource in enumerate(slots)),
        *(spec("card-", i, resource, 1) for i, resource in enumerate(cards)),
    ]


def _target(settings: Settings, resource: str) -> str:
    """The target of a slot with this resource."""
    name = resource.partition(":")[2]
    return settings.config.measure.targets.get(name, CARD if name == CARD else "native")


def _best_nodes(
    nodes: list[dict[str, Any]], wanted: str, head: str, settings: Settings
) -> list[str]:
    """Nodes with the resource `wanted`, else nodes without slots, else the head."""
    offering = [n["NodeID"] for n in nodes if n["Resources"].get(wanted)]
    without = [n["NodeID"] for n in nodes if not any(r.startswith(MEASURE) for r in n["Resources"])]
    return sorted(offering) or sorted(without, key=lambda n: n != head) or [head]


def _generators(settings: Settings) -> int:
    """One generator keeps a slot or two busy; more where there are cores for them."""
    if not settings.is_local:
        return max(1, int(ray.cluster_resources().get("generate", 1)))
    layout = plan_slots(settings.config.measure.slots, set(settings.cores), settings.run_cores)[0]
    return max(1, len(layout.build) // _SPARE_CORES)


def create(spec: ActorSpec, settings: Settings, registry: Any) -> Any:
    """Start an actor; its handle. Raises `ValueError` while its name is taken."""
    options: dict[str, Any] = {}
    if spec.node:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(spec.node, soft=False)
    if spec.kind is WorkerKind.REGISTRY and not settings.is_local:
        options["name"] = DAEMON
    if spec.resource:
        options["resources"] = {spec.resource: 1}
    if spec.gpus:
        options["num_gpus"] = spec.gpus
    path, arguments = _class_and_arguments(spec, settings, registry)
    made = actor_class(orders=4 if spec.kind is WorkerKind.MEASURER else 1)
    is_slot = spec.kind is WorkerKind.MEASURER
    turns_with = "" if is_slot else settings.slot_folder(spec.local)
    return made.options(**options).remote(path, arguments, turns_with)


def _class_and_arguments(
    spec: ActorSpec, settings: Settings, registry: Any
) -> tuple[str, tuple[Any, ...]]:
    """The class of an actor, and the arguments of its constructor."""
    config = settings.config
    if spec.kind is WorkerKind.MEASURER:
        cache = settings.slot_folder(spec.local)
        own = settings.cores if settings.is_local else frozenset()
        measure = config.measure.model_dump()
        target = _target(settings, spec.resource)
        return settings.slot_class, (measure, spec.index, spec.count, cache, own, target)
    if spec.kind is WorkerKind.REGISTRY:
        directory = str(settings.state_dir / "checkpoints")
        return "actors.registry:RegistryActor", (
            directory,
            settings.base,
            config.registry.model_dump(),
        )
    seed = config.tune.seed + spec.index
    if spec.kind is WorkerKind.GENERATOR:
        return settings.generator_class, (registry, config.generate.model_dump(), seed)
    return "actors.trainer:TrainerActor", (registry, config.train.model_dump(), seed)
