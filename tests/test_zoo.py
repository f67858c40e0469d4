"""The zoo at the command line, and its tasks through space, language and model."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random

import pytest

from tests import modules
from tlmd import wire
from tlmd.language.prompt import MAX_PROMPT, prompt
from tlmd.language.sentence import decode, encode, layout
from tlmd.model import network
from tlmd.model.network import POSITIONS
from tlmd.model.sampling import Request, Sampler
from tlmd.space.space import TaskSpace
from tlmd.types import Task
from tlmd.workloads import frontends, lowering
from tlmd.workloads.zoo import zoo

# Every distinct task of every network of the zoo, written by `python -m tests.zoo_tasks`.
FIXTURE = Path(__file__).parent / "data" / "zoo_tasks.msgpack.z"
PROGRAMS = 5000


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
def test_the_number_of_tasks_is_what_the_zoo_says(name: str) -> None:
    from tlmd.space.target import tvm_target

    target = modules.native()
    lowered = lowering.lower(frontends.load_model(name).module, tvm_target(target))
    assert len(lowering.extract(lowered, target)) == zoo()[name].tasks


@pytest.mark.timeout(900)
def test_what_is_sampled_is_what_tvm_applies_over_the_whole_zoo() -> None:
    """Every sketch of every zoo task: exact round trips, and 100 % of the samples applied as said.

    Half of the candidates are TVM's own random programs, half are written by a TLM under the mask.
    """
    tasks = fixture_tasks()
    assert len(tasks) > 400
    sampler, rng = Sampler(network.create("nano"), seed=0), Random(0)
    programs = 0
    per_task = -(-PROGRAMS // (2 * len(tasks)))
    for task in tasks:
        space = TaskSpace(task)
        words = tuple(prompt(space.computation, task.target, space.sketches))
        longest = max(layout(s).length for s in space.sketches)
        assert len(words) <= MAX_PROMPT + 1 and len(words) + longest <= POSITIONS
        drawn = [space.random(rng, i % len(space.sketches)) for i in range(per_task)]
        drawn += [space.random(rng, i) for i in range(per_task, len(space.sketches))]
        asked = Request(task.id, words, space.sketches, space.locations, per_task)
        written = [s.candidate for s in sampler.sample(asked)]
        for candidate in drawn + written:
            space.schedule(candidate)  # raises where TVM applied anything else
            tokens = encode(space.sketches[candidate.sketch], candidate)
            assert decode(space.sketches, tokens, task.id) == candidate
        programs += len(drawn) + len(written)
    assert programs >= PROGRAMS
