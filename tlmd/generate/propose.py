"""Proposing candidates: by the TLM, by refining the best programs, and at random."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import NamedTuple

from tlmd.config import GenerateConfig
from tlmd.generate.limits import repaired
from tlmd.generate.refine import moved
from tlmd.language.prompt import prompt
from tlmd.language.uniform import draw_uniform
from tlmd.model.checkpoint import Checkpoint
from tlmd.model.sampling import Sampler, SampleRequest
from tlmd.selection import leading
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.types import Candidate, Record, Writer

NOT_THE_TLM = -1  # the version of a candidate that the TLM did not write


class WrittenCandidate(NamedTuple):
    """A candidate that is legal, but not applied."""

    candidate: Candidate
    writer: Writer
    version: int
    """The checkpoint that wrote it; `NOT_THE_TLM` if it was not the TLM."""


class Proposer:
    """Proposes with one checkpoint. The candidates are legal, but not applied and not distinct."""

    def __init__(
        self, checkpoint: Checkpoint, config: GenerateConfig, rng: random.Random, seed: int
    ) -> None:
        self._version = checkpoint.version
        self._config = config
        self._rng = rng
        self._sampler = Sampler(checkpoint.model, seed)

    def propose(
        self, space: TaskSpace, total: int, records: Sequence[Record]
    ) -> list[WrittenCandidate]:
        """Candidates of which `total` will be applied; `wide` times more by the TLM and refined.

        Refined ones are written only where `records` has verified programs.
        """
        config = self._config
        incumbents = [r.candidate for r in leading(records, config.incumbents)]
        refined = int(total * config.refined) if incumbents else 0
        # Random ones protect against a TLM that has settled on the wrong programs.
        uniform = int(total * config.uniform)
        neighbours = self._neighbours(space, incumbents, refined * config.wide)
        written = [WrittenCandidate(c, Writer.REFINEMENT, NOT_THE_TLM) for c in neighbours]
        drawn = self._random(space, uniform)
        written += [WrittenCandidate(c, Writer.RANDOM, NOT_THE_TLM) for c in drawn]
        return written + self._by_the_tlm(space, (total - refined - uniform) * config.wide)

    def _by_the_tlm(self, space: TaskSpace, count: int) -> list[WrittenCandidate]:
        """What the TLM writes, in the order of its preference."""
        if count <= 0:
            return []
        request = SampleRequest(
            space.task.id,
            tuple(prompt(space.computation, space.task.target, space.sketches)),
            space.sketches,
            space.quick_locations,
            count,
            temperature=self._config.temperature,
        )
        samples = {sample.candidate.id: sample for sample in self._sampler.sample(request)}
        preferred = sorted(samples.values(), key=lambda sample: -sample.score)
        written = []
        for sample in preferred:
            candidate = sample.candidate
            if space.sketches[candidate.sketch].allows(candidate.decisions):
                written.append(WrittenCandidate(candidate, Writer.TLM, self._version))
            elif (legal := self._repaired(space, candidate)) is not None:
                written.append(WrittenCandidate(legal, Writer.REFINEMENT, NOT_THE_TLM))
        return written

    def _random(self, space: TaskSpace, count: int) -> list[Candidate]:
        drawn = []
        for _ in range(count):
            with contextlib.suppress(InvalidCandidate):
                drawn.append(self._draw(space))
        return [candidate for candidate in drawn if candidate is not None]

    def _draw(self, space: TaskSpace) -> Candidate | None:
        if not any(sketch.limits for sketch in space.sketches):
            return space.random(self._rng)
        # TVM's sampler knows no limits; nearly all that it draws for a GPU is refused.
        locations = space.quick_locations
        drawn = draw_uniform(self._rng, space.task.id, space.sketches, locations)
        return self._repaired(space, drawn)

    def _repaired(self, space: TaskSpace, candidate: Candidate) -> Candidate | None:
        sketch = space.sketches[candidate.sketch]
        decisions = repaired(self._rng, sketch, candidate.decisions)
        if decisions is None:
            return None
        return Candidate(candidate.task_id, candidate.sketch, decisions)

    def _neighbours(
        self, space: TaskSpace, incumbents: list[Candidate], count: int
    ) -> list[Candidate]:
        found: dict[str, Candidate] = {}
        for _ in range(2 * count):
            if len(found) >= count:
                break
            start = self._rng.choice(incumbents)
            made = moved(self._rng, space.sketches[start.sketch], start, space.quick_locations)
            if made is not None:
                found[made.id] = made
        return list(found.values())
