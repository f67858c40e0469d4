"""How a user names a model. Crosses processes; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from tlmd.data.errors import BadInput

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of a model's inputs."""


FP32, BF16, INT8 = PRECISIONS = ("fp32", "bf16", "int8")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a user names as a model, with everything that loading it depends on.

    The model is loaded in several processes: to lower it, and again to time the original. All of
    them get the whole spec, so a new option of a frontend is one more field here.

    Example: ``ModelSpec("resnet18", ((4, 3, 224, 224),))``.
    """

    name: str
    """A file, a directory of transformers, ``package.module:factory``, ``torchvision:NAME``,
    ``timm:NAME``, ``hf:MODEL_TYPE`` or a name of the zoo."""
    input_shapes: Shapes | None = None
    """One shape per input; None: the model's own. A multiple of that: several sets of shapes, each
    of which becomes a library of its own."""
    task: str = ""
    """What a model of transformers is used for, such as ``text-classification``."""
    weights: str = ""
    """A .safetensors file with the weights. Empty: those that the model comes with."""
    strict_numerics: bool = False
    """Only programs that compute as the model says: no alternative with other arithmetic."""
    precision: str = FP32
    """One of `PRECISIONS`. `BF16`: attention, and GEMMs and convolutions with constant weights, may
    round what they multiply to bfloat16; they add in float32. `INT8`: convolutions and matrix
    products of quantised models (QDQ) multiply integers."""

    def __post_init__(self) -> None:
        """Raise `BadInput` for options that contradict each other."""
        if self.precision not in PRECISIONS:
            given, allowed = ascii(self.precision)[:40], ", ".join(PRECISIONS)
            raise BadInput(f"the precision is {given}; it can be one of {allowed}")
        if self.strict_numerics and self.precision != FP32:
            raise BadInput(f"strict numerics allow {FP32} only; leave out one of the two options")
