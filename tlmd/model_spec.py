"""How a user names a model. Crosses processes; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of a model's inputs."""


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
