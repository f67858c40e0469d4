"""Options of a user for the graphs of a model in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tlmd.data.model_spec import BF16, FP32, ModelSpec

_BF16_ERROR = 0.05  # of a whole graph that multiplies bfloat16; seen: 0.006


@dataclass(frozen=True)
class GraphOptions:
    """How graphs are compiled, and who makes them faster.

    Raises `BadInput` for options that contradict each other.

    Example: ``GraphOptions(Path("/var/lib/tlmd"), precision="bf16")``.
    """

    state_dir: Path
    """Absolute. Its records are used, and its daemon tunes."""
    background: bool = True
    """Whether the daemon gets the tasks."""
    precision: str = FP32
    """As `ModelSpec.precision`."""
    strict_numerics: bool = False
    """As `ModelSpec.strict_numerics`."""

    def __post_init__(self) -> None:
        """Check the options, before a graph is there."""
        self.spec("")

    @property
    def tolerated(self) -> float:
        """The error, as a share of the largest output, that is allowed in any case."""
        return _BF16_ERROR if self.precision == BF16 else 0.0

    def spec(self, name: str) -> ModelSpec:
        """The graph `name` as a model with these options."""
        return ModelSpec(name, strict_numerics=self.strict_numerics, precision=self.precision)
