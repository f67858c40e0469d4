"""The form of a loaded model. It is the same for all kinds of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tlmd.data.errors import BadInput
from tlmd.models.call_structure import CallStructure
from tlmd.models.structure import Node

if TYPE_CHECKING:
    from tvm.ir import IRModule

ReferenceFunction = Callable[..., list[np.ndarray]]


@dataclass(frozen=True)
class InputInfo:
    """One input of a model.

    Example: ``InputInfo("input_ids", (1, 128), "int64", low=0, high=30000)``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    low: int = 0
    """Lowest value of an integer input."""

    high: int = 2
    """Highest value of an integer input, plus one."""


@dataclass(frozen=True)
class SourceModel:
    """A loaded model."""

    name: str

    module: Any
    """The Relax module, with the function `main`. None: it was not imported into TVM."""

    inputs: tuple[InputInfo, ...]

    reference: ReferenceFunction | None
    """Runs the original model: it takes and returns flat lists of numpy arrays. None: it cannot be
    run."""

    call: CallStructure
    """How the original is called."""

    outputs: Node
    """The structure of the original's outputs."""

    example: tuple[np.ndarray, ...] = ()
    """The inputs that came with the model. Empty: it has none."""

    torch_module: Any = None
    """The original in PyTorch, with the inputs of `reference`. None: it is not of PyTorch."""

    notes: tuple[str, ...] = ()
    """What the user should know of how it was loaded, one line each."""

    def random_inputs(self, seed: int) -> list[np.ndarray]:
        """See `random_inputs`."""
        return random_inputs(self.inputs, seed)


class Original(Protocol):
    """A loaded model before its import into TVM."""

    def imported(self) -> SourceModel:
        """The model imported into TVM. Raises `NotImportable` if TVM cannot do that."""

    def unimported(self) -> SourceModel:
        """The model without a Relax module. Raises `BadInput` if it cannot be run at all."""


class WrongNumberOfShapes(BadInput):
    """There is not one shape for each of the `inputs` inputs of a model."""

    def __init__(self, name: str, inputs: int, shapes: int) -> None:
        noun = "input" if inputs == 1 else "inputs"
        super().__init__(
            f"{name} has {inputs} {noun} but {shapes} shapes were given; "
            "give --input-shape once per input, or once more per input for each further set"
        )
        self.inputs = inputs


def random_inputs(infos: Sequence[InputInfo], seed: int) -> list[np.ndarray]:
    """One array per input: normally distributed floats, or integers in the input's range."""
    generator = np.random.default_rng(seed)
    return [_random(info, generator) for info in infos]


def _random(info: InputInfo, generator: np.random.Generator) -> np.ndarray:
    dtype = numpy_dtype(info.dtype)
    if info.dtype == "object":  # texts, which have to be numbers for some models
        return generator.integers(0, 10, info.shape).astype(str).astype(object)
    if info.dtype == "bool":
        return generator.integers(0, 2, info.shape).astype(dtype)
    if info.dtype.startswith(("int", "uint")):
        return generator.integers(info.low, info.high, info.shape).astype(dtype)
    return generator.standard_normal(info.shape).astype(np.float32).astype(dtype)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a TVM dtype, including bfloat16 and the float8 types."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        short: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return short


def input_infos(
    name: str, module: IRModule, example: Sequence[Any], names: Sequence[str] = ()
) -> tuple[InputInfo, ...]:
    """The inputs of `main`. Raises `BadInput` if a dimension is open.

    `names` replace the names in the module.
    """
    from tvm import tirx

    infos = []
    for index, parameter in enumerate(module["main"].params):
        dims = list(parameter.ty.shape or ())
        dtype, label = str(parameter.ty.dtype), (names[index] if names else str(parameter.name))
        if not all(isinstance(dim, tirx.IntImm) for dim in dims):
            open_dims = ",".join(str(dim) for dim in dims)
            raise BadInput(
                f"{name}: input {label} has open dimensions ({open_dims}); "
                "give --input-shape with numbers"
            )
        value = example[index] if index < len(example) else None
        infos.append(tensor_info(label, dtype, [int(dim) for dim in dims], value))
    return tuple(infos)


def tensor_info(name: str, dtype: str, shape: Sequence[int], example: Any = None) -> InputInfo:
    """The description of an input. Its integers are as large as those of the example, a tensor."""
    return InputInfo(name, tuple(shape), dtype, *_range(dtype, example))


def _range(dtype: str, example: Any) -> tuple[int, int]:
    """Bounds (high excluded) of random integers: those of the example, if there is one."""
    if not dtype.startswith(("int", "uint")) or example is None or example.numel() == 0:
        return 0, 2
    return int(example.min()), max(int(example.max()) + 1, int(example.min()) + 2)


def import_failure(name: str, error: Exception) -> str:
    """The one-line message for an error of a TVM importer."""
    reason = first_line(error)
    for phrase in ("Unsupported function types", "not supported for frontend ONNX:"):
        if phrase in str(error):
            names = str(error).partition(phrase)[2].strip().strip("[]").replace("'", "")
            return f"{name} uses operators TVM lacks: {names}; rewrite the model without them"
    return f"TVM cannot import {name} ({type(error).__name__}: {reason}); rewrite that part of it"


def first_line(error: BaseException) -> str:
    """The first line of the error's text, at most 160 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]
