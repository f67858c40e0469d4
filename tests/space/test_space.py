"""What is decided is what TVM applies; nothing is repaired silently."""

from __future__ import annotations

import json
from random import Random

import pytest
import tvm
import tvm_ffi

from tests.support import modules
from tlmd.data.computation import DecisionKind
from tlmd.data.types import Candidate, Task
from tlmd.space import apply_trace, features, locations
from tlmd.space.hardware.target import resolve, tvm_target
from tlmd.space.space import InvalidCandidate, RepairedDecision, TaskSpace, module_hash

TASKS = [modules.gemm(), modules.convolution(), modules.softmax(), modules.elementwise()]


@pytest.fixture(scope="module", params=TASKS, ids=lambda t: t.name)
def space(request: pytest.FixtureRequest) -> TaskSpace:
    return TaskSpace(request.param)


@pytest.mark.slow
def test_random_candidates_are_applied_as_decided(space: TaskSpace) -> None:
    rng = Random(1)
    target = tvm_target(space.task.target)
    for _ in range(40):
        candidate = space.random(rng)
        final = space.finish(candidate).mod
        again = apply_trace.build_module(space.module, space.trace_json(candidate), target)
        assert tvm_ffi.structural_equal(final, again)
        assert module_hash(final) == module_hash(again)


@pytest.mark.slow
def test_locations_are_those_tvm_does_not_snap(space: TaskSpace) -> None:
    rng = Random(2)
    for _ in range(30):
        candidate = space.random(rng)
        open_decisions = space.sketches[candidate.sketch].open_decisions
        for index, open_decision in enumerate(open_decisions):
            if open_decision.kind is DecisionKind.LOCATION:
                legal = space.locations(candidate.sketch, candidate.decisions[:index])
                assert candidate.decisions[index][0] in legal
                assert legal == space._probe(candidate.sketch, candidate.decisions[:index])


def test_quick_locations_are_legal_and_ask_tvm_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locations, "_PROBES", 3)
    space, rng, asked = TaskSpace(modules.softmax()), Random(4), 0
    for _ in range(60):
        candidate = space.random(rng)
        for index, one in enumerate(space.sketches[candidate.sketch].open_decisions):
            if one.kind is DecisionKind.LOCATION:
                before = candidate.decisions[:index]
                quick, asked = space.quick_locations(candidate.sketch, before), asked + 1
                assert quick in ((-1,), space._probe(candidate.sketch, before))
    assert asked > 60 and space._locations._probed == 3


def test_sketches_are_the_same_in_every_space(space: TaskSpace) -> None:
    assert TaskSpace(space.task).sketches == space.sketches


def test_a_repaired_decision_is_refused() -> None:
    space = TaskSpace(modules.gemm())
    rng = Random(3)
    good = space.random(rng)
    tile = next(i for i, s in enumerate(space.sketches[good.sketch].open_decisions) if s.extent)
    decisions = list(good.decisions)
    decisions[tile] = (1, 5, 7, 11)  # no divisors: TVM would take the whole rest instead
    with pytest.raises(RepairedDecision):
        space.schedule(Candidate(good.task_id, good.sketch, tuple(decisions)))


def test_a_broken_trace_is_an_invalid_candidate() -> None:
    module = tvm.ir.load_json(modules.gemm().module)
    trace = json.dumps([[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []])
    with pytest.raises(InvalidCandidate):
        apply_trace.build_module(module, trace, tvm_target(modules.native()))


def test_parallel_extent_zero_leaves_the_loops_serial() -> None:
    space = TaskSpace(modules.elementwise())
    texts = {}
    for extent in (0, 1):
        decisions = tuple(
            (extent,) if s.kind is DecisionKind.PARALLEL else (0,)
            for s in space.sketches[0].open_decisions
        )
        texts[extent] = space.finish(Candidate("add", 0, decisions)).mod.script()
    assert "T.parallel" not in texts[0] and "T.parallel" in texts[1]


def test_features_tell_programs_apart() -> None:
    space, rng = TaskSpace(modules.gemm()), Random(4)
    rows = features.FeatureExtractor(space.task.target).rows(
        [space.finish(space.random(rng)) for _ in range(8)]
    )
    assert rows.shape == (8, features.WIDTH)
    assert len({row.tobytes() for row in rows}) > 1


def test_description_sees_structure_not_names() -> None:
    first, second = modules.gemm(name="x"), modules.gemm(name="y")
    assert TaskSpace(first).computation == TaskSpace(second).computation
    blocks = TaskSpace(first).computation.blocks
    assert blocks[0].iters == (("S", 64), ("S", 96), ("R", 128))
    assert blocks[0].reads[1].dims == (((2, 1),), ((1, 1),))
    assert blocks[1].reads[0].source == 0


def test_native_target_and_bad_ones() -> None:
    info = resolve("native", 2)
    assert info.cores == 2 and info.fingerprint == resolve("native", 2).fingerprint
    assert info.fingerprint != resolve("native", 1).fingerprint
    from tlmd.data.errors import BadInput

    for spec in ("toaster", '{"kind":"zz"}', "{broken", '{"kind":"llvm","mcpu":"nope"}'):
        with pytest.raises(BadInput) as caught:
            resolve(spec)
        assert "\n" not in str(caught.value)


def test_tasks_cross_processes() -> None:
    from tlmd.data import wire

    for task in TASKS:
        assert wire.unpack(Task, wire.pack(task)) == task
