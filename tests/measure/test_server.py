"""The measuring server with real processes and real programs, most of them malicious."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.support.traps import (
    CONFIG,
    TARGET,
    TRAPS,
    VECTOR,
    N,
    gemm_trial,
    healthy,
    outcome_of,
    outcomes_of,
    put_reference,
    random_traces,
    scratch_module,
    trial,
    vector_module,
    where_module,
)
from tlmd.data.types import MeasureInput, Status, Task
from tlmd.measure.cores.core_plan import plan_cores
from tlmd.measure.measurer import Measurer
from tlmd.measure.server.verify import ReferenceStore, make_input
from tlmd.space.hardware.target import resolve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")


def test_a_right_program_is_timed_and_verified(measurer: Measurer, cache: Path) -> None:
    name = "right"
    put_reference(cache, name, make_input(name, 0, VECTOR, positive=False) + 1)
    outcome = outcome_of(measurer, healthy(name))
    assert outcome.status is Status.OK, outcome
    assert outcome.verified and outcome.max_abs_err == 0
    assert len(outcome.samples) == CONFIG.repeats
    assert 0 < outcome.low <= outcome.seconds <= outcome.high < 1e-3
    assert 0.2 < outcome.drift < 5
    spent = asdict(outcome.timing)
    assert spent["build"] > 0.001 and spent["run"] > 0.001
    assert all(seconds > 0 for seconds in spent.values()), "every stage is timed"


def test_a_server_keeps_what_its_slot_takes_when_quiet(measurer: Measurer, cache: Path) -> None:
    assert outcome_of(measurer, healthy()).drift > 0
    kept = {file.name: float(file.read_text()) for file in cache.glob("quiet-*")}
    assert len(kept) == 2 and all(TARGET.fingerprint in name for name in kept)
    assert all(0 < seconds < 1 for seconds in kept.values())


@pytest.mark.slow
def test_each_trap_costs_one_candidate_and_says_what_it_was(
    measurer: Measurer, capfd: pytest.CaptureFixture[str]
) -> None:
    trials = []
    for name, (value, _, _) in TRAPS.items():
        trials += [trial(name, vector_module(value)), healthy()]
    for one, outcome in zip(trials, outcomes_of(measurer, trials), strict=True):
        name = one.task.name
        if name == "healthy":
            assert outcome.status is Status.OK and outcome.verified, outcome
            continue
        _, status, words = TRAPS[name]
        assert outcome.status is status, (name, outcome)
        assert words in outcome.detail, (name, outcome)
        assert outcome.seconds == float("inf")
    said = capfd.readouterr()
    assert "egmentation" not in said.out + said.err and "!!!" not in said.out + said.err


@pytest.mark.parametrize("elements", [1 << 29, 1 << 38])
def test_running_out_of_memory(measurer: Measurer, elements: int) -> None:
    outcome = outcome_of(measurer, trial(f"memory{elements}", scratch_module(elements)))
    assert outcome.status is Status.OUT_OF_MEMORY, outcome
    assert outcome_of(measurer, healthy()).ok


def test_inputs_too_large_for_the_memory_limit(measurer: Measurer) -> None:
    module = vector_module("A[v]").replace(str(N), str(1 << 29))
    assert outcome_of(measurer, trial("inputs", module)).status is Status.OUT_OF_MEMORY


def test_wrong_and_missing_outputs(measurer: Measurer, cache: Path) -> None:
    values = {n: make_input(n, 0, VECTOR, positive=False) + 1 for n in ("wrong", "half")}
    for name, value in values.items():
        put_reference(cache, name, value)
    wrong = outcome_of(measurer, trial("wrong", vector_module("A[v] + T.float32(1.001)")))
    assert wrong.status is Status.WRONG_OUTPUT and not wrong.verified
    assert wrong.max_abs_err == pytest.approx(1e-3, rel=0.1)
    half = outcome_of(measurer, trial("half", vector_module("A[v] + T.float32(1)", N // 2)))
    assert half.status is Status.WRONG_OUTPUT, "what was not written is poison"


def test_positive_inputs_where_signed_ones_give_nan(measurer: Measurer, cache: Path) -> None:
    outcome = outcome_of(measurer, trial("root", vector_module("T.sqrt(A[v])")))
    assert outcome.verified
    reference = ReferenceStore(cache).get("root")
    assert reference is not None and reference.positive
    assert np.isfinite(reference.outputs[0]).all()


def test_a_trace_that_cannot_be_applied_is_invalid(measurer: Measurer) -> None:
    trace = json.dumps([[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []])
    assert outcome_of(measurer, trial("healthy", healthy().task.module, trace)).status is (
        Status.INVALID
    )


def test_a_module_that_is_none_is_a_build_error(measurer: Measurer) -> None:
    outcome = outcome_of(measurer, trial("garbage", '{"not": "a module"}'))
    assert outcome.status is Status.BUILD_ERROR and "module" in outcome.detail


def test_random_schedules_of_a_gemm(measurer: Measurer) -> None:
    base = gemm_trial("gemm")
    baseline = measurer.baseline(base.task)
    assert baseline.fingerprint == TARGET.fingerprint
    trials = [gemm_trial("gemm", trace) for trace in random_traces(base.task.module, 6)]
    outcomes = outcomes_of(measurer, trials)
    assert all(o.ok and o.verified for o in outcomes), outcomes
    assert min(o.seconds for o in outcomes) < baseline.seconds


def test_slow_candidates_stop_early(measurer: Measurer) -> None:
    # Far enough from what any machine takes: what happens in between is for `test_measure_timing`.
    slow = outcome_of(measurer, gemm_trial("gemm", incumbent_s=1e-7))
    assert slow.ok and len(slow.samples) <= 3 and not slow.verified
    fast = outcome_of(measurer, gemm_trial("gemm", incumbent_s=1.0))
    assert len(fast.samples) == CONFIG.repeats and fast.verified


def test_finalists_are_timed_in_interleaved_rounds(measurer: Measurer) -> None:
    task = gemm_trial("final").task
    measurer.baseline(task)
    trials = [gemm_trial("final", trace) for trace in random_traces(task.module, 4)]
    outcomes = outcomes_of(measurer, trials)
    assert all(o.verified for o in outcomes)
    seconds = [o.seconds for o in outcomes]
    finalists = [(task, trials[seconds.index(pick(seconds))].input) for pick in (min, max)]
    first, last = sorted(measurer.compare(finalists), key=lambda outcome: outcome.seconds)
    assert first.compared and last.compared and first.low <= first.seconds <= first.high
    assert len(first.samples) >= len(last.samples) >= 5
    wrong = MeasureInput("wrong", json.dumps([[["GetSBlock", [], ["nowhere", "main"], ["b"]]], []]))
    assert measurer.compare([(task, wrong), (task, wrong)]) == ()
    with pytest.raises(ValueError, match="two finalists"):
        measurer.compare(finalists[:1])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.slow
def test_a_slot_of_two_cores_runs_on_exactly_these(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    layout = plan_cores(set(cpus), run=2)
    if len(layout.run) < 2:
        pytest.skip("the two are threads of one core")
    # The thread that computes element i writes the CPU it is on.
    target = resolve("native", 2)
    task = Task("where", "where", 1, float(N), where_module(), target)
    assert json.loads(target.spec)["num-cores"] == 2
    with Measurer(layout, tmp_path, CONFIG.model_copy(update={"builders": 3})) as one:
        assert one.baseline(task).seconds > 0
    reference = ReferenceStore(tmp_path).get("where")
    assert reference is not None
    assert set(reference.outputs[0].tolist()) == set(map(float, layout.run))


@pytest.mark.slow
def test_a_candidate_that_dies_while_it_is_timed_leaves_nobody_stopped(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    deaths = [name for name, (_, status, _) in TRAPS.items() if status is Status.CRASH]
    assert deaths
    with Measurer(plan_cores({cpu}), tmp_path, CONFIG.model_copy(update={"builders": 3})) as one:
        assert one.cores.shared
        for name in deaths:
            trials = [healthy(), trial(name, vector_module(TRAPS[name][0])), healthy(), healthy()]
            outcomes = outcomes_of(one, trials)
            assert [o.status for o in outcomes] == [Status.OK, Status.CRASH, Status.OK, Status.OK]


@pytest.mark.slow
def test_a_submission_can_be_cancelled_until_the_server_has_it(measurer: Measurer) -> None:
    futures = [measurer.submit(one.task, one.input) for one in [healthy() for _ in range(50)]]
    futures[0].result()
    cancelled = [future for future in futures[measurer.builders + 1 :] if future.cancel()]
    assert len(cancelled) > 30
    assert all(f.result().ok for f in futures if not f.cancelled())
    assert outcome_of(measurer, healthy()).ok
