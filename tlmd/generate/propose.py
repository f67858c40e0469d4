"""Proposing candidates: by the TLM, by refining the best programs, and at random."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tlmd.data.config import GenerateConfig
from tlmd.data.selection import leading
from tlmd.data.types import Candidate, Record, Writer
from tlmd.generate.limits import drawn_within, repaired_candidate
from tlmd.generate.refine import moved
from tlmd.language.prompt import prompt
from tlmd.space.space import InvalidCandidate, TaskSpace
from tlmd.tlm.checkpoint import Checkpoint
from tlmd.tlm.sampling import Sampler, SampleRequest

NOT_THE_TLM = -1  # the version of a candidate that the TLM did not write


class WrittenCandidate(NamedTuple):
    """A candidate that is legal, but not applied."""

    candidate: Candidate
    writer: Writer
    version: int
    """The checkpoint that wrote it; `NOT_THE_TLM` if it was not the TLM."""


class ProposedCandidates(NamedTuple):
    """The proposals for one task."""

    wide: list[WrittenCandidate]
    """Ranked on their decisions; only the best are applied."""
    unranked: list[WrittenCandidate]
    """Applied as they are."""


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
    ) -> ProposedCandidates:
        """Candidates of which `total` will be applied.

        Refined ones are written only where `records` has verified programs.
        """
        config = self._config
        incumbents = [r.candidate for r in leading(records, config.incumbents)]
        refined = int(total * config.refined) if incumbents else 0
        # Random ones protect against a TLM or a cost model that has settled on wrong programs.
        uniform = int(total * config.uniform)
        others = (total - refined - uniform) * config.wide
        drawn = int(others * config.drawn)
        neighbours = self._neighbours(space, incumbents, refined * config.wide)
        wide = [WrittenCandidate(c, Writer.REFINEMENT, NOT_THE_TLM) for c in neighbours]
        wide += self._by_the_tlm(space, others - drawn)
        wide += _at_random(drawn_within(self._rng, space) for _ in range(drawn))
        return ProposedCandidates(wide, _at_random(self._random(space) for _ in range(uniform)))

    def _by_the_tlm(self, space: TaskSpace, count: int) -> list[WrittenCandidate]:
        """Candidates of the TLM, in the order of its preference."""
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
            elif (legal := repaired_candidate(self._rng, space, candidate)) is not None:
                written.append(WrittenCandidate(legal, Writer.REFINEMENT, NOT_THE_TLM))
        return written

    def _random(self, space: TaskSpace) -> Candidate | None:
        if any(sketch.limits for sketch in space.sketches):
            # TVM's sampler knows no limits; nearly all that it draws for a GPU is refused.
            return drawn_within(self._rng, space)
        with contextlib.suppress(InvalidCandidate):
            return space.random(self._rng)
        return None

    def _neighbours(
        self, space: TaskSpace, incumbents: list[Candidate], count: int
    ) -> list[Candidate]:
        candidates: dict[str, Candidate] = {}
        for _ in range(2 * count):
            if len(candidates) >= count:
                break
            start = self._rng.choice(incumbents)
            made = moved(self._rng, space.sketches[start.sketch], start, space.quick_locations)
            if made is not None:
                candidates[made.id] = made
        return list(candidates.values())


def _at_random(candidates: Iterable[Candidate | None]) -> list[WrittenCandidate]:
    return [WrittenCandidate(c, Writer.RANDOM, NOT_THE_TLM) for c in candidates if c is not None]
