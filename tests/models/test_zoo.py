"""The zoo at the command line, and its tasks through space, language and model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.support import modules
from tlmd.data import wire
from tlmd.data.types import Task
from tlmd.language.prompt import MAX_PROMPT, prompt
from tlmd.language.sentence import decode, encode, layout
from tlmd.lowering import lowering
from tlmd.models import frontends
from tlmd.models.zoo.catalogue import zoo
from tlmd.space.space import TaskSpace
from tlmd.tlm import network
from tlmd.tlm.network import POSITIONS
from tlmd.tlm.sampling import Sampler, SampleRequest

# Every distinct task of every network of the zoo, written by `python -m tests.models.zoo_tasks`.
FIXTURE = Path(__file__).parent / "zoo_tasks.msgpack.z"
PROGRAMS = 5000
PER_OPERATOR = 2


def fixture_tasks() -> list[Task]:
    tasks = wire.unpack(list[Task], zlib.decompress(FIXTURE.read_bytes()))
    return [Task(t.id, t.name, t.weight, t.flops, t.module, modules.native()) for t in tasks]


def test_the_zoo_is_listed_without_loading_anything_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tlmd.cli", "zoo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    listed = {e["name"]: e for e in json.loads(done.stdout)}
    assert {"resnet50", "bert-base", "llama", "dcgan"} <= set(listed)
    assert listed["resnet18"]["input_shape"] == [1, 3, 224, 224]
    assert not {" torch", " tvm"} & {line.rpartition("|")[2] for line in done.stderr.splitlines()}


@pytest.mark.parametrize("name", ["bert-tiny", "gemm-int8", "dcgan"])
@pytest.mark.slow
def test_the_number_of_tasks_is_what_the_zoo_says(name: str) -> None:
    from tlmd.space.hardware.target import tvm_target

    target = modules.native()
    lowered = lowering.lower(frontends.load_model(name).module, tvm_target(target))
    assert len(lowering.extract(lowered, target)) == zoo()[name].tasks


def operator(task: Task) -> str:
    """The first operator of a task, which says what family it is of: ``conv2d``."""
    name = task.name.partition("/")[2].removeprefix("fused_")
    return re.match(r"[a-z]+(?:2d|3d)?(?:_transpose)?", name)[0]  # type: ignore[index]


def sampled(tasks: list[Task]) -> list[Task]:
    """Some tasks of each operator and at least one of each network, by a fixed seed."""
    mixed = Random(5).sample(tasks, len(tasks))
    seen: Counter[str] = Counter()
    chosen = []
    for task in mixed:
        names = operator(task), task.name.partition("/")[0]
        if seen[names[0]] < PER_OPERATOR or not seen[names[1]]:
            seen.update(names)
            chosen.append(task)
    return chosen


def test_the_sample_has_every_operator_and_every_network() -> None:
    tasks = fixture_tasks()
    some = sampled(tasks)
    assert 30 < len(some) < len(tasks) / 8
    assert {operator(t) for t in some} == {operator(t) for t in tasks}
    assert {t.name.partition("/")[0] for t in some} == {t.name.partition("/")[0] for t in tasks}
    operators = {operator(task) for task in some}
    assert {"conv2d", "conv3d", "matmul", "layer", "attention"} <= operators


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_sampled_is_what_tvm_applies_over_the_whole_zoo(full: bool) -> None:
    """Every sketch of some zoo tasks (``--full``: of all): exact round trips, all applied as said.

    Half of the candidates are TVM's own random programs, half are written by a TLM under the mask.
    """
    tasks = fixture_tasks()
    assert len(tasks) > 400
    per_task = -(-PROGRAMS // (2 * len(tasks)))
    if not full:
        tasks = sampled(tasks)
    sampler, rng = Sampler(network.create("nano"), seed=0), Random(0)
    programs = 0
    for task in tasks:
        space = TaskSpace(task)
        words = tuple(prompt(space.computation, task.target, space.sketches))
        longest = max(layout(s).length for s in space.sketches)
        assert len(words) <= MAX_PROMPT + 1 and len(words) + longest <= POSITIONS
        drawn = [space.random(rng, i % len(space.sketches)) for i in range(per_task)]
        drawn += [space.random(rng, i) for i in range(per_task, len(space.sketches))]
        asked = SampleRequest(task.id, words, space.sketches, space.locations, per_task)
        written = [s.candidate for s in sampler.sample(asked)]
        for candidate in drawn + written:
            space.schedule(candidate)  # raises where TVM applied anything else
            tokens = encode(space.sketches[candidate.sketch], candidate)
            assert decode(space.sketches, tokens, task.id) == candidate
        programs += len(drawn) + len(written)
    assert programs >= (PROGRAMS if full else 2 * per_task * len(tasks))


# Parameters as published (torchvision, timm); those of ViT without the classifier.
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnext50": 25_028_904,
    "wide-resnet50": 68_883_240,
    "densenet121": 7_978_856,
    "vgg16": 138_357_544,
    "mobilenet-v2": 3_504_872,
    "mobilenet-v3": 5_483_032,
    "vit-s16": 21_665_664,
    "vit-b16": 85_798_656,
}


@pytest.mark.parametrize("name", zoo())
def test_every_network_can_be_built_and_has_an_output(name: str) -> None:
    import torch

    with torch.device("meta"), torch.no_grad():  # shapes only: no memory, no arithmetic
        module, example = zoo()[name].make(None)
        output = module.eval()(*example)
    assert output.shape[0] == example[0].shape[0]
    count = sum(parameter.numel() for parameter in module.parameters())
    assert PARAMETERS.get(name, count) == count
