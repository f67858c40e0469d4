"""Training data of the language model: sentences of one task, each with its measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tlmd.language.vocabulary import IDS, PAD, SIZE
from tlmd.tlm.decoder import Decoder, PromptCache

Words = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The sentence of one measured candidate, with its speed.

    Example: ``Demonstration((708, 560, 41, 9), (1, 3), ((560, 561), (9, 10)), 0.93)``.
    """

    tokens: tuple[int, ...]
    """The first says a quality; training replaces it."""

    places: tuple[int, ...]
    """Positions of the tokens where more than one word was legal. Only these are trained."""

    legal: tuple[Words, ...]
    """For each place, the ids of the words that were legal there."""

    share: float
    """Speed relative to the fastest candidate of the task, 0 to 1; 0 for a failure."""

    weight: float = 1.0
    """Smaller for a noisy time."""


@dataclass(frozen=True, slots=True)
class TaskDemonstrations:
    """The candidates of one task on one machine.

    Example: ``TaskDemonstrations("t1f0", (1, 80, 3), (demonstration, other))``.
    """

    task_id: str
    prompt: tuple[int, ...]
    """Token ids."""
    demonstrations: tuple[Demonstration, ...]


class TaskTensors:
    """The demonstrations of one task as tensors; sentences are padded to the longest one."""

    def __init__(self, task: TaskDemonstrations) -> None:
        sentences = task.demonstrations
        longest = max(len(s.tokens) for s in sentences)
        kinds: dict[Words, int] = {}
        self.prompt = torch.tensor(task.prompt)
        self.tokens = torch.full((len(sentences), longest), PAD)
        for row, sentence in enumerate(sentences):
            self.tokens[row, : len(sentence.tokens)] = torch.tensor(sentence.tokens)
        self.rows = torch.tensor([row for row, s in enumerate(sentences) for _ in s.places])
        self.places = torch.tensor([at for s in sentences for at in s.places])
        self.kinds = torch.tensor(
            [kinds.setdefault(words, len(kinds)) for s in sentences for words in s.legal]
        )
        self.legal = torch.zeros((len(kinds), SIZE), dtype=torch.bool)
        for words, kind in kinds.items():
            self.legal[kind, list(words)] = True
        self.shares = torch.tensor([s.share for s in sentences])
        self.weights = torch.tensor([s.weight for s in sentences])

    def __len__(self) -> int:
        return len(self.tokens)

    def choose(self, rows: Tensor) -> TaskTensors:
        """These demonstrations ``[n]`` only."""
        chosen = object.__new__(TaskTensors)
        new_row = torch.full((len(self),), -1)
        new_row[rows] = torch.arange(len(rows))
        kept = new_row[self.rows] >= 0
        chosen.prompt, chosen.legal = self.prompt, self.legal
        chosen.rows, chosen.places = new_row[self.rows][kept], self.places[kept]
        chosen.kinds, chosen.tokens = self.kinds[kept], self.tokens[rows]
        chosen.shares, chosen.weights = self.shares[rows], self.weights[rows]
        return chosen

    def log_probabilities(
        self, decoder: Decoder, quality: str, prompt: PromptCache | None = None
    ) -> Tensor:
        """Natural logarithm of the probability that each sentence is written ``[sentences]``.

        As in sampling, only legal words are possible at each place. `quality` is the first word.
        """
        tokens = self.tokens.clone()
        tokens[:, 0] = IDS[quality]
        hidden = decoder.sentences(prompt or decoder.prompt(self.prompt), tokens)
        # Each position predicts the next token.
        scores = decoder.logits(hidden[self.rows, self.places - 1])
        legal = self.legal.to(scores.device)[self.kinds]
        scores = scores.masked_fill(~legal, float("-inf")).log_softmax(-1)
        decided = tokens[self.rows, self.places].to(scores.device)
        return self._sums(scores.gather(1, decided[:, None])[:, 0])

    def log_uniform(self) -> Tensor:
        """The same, if every legal word were equally probable ``[sentences]``."""
        return self._sums(-self.legal.sum(1).float().log()[self.kinds])

    def _sums(self, values: Tensor) -> Tensor:
        """The sum of the values of each sentence's places."""
        rows = self.rows.to(values.device)
        return torch.zeros(len(self), device=values.device).index_add(0, rows, values)


def count_demonstrations(tasks: Sequence[TaskDemonstrations]) -> int:
    """The demonstrations of all tasks."""
    return sum(len(task.demonstrations) for task in tasks)
