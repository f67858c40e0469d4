"""The measuring server with real processes and real programs, most of them malicious.

A trap is a task whose program misbehaves by itself (it calls into libc), measured with an empty
trace; nothing in the production code knows about it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tvm

from tlmd.measure.client import Job, Measurer
from tlmd.measure.cores import plan_cores
from tlmd.measure.protocol import Limits, Work
from tlmd.measure.verify import Argument, ReferenceStore, make_input
from tlmd.space.target import resolve
from tlmd.types import Candidate, Outcome, Status, Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

EMPTY = "[[],[]]"
N = 128
VECTOR = Argument((N,), "float32", reads=True, writes=False)
TARGET = resolve("native", 1)
LIMITS = Limits(build_s=20, run_s=2, baseline_s=2, budget_s=1, memory_bytes=1 << 30)


def vector_module(value: str, extent: int = N) -> str:
    """C[i] = value for i < extent, as JSON; `value` may use A[i]."""
    # The script parser wants the source of the function, so it gets a text.
    source = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({N},), "float32"), C: T.Buffer(({N},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in range({extent}):
        with T.sblock("C"):
            v = T.axis.spatial({extent}, i)
            T.reads(A[v])
            T.writes(C[v])
            C[v] = {value}
"""
    return as_json(source)


def as_json(source: str) -> str:
    from tvm.script import from_source, tirx

    return str(tvm.ir.save_json(tvm.IRModule({"main": from_source(source, {"T": tirx})})))


def scratch_module(elements: int) -> str:
    """C = A by way of a scratch buffer of so many floats."""
    return as_json(f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({N},), "float32"), C: T.Buffer(({N},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        B = T.sblock_alloc_buffer(({elements},), "float32")
        for i in range({elements}):
            with T.sblock("B"):
                v = T.axis.spatial({elements}, i)
                B[v] = A[v % {N}]
        for i in range({N}):
            with T.sblock("C"):
                v = T.axis.spatial({N}, i)
                C[v] = B[v * {elements // N}]
""")


def where_module() -> str:
    """C[i] = the CPU that computes it, in parallel."""
    return as_json(f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({N},), "float32"), C: T.Buffer(({N},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in T.parallel({N}):
        with T.sblock("C"):
            v = T.axis.spatial({N}, i)
            T.reads(A[v])
            T.writes(C[v])
            C[v] = T.Cast("float32", T.call_extern("int32", "sched_getcpu"))
""")


def job(name: str, module: str, trace: str = EMPTY, incumbent_s: float | None = None) -> Job:
    task = Task(name, name, 1, float(N), module, TARGET)
    return Job(task, Candidate(name, 0, ()), trace, incumbent_s)


def healthy(name: str = "healthy") -> Job:
    return job(name, vector_module("A[v] + T.float32(1)"))


def gemm_job(name: str, trace: str = EMPTY, incumbent_s: float | None = None) -> Job:
    from tvm import te

    a, b = (te.placeholder((96, 96), name=n) for n in "ab")
    k = te.reduce_axis((0, 96), name="k")
    c = te.compute((96, 96), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    module = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    return job(name, str(tvm.ir.save_json(module)), trace, incumbent_s)


def random_traces(module_json: str, count: int) -> list[str]:
    from tlmd.space.schedule import context
    from tlmd.space.target import tvm_target

    module = tvm.ir.load_json(module_json)
    sketch = context(tvm_target(TARGET), module).generate_design_space()[0]
    texts = []
    for seed in range(1, count + 1):
        schedule = tvm.s_tir.Schedule(module, seed=seed)
        trace = tvm.s_tir.Trace(sketch.trace.insts, {})
        trace.apply_to_schedule(schedule, remove_postproc=True)
        texts.append(json.dumps(plain(schedule.trace.as_json())))
    return texts


def plain(value: object) -> object:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "value"):
        return value.value
    return [plain(item) for item in value]  # type: ignore[attr-defined]


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(condition: object, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("measure")


@pytest.fixture(scope="module")
def measurer(cache: Path) -> Iterator[Measurer]:
    with Measurer(TARGET, plan_cores(), cache, LIMITS, lend=True) as one:
        yield one


def outcome_of(measurer: Measurer, one: Job) -> Outcome:
    (((_, outcome),)) = list(measurer.measure([one]))
    return outcome


def put_reference(cache: Path, name: str, output: np.ndarray) -> None:
    ReferenceStore(cache).put(name, [output.astype(np.float32)], positive=False)


def test_a_right_program_is_timed_and_verified(measurer: Measurer, cache: Path) -> None:
    name = "right"
    put_reference(cache, name, make_input(name, 0, VECTOR, positive=False) + 1)
    outcome = outcome_of(measurer, healthy(name))
    assert outcome.status is Status.OK, outcome
    assert outcome.verified and outcome.max_abs_err == 0
    assert len(outcome.samples) == LIMITS.repeats
    assert 0 < outcome.low <= outcome.seconds <= outcome.high < 1e-3
    assert 0.2 < outcome.drift < 5
    spent = asdict(outcome.timing)
    assert spent["build"] > 0.001 and spent["run"] > 0.001
    assert all(seconds > 0 for seconds in spent.values()), "every stage is timed"


TRAPS = {
    "abort": ('T.call_extern("float32", "abort")', Status.CRASH, "SIGABRT (6)"),
    "segfault": (
        'A[v] + T.Cast("float32", T.call_extern("int32", "atoi", T.int64(8)))',
        Status.CRASH,
        "SIGSEGV (11)",
    ),
    "hang": ('T.Cast("float32", T.call_extern("int32", "pause"))', Status.TIMEOUT, "running"),
    "killed": (
        'T.Cast("float32", T.call_extern("int32", "raise", 9))',
        Status.OUT_OF_MEMORY,
        "killed by the system",
    ),
    "exit": (
        'T.Cast("float32", T.call_extern("int32", "_exit", 3))',
        Status.RUN_ERROR,
        "exited with 3",
    ),
    "symbol": (
        'T.Cast("float32", T.call_extern("int32", "no_such_symbol_anywhere"))',
        Status.BUILD_ERROR,
        "no_such_symbol_anywhere",
    ),
}


def test_each_trap_costs_one_candidate_and_says_what_it_was(
    measurer: Measurer, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = []
    for name, (value, _, _) in TRAPS.items():
        jobs += [job(name, vector_module(value)), healthy()]
    results = [(one.task.name, outcome) for one, outcome in measurer.measure(jobs)]
    assert len(results) == len(jobs)
    for name, outcome in results:
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
    outcome = outcome_of(measurer, job(f"memory{elements}", scratch_module(elements)))
    assert outcome.status is Status.OUT_OF_MEMORY, outcome
    assert outcome_of(measurer, healthy()).ok


def test_inputs_too_large_for_the_memory_limit(measurer: Measurer) -> None:
    module = vector_module("A[v]").replace(str(N), str(1 << 29))
    assert outcome_of(measurer, job("inputs", module)).status is Status.OUT_OF_MEMORY


def test_wrong_and_missing_outputs(measurer: Measurer, cache: Path) -> None:
    values = {n: make_input(n, 0, VECTOR, positive=False) + 1 for n in ("wrong", "half")}
    for name, value in values.items():
        put_reference(cache, name, value)
    wrong = outcome_of(measurer, job("wrong", vector_module("A[v] + T.float32(1.001)")))
    assert wrong.status is Status.WRONG_OUTPUT and not wrong.verified
    assert wrong.max_abs_err == pytest.approx(1e-3, rel=0.1)
    half = outcome_of(measurer, job("half", vector_module("A[v] + T.float32(1)", N // 2)))
    assert half.status is Status.WRONG_OUTPUT, "what was not written is poison"


def test_positive_inputs_where_signed_ones_give_nan(measurer: Measurer, cache: Path) -> None:
    outcome = outcome_of(measurer, job("root", vector_module("T.sqrt(A[v])")))
    assert outcome.verified
    reference = ReferenceStore(cache).get("root")
    assert reference is not None and reference.positive
    assert np.isfinite(reference.outputs[0]).all()


def test_a_trace_that_cannot_be_applied_is_invalid(measurer: Measurer) -> None:
    trace = json.dumps([[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []])
    assert outcome_of(measurer, job("healthy", healthy().task.module, trace)).status is (
        Status.INVALID
    )


def test_a_module_that_is_none_is_a_build_error(measurer: Measurer) -> None:
    outcome = outcome_of(measurer, job("garbage", '{"not": "a module"}'))
    assert outcome.status is Status.BUILD_ERROR and "module" in outcome.detail


def test_random_schedules_of_a_gemm(measurer: Measurer) -> None:
    base = gemm_job("gemm")
    baseline = measurer.baseline(base.task)
    assert baseline.fingerprint == TARGET.fingerprint
    jobs = [gemm_job("gemm", trace) for trace in random_traces(base.task.module, 6)]
    outcomes = [outcome for _, outcome in measurer.measure(jobs)]
    assert all(o.ok and o.verified for o in outcomes), outcomes
    assert min(o.seconds for o in outcomes) < baseline.seconds


def test_slow_candidates_stop_early(measurer: Measurer) -> None:
    normal = outcome_of(measurer, gemm_job("gemm"))
    slow = outcome_of(measurer, gemm_job("gemm", incumbent_s=normal.seconds / 5))
    assert slow.ok and len(slow.samples) == 1 and not slow.verified
    fast = outcome_of(measurer, gemm_job("gemm", incumbent_s=normal.seconds * 5))
    assert len(fast.samples) == LIMITS.repeats and fast.verified
    equal = outcome_of(measurer, gemm_job("gemm", incumbent_s=normal.seconds))
    assert equal.ok and len(equal.samples) >= 1


def test_finalists_are_timed_in_interleaved_rounds(measurer: Measurer) -> None:
    from tests.test_measure_shared import jobs

    task = gemm_job("final").task
    measurer.baseline(task)
    found = sorted(measurer.measure(jobs(task, 4, 3)), key=lambda pair: pair[1].seconds)
    assert all(o.verified for _, o in found)
    racers = [found[0][0].candidate, found[-1][0].candidate]
    first, last = measurer.final(task, racers)
    assert first.raced and last.raced
    assert first.seconds <= last.seconds and first.low <= first.seconds <= first.high
    assert len(first.samples) >= len(last.samples) >= 5
    assert measurer.final(task, [Candidate(task.id, 99, ())] * 2) == ()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_slot_of_two_cores_runs_on_exactly_these(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    layout = plan_cores(set(cpus), run=2)
    if len(layout.run) < 2:
        pytest.skip("the two are threads of one core")
    # The thread that computes element i writes the CPU it is on.
    target = resolve("native", 2)
    task = Task("where", "where", 1, float(N), where_module(), target)
    assert json.loads(target.spec)["num-cores"] == 2
    with Measurer(target, layout, tmp_path, LIMITS, builders=3) as one:
        assert one.builders == 1, "building and timing take turns on the same cores"
        assert one.baseline(task).seconds > 0
    reference = ReferenceStore(tmp_path).get("where")
    assert reference is not None
    assert set(reference.outputs[0].tolist()) == set(map(float, layout.run))


def test_jobs_are_pulled_lazily_and_an_iterator_may_be_closed(measurer: Measurer) -> None:
    pulled = []

    def source() -> Iterator[Job]:
        for index in range(50):
            pulled.append(index)
            yield healthy()

    results = measurer.measure(source())
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(pulled) <= measurer.builders + 1
    assert outcome_of(measurer, healthy()).ok


def test_a_killed_server_is_replaced_and_no_job_is_lost(measurer: Measurer) -> None:
    jobs = [gemm_job("gemm") for _ in range(6)]
    results = measurer.measure(jobs)
    done = [next(results)[1]]
    old = measurer.server_pid
    assert old is not None
    orphans = children(old)
    os.kill(old, signal.SIGKILL)
    done += [outcome for _, outcome in results]
    assert len(done) == len(jobs) and all(o.ok for o in done)
    assert measurer.server_pid != old
    assert eventually(lambda: not any(map(alive, orphans)))


def test_a_job_that_kills_two_servers_fails_and_others_do_not(
    measurer: Measurer, cache: Path
) -> None:
    put_reference(cache, "killer", np.zeros(N))
    kill = 'T.Cast("float32", T.call_extern("int32", "kill", T.call_extern("int32", "getppid"), 9))'
    jobs = [healthy(), job("killer", vector_module(kill)), healthy(), healthy()]
    results = [(one.task.name, outcome) for one, outcome in measurer.measure(jobs)]
    assert len(results) == 4
    for name, outcome in results:
        assert outcome.status is (Status.CRASH if name == "killer" else Status.OK), outcome


def test_building_has_its_own_time_limit(cache: Path) -> None:
    limits = Limits(build_s=0.004, baseline_s=2, run_s=2)
    with Measurer(TARGET, plan_cores(), cache / "slow", limits, builders=1) as one:
        outcome = outcome_of(one, gemm_job("gemm"))
        assert outcome.status is Status.TIMEOUT and "building" in outcome.detail
        pids = [one.server_pid]
    assert not any(alive(pid) for pid in pids if pid)


def test_close_ends_hanging_children(tmp_path: Path) -> None:
    with Measurer(TARGET, plan_cores(), tmp_path, Limits(run_s=60), builders=2) as one:
        put_reference(tmp_path, "hang", np.zeros(N))
        hang = job("hang", vector_module(TRAPS["hang"][0]))
        ticket = one._submit(hang.task, Work(1, "hang", hang.trace, None))
        server = one.server_pid
        assert ticket and server
        assert eventually(lambda: len(children(server)) == 1)
        pids = [server, *children(server)]
    assert not any(map(alive, pids))


CLIENT = """
import sys, test_measure_server as t
from pathlib import Path
cache = Path(sys.argv[1])
t.put_reference(cache, "hang", t.np.zeros(t.N))
one = t.Measurer(t.TARGET, t.plan_cores(), cache, t.Limits(run_s=60))
hang = t.job("hang", t.vector_module(t.TRAPS["hang"][0]))
one._submit(hang.task, t.Work(1, "hang", hang.trace, None))
print(one.server_pid, flush=True)
one._pump()
"""


def test_nothing_survives_a_client_that_is_killed(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent)])
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as client:
        assert client.stdout is not None
        server = int(client.stdout.readline())
        assert eventually(lambda: len(children(server)) == 1)
        pids = [server, *children(server)]
        client.kill()
    assert eventually(lambda: not any(map(alive, pids)))
