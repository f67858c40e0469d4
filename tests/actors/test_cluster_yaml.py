"""`ray_cluster.yaml`: Ray takes it, and it describes what tlmd needs of a cluster."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
DESCRIPTION: dict[str, Any] = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text())
NODE_TYPES: dict[str, dict[str, Any]] = DESCRIPTION["available_node_types"]

# Reads descriptions as JSON, writes for each what `ray up` would refuse it for. In a process of its
# own, because importing ray fixes how it behaves for all other tests.
CHECK = """
import json, sys
from ray.autoscaler._private.util import prepare_config, validate_config

def check(description):
    try:
        validate_config(prepare_config(description))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

answers = [check(description) for description in json.load(sys.stdin)]
print("ANSWERS" + json.dumps(answers))
"""


def refusals(descriptions: list[dict[str, Any]]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        input=json.dumps(descriptions),
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout.partition("ANSWERS")[2])
    return answers


def edited(*path: str, value: Any) -> dict[str, Any]:
    description = copy.deepcopy(DESCRIPTION)
    inner = description
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return description


def slots(node_type: dict[str, Any]) -> dict[str, Any]:
    return {r: n for r, n in node_type["resources"].items() if r.partition(":")[0] == "measure"}


def test_ray_takes_it_and_refuses_mistakes() -> None:
    measuring = "tlmd.measure.x86"
    whole, *mistaken = refusals(
        [
            DESCRIPTION,
            edited("max_wokers", value=5),
            edited("available_node_types", measuring, "min_worker", value=1),
            edited("available_node_types", measuring, "resources", "measure:x86", value=0.5),
            edited("head_node_type", value="tlmd.head"),
            edited("max_workers", value=1),
        ]
    )
    assert whole == ""
    assert all(mistaken), mistaken
    assert "max_wokers" in mistaken[0] and "min_worker" in mistaken[1]


def test_all_nodes_may_run_at_once() -> None:
    workers = [
        t["max_workers"] for n, t in NODE_TYPES.items() if n != DESCRIPTION["head_node_type"]
    ]
    assert sum(workers) == DESCRIPTION["max_workers"]


def test_two_kinds_measure_and_their_slots_can_be_counted() -> None:
    measuring = [t for t in NODE_TYPES.values() if slots(t)]
    assert {r for t in measuring for r in slots(t)} == {"measure:x86", "measure:arm"}
    for node_type in measuring:
        (count,) = slots(node_type).values()
        assert isinstance(count, int)
        # Half of the cores time: more slots than that would share cores.
        assert 1 <= count <= node_type["resources"]["CPU"] // 2
        assert not {"train", "generate", "control"} & node_type["resources"].keys()


def test_one_gpu_trains_and_the_head_measures_nothing() -> None:
    (trainer,) = [t for t in NODE_TYPES.values() if t["resources"].get("GPU")]
    assert trainer["resources"]["GPU"] == trainer["resources"]["train"] == 1
    assert trainer["max_workers"] == 1 and trainer["resources"]["generate"] >= 1
    head = NODE_TYPES[DESCRIPTION["head_node_type"]]
    assert head["resources"]["control"] == 1 and not slots(head)


@pytest.mark.parametrize("name", NODE_TYPES)
def test_the_image_is_for_the_processor(name: str) -> None:
    node = NODE_TYPES[name]["node_config"]
    family = node["InstanceType"].split(".")[0]
    graviton = "g" in family.lstrip("abcdefghijklmnopqrstuvwxyz")  # c7g is one, g6 is none
    assert ("arm64" in node["ImageId"]) == graviton
    assert NODE_TYPES[name]["resources"].keys() >= ({"measure:arm"} if graviton else set())


def test_tlmd_is_installed_from_this_checkout() -> None:
    mounts = DESCRIPTION["file_mounts"]
    for remote, local in mounts.items():
        if local.startswith("./"):
            assert (ROOT / local).exists() and remote == f"~/tlmd/{local[2:]}"
    project = {local for local in mounts.values() if local.startswith("./")}
    assert {"./tlmd", "./actors", "./pyproject.toml", "./README.md"} <= project
    assert any('"$HOME/tlmd[' in command for command in DESCRIPTION["setup_commands"])


@pytest.mark.parametrize("key", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_ray_starts_guarded_and_at_normal_priority(key: str) -> None:
    command = DESCRIPTION[key][-1]
    for setting in ("RAY_AUTH_MODE=token", "RAY_worker_niceness=0", "RAY_USAGE_STATS_ENABLED=0"):
        assert setting in command.partition("ray start")[0]
    assert "~/.ray/auth_token" in DESCRIPTION["file_mounts"]
    assert "--dashboard-host=0.0.0.0" not in command
