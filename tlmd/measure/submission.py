"""The work that one thread gives to a `Measurer`, until its outcomes are there."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tlmd.data.types import MeasureInput, Outcome, TargetInfo, Task


@dataclass(eq=False)
class Submission:
    """Work for the server, and the future of its outcomes."""

    target: TargetInfo
    tasks: tuple[Task, ...] = ()
    """The task of each input. Empty: only start the server for `target`."""
    inputs: tuple[MeasureInput, ...] = ()
    """One candidate, several finalists, or none for the unscheduled program."""
    single: bool = False
    """The future gives one outcome instead of a tuple."""
    future: Future[Any] = field(default_factory=Future)
    attempts: int = 0
    """Servers it was sent to."""

    @property
    def task(self) -> Task | None:
        return self.tasks[0] if self.tasks else None

    @property
    def is_baseline(self) -> bool:
        return bool(self.tasks) and not self.inputs

    def finish(self, outcomes: tuple[Outcome, ...]) -> None:
        self.future.set_result(outcomes[0] if self.single else outcomes)
