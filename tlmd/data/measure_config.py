"""The section ``measure`` of the configuration, and the base of all sections."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One section; the string under each field explains it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )


class MeasureConfig(Section):
    """Building and timing candidates."""

    slots: int = Field(1, ge=1)
    """Slots of this machine. Each slot times one program at a time."""

    run_cores: int = Field(0, ge=0)
    """Cores of each slot, and of the models that it tunes. 0: all slots together get all physical
    cores."""

    builders: int = Field(0, ge=0)
    """Candidates of a slot that are built or timed at the same time. Only one is timed. 0: one more
    than there are cores to build on, 3 to 8."""

    build_on_run_cores: bool = True
    """Build on the slot's cores too, as long as nothing is timed there."""

    background_share: float = Field(0.1, gt=0, le=1)
    """Share of the time in which a daemon that stays works while other programs use its cores.
    1: it does not wait for them. The daemon of `tlmd tune` never waits."""

    cards: int = Field(0, ge=0)
    """CUDA cards of this machine that are slots, too: for jobs with the target ``cuda``."""

    targets: dict[str, str] = {}
    """Targets of a cluster's slots ``measure:NAME``, by NAME. The CPU of such a slot's node must be
    able to run them. A slot without one measures for the CPU of its node."""

    repeats: int = Field(7, ge=1)
    """Timed repeats of a candidate. One that is clearly slower than the best gets fewer, one that
    may be the best gets more."""

    cache: Literal["cold", "hot"] = "cold"
    """``cold``: the model's weights are evicted from the caches before every timed run, as other
    layers evict them. ``hot``: they stay. ``python -m benchmarks.prediction`` compares both."""

    build_timeout: float = Field(30.0, gt=0)
    """Seconds for building one candidate."""

    run_timeout: float = Field(20.0, gt=0)
    """Seconds for running and checking one candidate, after it got the slot."""

    baseline_timeout: float = Field(120.0, gt=0)
    """The same for the unscheduled program of a task, which is slow."""

    budget: float = Field(1.5, gt=0)
    """Seconds for the timed repeats of one candidate."""

    wait_quiet: float = Field(0.0, ge=0)
    """Seconds that a candidate waits at most for other programs to leave its cores before it is
    timed. 0: it is timed at once, and its time is corrected. ``tlmd tune --wait-quiet``: 60."""

    memory_bytes: int = Field(4 << 30, ge=0)
    """Address space of a candidate's process, on top of the server's own. 0: no limit."""

    reference_bytes: int = Field(4 << 30, ge=0)
    """Disk space for the reference outputs of all tasks. The oldest are removed first."""
