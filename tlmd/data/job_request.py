"""All that a user may say of a job, described once.

The flags of the command line, the keywords in Python, the body of ``POST /v1/jobs`` with its
errors, the stored specification, the help texts and the reference in the guide come from the fields
of `JobRequest`. An option more is one field here, and its use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from tlmd.data.model_spec import ModelSpec
from tlmd.data.option import Group, Option, duration, whole

if TYPE_CHECKING:
    from tlmd.data.config import TuneConfig

EFFORTS = {"instant": 0, "quick": 4, "normal": 16, "thorough": 64}
"""Measurements per task of each effort; 0: the model is compiled without measuring."""

Priority = Annotated[int, Field(ge=-100, le=100)]
Weight = Annotated[float, Field(ge=0.01, le=100)]

_MOST_TRIALS, _LONGEST_S = 10**9, 1e9


class JobRequest(ModelSpec):
    """A job as a user describes it. Raises `BadInput` with the field that is wrong.

    Example: ``JobRequest("resnet18", trials=16)``.
    """

    target: Annotated[str, Option("model")] = Field(
        "native",
        description="'native', 'cuda', 'slot:NAME' of a cluster, or a TVM target as JSON",
    )
    trials: Annotated[StrictInt | None, Option("job", read=whole)] = Field(
        None,
        ge=0,
        le=_MOST_TRIALS,
        description="measurements per task (default 16; for a corpus no limit; 0: none, see "
        "`tlmd compile`)",
    )
    effort: Annotated[Literal["instant", "quick", "normal", "thorough"] | None, Option("job")] = (
        Field(
            None,
            description="instead of trials: "
            + ", ".join(f"{name} {trials}" for name, trials in EFFORTS.items())
            + " per task",
        )
    )
    time_budget: Annotated[
        StrictFloat | StrictInt | None, Option("job", metavar="10m", read=duration)
    ] = Field(None, gt=0, le=_LONGEST_S, description="stop measuring after this time (seconds)")
    priority: Annotated[Priority | None, Option("job", read=int)] = Field(
        None, strict=True, description="jobs of a higher one come first (default 0)"
    )
    weight: Annotated[Weight | None, Option("job", read=float)] = Field(
        None, strict=True, description="share among the jobs of one priority (default 1)"
    )
    wait_for_hardware: Annotated[StrictBool, Option("submit")] = Field(
        False,
        description="take the job even if no slot of the cluster has its target, and wait for one",
    )
    corpus: Annotated[str, Option("train")] = Field(
        "",
        description="'paper' (networks), 'synthetic' (single operators), 'seldom' (other "
        "operators, most of kinds that networks have seldom) or a file of tasks",
    )
    until_converged: Annotated[StrictBool, Option("train")] = Field(
        False, description="end when gains are small"
    )
    cwd: Annotated[str, Option("client")] = Field(
        "/", description="the user's working directory, from which a factory is imported"
    )
    tasks: Annotated[str, Option("client")] = Field(
        "", description="file with the tasks of a model that was lowered already"
    )

    if TYPE_CHECKING:  # mypy's plugin writes another signature for a class of its own fields

        def __init__(
            self, name: str | None = None, input_shapes: Any = None, /, **options: Any
        ) -> None: ...

    @model_validator(mode="after")
    def _check_job(self) -> Self:
        if bool(self.name) == bool(self.corpus):
            raise ValueError("a job needs either a model or a corpus")
        if self.effort is not None and self.trials is not None:
            raise ValueError("--trials and --effort both say how much to measure; give one of them")
        try:
            "".join(v for v in self.__dict__.values() if isinstance(v, str)).encode()
        except UnicodeEncodeError:
            raise ValueError("a job has a text that is not UTF-8") from None
        return self

    @classmethod
    def keywords(cls) -> dict[str, str]:
        """The name of the field for each keyword in Python."""
        options = cls.options(*get_args(Group))
        return {option.keyword or name: name for name, _, option in options}

    @classmethod
    def from_keywords(cls, model: str, keywords: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """The request that a call in Python describes, and the keywords that are no fields."""
        names = cls.keywords()
        given = {names[key]: value for key, value in keywords.items() if key in names}
        others = {key: value for key, value in keywords.items() if key not in names}
        return cls(**{"name": str(model), **given}), others

    @property
    def model_spec(self) -> ModelSpec:
        """The model with everything that loading it depends on."""
        return ModelSpec(**{name: getattr(self, name) for name in ModelSpec.model_fields})

    def with_defaults(self, tune: TuneConfig) -> Self:
        """The request with a value for each number that it leaves open."""
        trials = self.trials if self.effort is None else EFFORTS[self.effort]
        if trials is None:
            trials = 0 if self.corpus else tune.trials
        values = {
            "trials": trials,
            "effort": None,
            "priority": tune.priority if self.priority is None else self.priority,
            "weight": tune.weight if self.weight is None else self.weight,
        }
        return self.model_copy(update=values)

    def document(self) -> dict[str, Any]:
        """The body of ``POST /v1/jobs``: only what differs from the defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
