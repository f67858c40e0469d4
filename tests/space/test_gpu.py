"""Tasks for CUDA without a card: their spaces, their limits, and that the programs compile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.common.setting import tasks
from tests.support import endtoend
from tests.system.card_daemon import CARD
from tlmd.data.computation import FactorLimit, MemoryLimit
from tlmd.data.config import SHIPPED
from tlmd.data.errors import BadInput
from tlmd.data.types import Candidate, Task
from tlmd.generate.generator import Generator
from tlmd.generate.limits import repaired
from tlmd.generate.refine import moved
from tlmd.language.sentence import decode, encode
from tlmd.language.uniform import draw_uniform
from tlmd.space import gpu_default
from tlmd.space.hardware.target import resolve, tvm_target
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.tlm import checkpoint

TASKS = tasks(CARD)
GEMM, CONVOLUTION, SOFTMAX, DEPTHWISE = TASKS


@pytest.fixture(scope="module")
def spaces() -> dict[str, TaskSpace]:
    return {task.name: TaskSpace(task) for task in TASKS}


def test_a_card_is_a_target_of_its_own() -> None:
    assert (CARD.device, CARD.isa, CARD.vector_bits, CARD.l2_bytes) == (
        "cuda",
        "sm_80",
        1024,
        40 << 20,
    )
    assert resolve(CARD.spec) == CARD
    other = resolve(CARD.spec.replace("a card", "another card"))
    assert other.fingerprint != CARD.fingerprint


@pytest.mark.skipif(tvm.cuda(0).exist, reason="there is a card")
def test_without_a_card_its_target_is_refused() -> None:
    with pytest.raises(BadInput, match="no CUDA card that TVM can use"):
        resolve("cuda")


def test_the_limits_of_a_gemm(spaces: dict[str, TaskSpace]) -> None:
    sketch = spaces[GEMM.name].sketches[0]
    virtual, threads, memory = sketch.limits
    assert virtual == FactorLimit(((0, 1), (1, 1)), 1, 8)
    assert threads == FactorLimit(((0, 2), (1, 2)), 32, 1024)
    assert isinstance(memory, MemoryLimit) and memory.high == 49152
    # 128 x 64 and 64 x 96 floats.
    tiles = [[1, 1, 16, 8, 1], [8, 1, 16, 6, 1], [12, 8, 8]]
    size = sum(buffer.nbytes(tiles) for buffer in memory.buffers)
    assert size == 4 * (128 * 64 + 64 * 96)
    assert threads.allows(tiles) and not memory.allows(tiles)
    tiles[2] = [24, 4, 8]
    assert memory.allows(tiles)


def test_software_pipelining_needs_several_times_the_memory(spaces: dict[str, TaskSpace]) -> None:
    limits = [sketch.limits[-1] for sketch in spaces[GEMM.name].sketches]
    assert [getattr(limit, "high", 0) for limit in limits] == [49152, 49152 // 3, 49152 // 4]


def test_a_pipelined_loop_needs_two_turns(spaces: dict[str, TaskSpace]) -> None:
    space, rng = spaces[DEPTHWISE.name], random.Random(0)
    sums = [i for i, one in enumerate(space.sketches[1].open_decisions) if one.arity == 3]
    outermost = tuple((i, 0) for i in sums)
    limits = [[x for x in s.limits if isinstance(x, FactorLimit)][2:] for s in space.sketches]
    assert [[(x.factors, x.low) for x in found] for found in limits] == [
        [],
        [(outermost, 2)],
        [(outermost, 2)],
    ]
    for sketch in space.sketches[1:]:
        for _ in range(8):
            drawn = draw_uniform(rng, DEPTHWISE.id, [sketch], space.quick_locations)
            whole = [(1, 1, 3) if i in sums else d for i, d in enumerate(drawn.decisions)]
            decisions = repaired(rng, sketch, whole)
            assert decisions is not None
            space.finish(Candidate(DEPTHWISE.id, sketch.index, decisions))


def test_a_cpu_has_no_limits() -> None:
    for task in tasks(resolve("native", 1)):
        assert not any(sketch.limits for sketch in TaskSpace(task).sketches)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), index=st.integers(0, len(TASKS) - 1))
def test_repaired_decisions_keep_to_the_limits_and_to_the_language(
    spaces: dict[str, TaskSpace], seed: int, index: int
) -> None:
    task = TASKS[index]
    space, rng = spaces[task.name], random.Random(seed)
    drawn = draw_uniform(rng, task.id, space.sketches, space.quick_locations)
    sketch = space.sketches[drawn.sketch]
    decisions = repaired(rng, sketch, drawn.decisions)
    if sketch.allows(drawn.decisions):
        assert decisions == drawn.decisions
    if decisions is not None:
        candidate = Candidate(task.id, drawn.sketch, decisions)
        assert sketch.allows(decisions)
        assert decode(space.sketches, encode(sketch, candidate), task.id) == candidate
        neighbour = moved(rng, sketch, candidate, space.quick_locations)
        assert neighbour is None or sketch.allows(neighbour.decisions)


@pytest.mark.parametrize("task", [GEMM, CONVOLUTION], ids=lambda task: task.name)
def test_tvm_accepts_what_keeps_to_the_limits(spaces: dict[str, TaskSpace], task: Task) -> None:
    space, rng = spaces[task.name], random.Random(0)
    accepted = 0
    for _ in range(16):
        drawn = draw_uniform(rng, task.id, space.sketches, space.quick_locations)
        decisions = repaired(rng, space.sketches[drawn.sketch], drawn.decisions)
        assert decisions is not None
        try:
            space.finish(Candidate(task.id, drawn.sketch, decisions))
            accepted += 1
        except InvalidCandidate as error:
            assert "VerifyGPUCode" in str(error)
    assert accepted >= 14


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.slow
def test_written_programs_and_those_without_a_search_compile(
    spaces: dict[str, TaskSpace], task: Task
) -> None:
    generator = Generator(checkpoint.load(SHIPPED), seed=0)
    proposals, _ = generator.write(task, 2, [])
    assert len(proposals) == 2
    module = tvm.ir.load_json(task.module)
    schedules = [spaces[task.name].finish(proposal.candidate).mod for proposal in proposals]
    for program in [*schedules, gpu_default.scheduled(module, tvm_target(CARD))]:
        source = tvm.compile(program, tvm_target(CARD)).mod.imports[0].inspect_source()
        assert "__global__" in source and "threadIdx.x" in source


@pytest.mark.slow
def test_a_job_for_a_card_from_end_to_end(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.system.card_daemon",
        str(tmp_path / "state"),
        endtoend.MODEL,
        "3",
    ]
    done = subprocess.run(
        command, cwd=endtoend.ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["state"] == "done" and found["devices"] == ["cuda"], found
    assert found["tasks"] >= 3 and found["statuses"]["ok"] >= found["tasks"], found
    assert set(found["statuses"]) <= {"ok", "invalid"}
    assert found["statuses"].get("invalid", 0) <= found["statuses"]["ok"] / 4, found
