"""A job is described once: flags, keywords, HTTP bodies, stored jobs and help have its fields."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tlmd
from tlmd.client.commands.arguments import job_request, parse
from tlmd.client.commands.table import COMMANDS
from tlmd.daemon.job_documents import make_spec
from tlmd.data import wire
from tlmd.data.config import TuneConfig
from tlmd.data.errors import BadInput
from tlmd.data.job_request import JobRequest
from tlmd.data.model_spec import ModelSpec
from tlmd.data.types import JobState
from tlmd.records import job_specs
from tlmd.records.store import RecordStore

# A value of each field that is not the default, as a user gives it as a flag, in Python, by HTTP.
GIVEN: dict[str, tuple[list[str], Any, Any]] = {
    "name": (["resnet18"], "resnet18", "resnet18"),
    "input_shapes": (["--input-shape", "4,8", "--input-shape", "2"], [(4, 8), (2,)], [[4, 8], [2]]),
    "task": (["--task", "fill-mask"], "fill-mask", "fill-mask"),
    "weights": (["--weights", "/w.safetensors"], "/w.safetensors", "/w.safetensors"),
    "random_weights": (["--random-weights"], True, True),
    "strict_numerics": (["--strict-numerics"], True, True),
    "precision": (["--precision", "bf16"], "bf16", "bf16"),
    "target": (["--target", "slot:arm"], "slot:arm", "slot:arm"),
    "trials": (["--trials", "5"], 5, 5),
    "effort": (["--effort", "quick"], "quick", "quick"),
    "time_budget": (["--time-budget", "2m"], 120.0, 120),
    "priority": (["--priority", "-3"], -3, -3),
    "weight": (["--weight", "2.5"], 2.5, 2.5),
    "wait_for_hardware": (["--wait-for-hardware"], True, True),
}


def request(**fields: Any) -> JobRequest:
    return JobRequest(**({"name": "resnet18"} | fields))


def test_every_field_of_a_job_that_tunes_is_tried_here() -> None:
    assert {name for name, _, _ in JobRequest.options("model", "job", "submit")} == set(GIVEN)


@pytest.mark.parametrize("field", GIVEN)
def test_a_field_is_a_flag_a_keyword_and_a_part_of_a_body(field: str) -> None:
    flags, keyword, body = GIVEN[field]
    said = ["submit", *flags] if field == "name" else ["submit", "resnet18", *flags]
    by_flag = job_request(parse(said))
    name = next(word for word, there in JobRequest.keywords().items() if there == field)
    model = {} if field == "name" else {name: keyword}
    by_keyword, others = JobRequest.from_keywords("resnet18", model)
    alias = JobRequest.model_fields[field].alias or field
    by_http = make_spec({"model": "resnet18", alias: body}).request
    assert others == {} and by_flag == by_keyword
    assert by_flag.with_defaults(TuneConfig()) == by_http
    assert getattr(by_flag, field) != JobRequest.model_fields[field].default


@pytest.mark.parametrize("command", ["tune", "check", "submit", "train"])
def test_help_describes_every_field(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([command, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    (groups,) = (c.groups for c in COMMANDS if c.name == command)
    for name, field, option in JobRequest.options(*groups):
        flag = option.metavar if option.positional else (option.keyword or name).replace("_", "-")
        assert field.description and str(flag) in printed


def test_check_and_tune_take_the_same_options_in_python() -> None:
    for function in (tlmd.tune, tlmd.check):
        assert inspect.signature(function).parameters["options"].kind.name == "VAR_KEYWORD"
    with pytest.raises(BadInput, match="strict numerics allow fp32 only"):
        tlmd.check("resnet18", precision="bf16", strict_numerics=True)
    with pytest.raises(BadInput, match="unknown configuration key 'trails'"):
        tlmd.check("resnet18", trails=3)


_fields = {
    "model": st.just("m"),
    "trials": st.none() | st.integers(1, 10**9),
    "time_budget": st.none() | st.floats(0.1, 1e9),
    "weight": st.none() | st.floats(0.01, 100),
    "input_shapes": st.none()
    | st.lists(st.lists(st.integers(1, 2**31), min_size=1, max_size=4), min_size=1, max_size=3),
    "precision": st.sampled_from(["fp32", "bf16", "int8"]),
    "target": st.text(st.characters(exclude_categories=["Cs"])),
}


@given(st.fixed_dictionaries(_fields))
def test_a_job_comes_back_from_the_wire_and_from_http(document: dict[str, Any]) -> None:
    spec = make_spec(document)
    assert wire.unpack(job_specs.JobSpec, wire.pack(spec)) == spec
    assert make_spec(spec.request.document()).request == spec.request
    assert wire.unpack(ModelSpec, wire.pack(spec.model_spec)) == spec.request.model_spec


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"trials": "x"}, "trials must be a valid integer, not 'x'"),
        ({"trials": -1}, "trials must be greater than or equal to 0, not -1"),
        ({"trials": 4, "effort": "quick"}, "--trials and --effort both say how much"),
        ({"precision": "fp8"}, "precision must be 'fp32', 'bf16' or 'int8', not 'fp8'"),
        ({"weight": float("nan")}, "weight must be"),
        ({"input_shapes": [[1, 0]]}, "input_shapes must be greater than or equal to 1"),
        ({"corpus": "paper"}, "either a model or a corpus"),
        ({"colour": 1}, "unknown field 'colour' of a job; known: corpus, cwd"),
        ({"target": "\ud800"}, "not UTF-8"),
    ],
)
def test_a_mistake_is_one_line_with_the_field(bad: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as error:
        request(**bad)
    assert text in str(error.value) and len(str(error.value).splitlines()) == 1


def test_jobs_that_0_1_stored_are_read(tmp_path: Path) -> None:
    old = ["j-1", "m", [[1, 8]], "native", 16, 60.0, "", False, "/home", "/t.tasks", 5.0, "why"]
    rest = [7.0, "fill-mask", "/w", False, 3.5, {"done": 1}, 2, 0.5, True, "bf16"]
    with RecordStore(tmp_path / "records.sqlite") as store:
        for count in (0, 6, len(rest)):  # shorter lists are of still older versions
            store.put_job("j-1", str(JobState.DONE), msgpack.packb(old + rest[:count]))
            ((spec, state),) = job_specs.newest(store, 10)
            assert (spec.id, spec.request.name, spec.tasks, state) == (
                "j-1",
                "m",
                "/t.tasks",
                "done",
            )
            assert spec.request.input_shapes == ((1, 8),) and spec.reason == "why"
    assert (spec.progress, spec.spent_s, spec.ended) == ({"done": 1}, 3.5, 7.0)
    wanted = request(name="m", precision="bf16", priority=2, weight=0.5, task="fill-mask")
    assert spec.request == wanted.model_copy(
        update={
            "input_shapes": ((1, 8),),
            "trials": 16,
            "time_budget": 60.0,
            "weights": "/w",
            "cwd": "/home",
            "wait_for_hardware": True,
        }
    )
