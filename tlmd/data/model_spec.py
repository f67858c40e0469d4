"""How a user names a model, with all options of a model. Each is described once, as a field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from tlmd.data.errors import BadInput
from tlmd.data.option import Option, shape

FP32, BF16, INT8 = PRECISIONS = ("fp32", "bf16", "int8")
Precision = Literal["fp32", "bf16", "int8"]

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of a model's inputs."""

_Size = Annotated[StrictInt, Field(ge=1, le=2**31)]


def as_shapes(given: Any) -> Any:
    """One shape, or one shape per input, as a tuple of shapes."""
    if isinstance(given, list | tuple) and given and isinstance(given[0], int):
        return (tuple(given),)
    return given


class ModelSpec(BaseModel):
    """A model as a user names it, with everything that loading it depends on.

    The model is loaded in several processes: to lower it, and again to time the original. All of
    them get the whole spec, so a new option of a frontend is one more field here.

    Example: ``ModelSpec("resnet18", ((4, 3, 224, 224),))``. Raises `BadInput`.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_by_alias=True, validate_by_name=True
    )

    name: Annotated[str, Option("model", metavar="MODEL", positional=True)] = Field(
        "",
        alias="model",
        description="a file .onnx or .pt2, a directory of transformers, package.module:factory, "
        "torchvision:NAME, timm:NAME, hf:MODEL_TYPE or a name of the zoo",
    )
    input_shapes: Annotated[
        tuple[Annotated[tuple[_Size, ...], Field(min_length=1)], ...] | None,
        Field(min_length=1),
        BeforeValidator(as_shapes),
        Option("model", "input_shape", metavar="1,3,224,224", read=shape, repeats=True),
    ] = Field(
        None,
        description="input shape; once per input; once more per input for each further set of "
        "shapes (default: the model's own)",
    )
    task: Annotated[str, Option("model")] = Field(
        "",
        alias="model_task",
        description="what a model of transformers is for, if its config says nothing",
    )
    weights: Annotated[str, Option("model", metavar="FILE")] = Field(
        "", description=".safetensors weights for a factory's model"
    )
    random_weights: Annotated[StrictBool, Option("model")] = Field(
        False,
        description="random weights for a directory of transformers, instead of those in it",
    )
    strict_numerics: Annotated[StrictBool, Option("model")] = Field(
        False,
        description="only programs that compute as the model says: no Winograd, no Strassen, and "
        "no products of bfloat16 parts by a matrix unit",
    )
    precision: Annotated[Precision, Option("model")] = Field(
        "fp32",
        description="bf16: GEMMs, convolutions and attention may round what they multiply; int8: "
        "quantised models (QDQ) multiply integers",
    )

    def __init__(
        self, name: str | None = None, input_shapes: Any = None, /, **options: Any
    ) -> None:
        given = {"model": name, "input_shapes": input_shapes} | options
        try:
            super().__init__(**{key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            raise BadInput(_explained(error, type(self))) from error

    @model_validator(mode="after")
    def _check_numerics(self) -> Self:
        if self.strict_numerics and self.precision != FP32:
            raise ValueError(f"strict numerics allow {FP32} only; leave out one of the two options")
        if self.weights and self.random_weights:
            raise ValueError("weights are either those of a file or random; leave one of them out")
        return self

    @classmethod
    def options(cls, *groups: str) -> Iterator[tuple[str, Any, Option]]:
        """Name, description by pydantic and `Option` of each field of some groups."""
        for name, field in cls.model_fields.items():
            for option in field.metadata:
                if isinstance(option, Option) and option.group in groups:
                    yield name, field, option


def _explained(error: ValidationError, cls: type[ModelSpec]) -> str:
    """One line about the first field that is wrong."""
    first = error.errors()[0]
    field, shown = str(next(iter(first["loc"]), "")), ascii(first["input"])[:100]
    if first["type"] == "extra_forbidden":
        names = sorted(field.alias or name for name, field in cls.model_fields.items())
        return f"unknown field {ascii(field)[:100]} of a job; known: {', '.join(names)}"
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    text = first["msg"].replace("Input should be", "must be").replace("Input should", "must")
    return f"{field} {text}, not {shown}"
