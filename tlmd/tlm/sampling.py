"""Constrained sampling in batches: the TLM writes decisions, and a mask allows only legal tokens.

If the grammar allows only one token, the network is not run for it: the token waits, and the
network reads it together with the next decided token (the paper's Algorithm 2, for a group of
sentences at the same time).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from tlmd.data.computation import DecisionKind, Sketch
from tlmd.data.types import Candidate, Decision
from tlmd.language import grammar
from tlmd.language.grammar import Bools, Ints
from tlmd.language.legal_words import LegalLocations
from tlmd.language.sentence import BEST_QUALITY, DecisionSpan, layout
from tlmd.language.vocabulary import IDS, MAX_SKETCHES
from tlmd.tlm.decoder import Decoder, PromptCache
from tlmd.tlm.network import Gpt2


@dataclass(frozen=True)
class Sample:
    """A sampled candidate."""

    candidate: Candidate

    log_prob: float
    """Natural logarithm of the probability with which the model wrote it."""

    log_uniform: float
    """The same, if every legal word were equally probable."""

    @property
    def score(self) -> float:
        """How much the model prefers it; it learns to give the faster of two candidates more."""
        return self.log_prob - self.log_uniform


@dataclass(frozen=True)
class SampleRequest:
    """A request for `count` candidates of one task."""

    task_id: str

    prompt: tuple[int, ...]
    """Token ids."""

    sketches: tuple[Sketch, ...]
    locations: LegalLocations
    count: int
    quality: str = BEST_QUALITY
    temperature: float = 1.0

    start: Candidate | None = None
    """If given, all samples have its sketch and its first `keep` decisions."""

    keep: int = 0


class Sampler:
    """Writes candidates with one language model. The same seed gives the same candidates."""

    def __init__(self, model: Gpt2, seed: int = 0) -> None:
        self._decoder = Decoder(model)
        self._generator = torch.Generator().manual_seed(seed)
        self._prompts: dict[tuple[int, ...], PromptCache] = {}

    @torch.inference_mode()
    def sample(self, request: SampleRequest) -> list[Sample]:
        """Write `request.count` legal candidates, grouped by sketch. Duplicates are possible."""
        prompt = self._prompt(request.prompt)
        if request.start is not None:
            return self._group(prompt, request, request.start.sketch, request.count, 0.0)
        samples = []
        for sketch, count, log_prob in self._sketches(prompt, request):
            samples += self._group(prompt, request, sketch, count, log_prob)
        return samples

    def _prompt(self, tokens: tuple[int, ...]) -> PromptCache:
        if tokens not in self._prompts:
            if len(self._prompts) >= 64:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[tokens] = self._decoder.prompt(torch.tensor(tokens))
        return self._prompts[tokens]

    def _sketches(
        self, prompt: PromptCache, request: SampleRequest
    ) -> list[tuple[int, int, float]]:
        """Draw how many candidates each sketch gets: ``(sketch, count, log probability)``."""
        sketch_count = min(len(request.sketches), MAX_SKETCHES)
        first = torch.tensor([[IDS[request.quality]]])
        hidden = self._decoder.extend(prompt, first, None)[0, -1]
        columns = torch.tensor([IDS[f"sketch:{i}"] for i in range(sketch_count)])
        scores = self._decoder.logits(hidden, columns).cpu() / request.temperature
        scores = scores.log_softmax(-1)
        drawn = torch.multinomial(
            scores.exp(), request.count, replacement=True, generator=self._generator
        )
        counts = torch.bincount(drawn, minlength=sketch_count).tolist()
        return [(i, n, float(scores[i])) for i, n in enumerate(counts) if n]

    def _group(
        self, prompt: PromptCache, request: SampleRequest, sketch: int, count: int, log_prob: float
    ) -> list[Sample]:
        group = _Group(self._decoder, prompt, request, sketch, count, self._generator)
        form = layout(request.sketches[sketch])
        for index, span in enumerate(form.spans):
            group.write(span, index)
        rows = zip(*group.decisions, strict=True) if group.decisions else [()] * count
        sketch_count = 1 if request.start is not None else min(len(request.sketches), MAX_SKETCHES)
        log_uniform = -math.log(sketch_count)
        return [
            Sample(
                Candidate(request.task_id, sketch, tuple(row)),
                log_prob + float(own),
                log_uniform + float(uniform),
            )
            for row, own, uniform in zip(rows, group.log_prob, group.log_uniform, strict=True)
        ]


class _Group:
    """Sentences of one sketch that are written at the same time."""

    def __init__(
        self,
        decoder: Decoder,
        prompt: PromptCache,
        request: SampleRequest,
        sketch: int,
        count: int,
        generator: torch.Generator,
    ) -> None:
        self.decisions: list[list[Decision]] = []
        self.log_prob = np.zeros(count)
        self.log_uniform = np.zeros(count)
        self._decoder = decoder
        self._prompt = prompt
        self._request = request
        self._sketch = sketch
        self._count = count
        self._generator = generator
        self._cache = decoder.new_group(count, layout(request.sketches[sketch]).length)
        self._pending: list[Ints] = []
        for word in (request.quality, f"sketch:{sketch}"):
            self._push(np.full(count, IDS[word]))

    def write(self, span: DecisionSpan, index: int) -> None:
        """Write decision number `index`, whose position is `span`, in all sentences."""
        for token in span.header:
            self._push(np.full(self._count, token))
        open_decision = span.open_decision
        kept = self._kept(span, index)
        remaining = np.full(self._count, open_decision.extent)
        inner = np.ones(self._count, np.int64)
        chosen: list[Ints] = []
        for number in range(span.count):
            allowed = self._allowed(span, number, remaining, inner)
            if kept is not None:
                allowed = allowed & (grammar.values_of(open_decision).values == kept[number])
            values = self._value(span, allowed)
            chosen.append(values)
            if open_decision.kind in (DecisionKind.TILE, DecisionKind.PARTITION):
                remaining = remaining // values
                inner = inner * values
        table = np.stack(chosen, 1).tolist() if chosen else [[]] * self._count
        self.decisions.append([grammar.to_decision(open_decision, row) for row in table])

    def _kept(self, span: DecisionSpan, index: int) -> list[int] | None:
        request = self._request
        if request.start is None or index >= request.keep:
            return None
        return grammar.to_values(span.open_decision, request.start.decisions[index])

    def _allowed(self, span: DecisionSpan, number: int, remaining: Ints, inner: Ints) -> Bools:
        if span.open_decision.kind is not DecisionKind.LOCATION:
            return grammar.legal(span.open_decision, number, remaining, inner)
        values = grammar.values_of(span.open_decision).values
        allowed = np.zeros((self._count, len(values)), np.bool_)
        before = zip(*self.decisions, strict=True) if self.decisions else [()] * self._count
        for row, decisions in enumerate(before):
            legal = self._request.locations(self._sketch, tuple(decisions))
            allowed[row] = np.isin(values, legal)
        return allowed

    def _value(self, span: DecisionSpan, allowed: Bools) -> Ints:
        """Choose one allowed value per sentence, token by token."""
        table = grammar.values_of(span.open_decision)
        alive = allowed
        for digit in range(span.width):
            words, which = np.unique(table.codes[:, digit], return_inverse=True)
            open_words = np.zeros((self._count, len(words)), np.bool_)
            for word in range(len(words)):
                open_words[:, word] = alive[:, which == word].any(1)
            pick = self._choose(words, open_words)
            alive = alive & (which[None, :] == pick[:, None])
            self._push(words[pick])
        chosen: Ints = table.values[alive.argmax(1)]
        return chosen

    def _choose(self, words: Ints, open_words: Bools) -> Ints:
        """Choose an index into `words` per sentence. Runs the network only if there is a choice."""
        if (open_words.sum(1) == 1).all():
            forced: Ints = open_words.argmax(1)
            return forced
        tokens = torch.from_numpy(np.stack(self._pending, 1))
        self._pending.clear()
        hidden = self._decoder.extend(self._prompt, tokens, self._cache)[:, -1]
        # The choice is made on the CPU, where the legal words and the random numbers are.
        scores = self._decoder.logits(hidden, torch.from_numpy(words)).cpu()
        scores = scores / self._request.temperature
        scores = scores.masked_fill(torch.from_numpy(~open_words), float("-inf")).log_softmax(-1)
        pick = torch.multinomial(scores.exp(), 1, generator=self._generator)
        self.log_prob += scores.gather(1, pick)[:, 0].double().numpy()
        self.log_uniform -= np.log(open_words.sum(1))
        picked: Ints = pick[:, 0].numpy()
        return picked

    def _push(self, tokens: Ints) -> None:
        self._pending.append(np.asarray(tokens, np.int64))
