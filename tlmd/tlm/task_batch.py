"""Demonstrations of several tasks in one pass of the network, for a card (GPU).

A card is idle most of the time if each task is a pass of its own: the passes are too small. Here
each task is one row: its prompt, then its sentences. A mask lets each sentence see the prompt and
itself. On a CPU this would only compute what the mask hides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tlmd.language.vocabulary import IDS, PAD
from tlmd.tlm.decoder import Decoder
from tlmd.tlm.demonstration import TaskTensors


class TaskBatch:
    """Tasks with their demonstrations, padded to the longest of each, on `device`.

    `shares` and `weights` are float32 ``[tasks, sentences]``; what pads has weight 0.
    """

    def __init__(self, tasks: Sequence[TaskTensors], device: torch.device) -> None:
        self._count = max(len(task) for task in tasks)
        self.shares = _rows([task.shares for task in tasks], self._count).to(device)
        self.weights = _rows([task.weights for task in tasks], self._count).to(device)
        self.present = self._present(tasks).to(device)
        uniform = [task.log_uniform() for task in tasks]
        self.log_uniform = _rows(uniform, self._count).to(device)
        self._set_sequences(tasks, device)
        self._set_decided(tasks, device)

    def log_probabilities(self, decoder: Decoder, quality: str) -> Tensor:
        """As `TaskTensors.log_probabilities`, ``[tasks, sentences]``; 0 for padding."""
        tokens = self._tokens.masked_fill(self._first, IDS[quality])
        hidden = decoder.masked(tokens, self._positions, self._visible)
        scores = decoder.logits(hidden.flatten(0, 1)[self._before])
        scores = scores.masked_fill(~self._legal[self._kinds], float("-inf")).log_softmax(-1)
        log_probs = scores.gather(1, self._decided[:, None])[:, 0]
        sums = torch.zeros(self.shares.numel(), device=log_probs.device)
        return sums.index_add(0, self._sentences, log_probs).view_as(self.shares)

    def _present(self, tasks: Sequence[TaskTensors]) -> Tensor:
        lengths = torch.tensor([len(task) for task in tasks])
        return torch.arange(self._count) < lengths[:, None]

    def _set_sequences(self, tasks: Sequence[TaskTensors], device: torch.device) -> None:
        """Tokens and positions ``[tasks, length]``; what sees what ``[tasks, length, length]``."""
        tokens, positions, part = [], [], []
        for task in tasks:
            start, (count, length) = len(task.prompt), task.tokens.shape
            tokens.append(torch.cat((task.prompt, task.tokens.flatten())))
            own = start + torch.arange(length).repeat(count)
            positions.append(torch.cat((torch.arange(start), own)))
            # 0: the prompt; 1 and more: a sentence.
            number = 1 + torch.arange(count).repeat_interleave(length)
            part.append(torch.cat((torch.zeros(start, dtype=torch.long), number)))
        longest = max(map(len, tokens))
        self._length = longest
        self._tokens = _rows(tokens, longest, PAD).to(device)
        self._positions = _rows(positions, longest).to(device)
        parts = _rows(part, longest, -1).to(device)
        self._first = (self._positions == _starts(tasks, device)) & (parts > 0)
        same = parts[:, :, None] == parts[:, None, :]
        earlier = self._positions[:, :, None] >= self._positions[:, None, :]
        # Padding sees all padding, so that no row of the attention is empty.
        self._visible = (same & earlier) | ((parts[:, None, :] == 0) & (parts[:, :, None] > 0))

    def _set_decided(self, tasks: Sequence[TaskTensors], device: torch.device) -> None:
        """For each decided token: where it is, what it is, and what was legal there."""
        before, decided, kinds, sentences, kind_count = [], [], [], [], 0
        for number, task in enumerate(tasks):
            start = number * self._length + len(task.prompt)
            before.append(start + task.rows * task.tokens.shape[1] + task.places - 1)
            decided.append(task.tokens[task.rows, task.places])
            kinds.append(kind_count + task.kinds)
            sentences.append(number * self._count + task.rows)
            kind_count += len(task.legal)
        self._before, self._decided = torch.cat(before).to(device), torch.cat(decided).to(device)
        self._kinds, self._sentences = torch.cat(kinds).to(device), torch.cat(sentences).to(device)
        self._legal = torch.cat([task.legal for task in tasks]).to(device)


def _rows(values: Sequence[Tensor], length: int, padding: int = 0) -> Tensor:
    """The values as rows ``[len(values), length]``."""
    rows = torch.full((len(values), length), padding, dtype=values[0].dtype)
    for row, value in zip(rows, values, strict=True):
        row[: len(value)] = value
    return rows


def _starts(tasks: Sequence[TaskTensors], device: torch.device) -> Tensor:
    """The position of the first word of each task's sentences ``[tasks, 1]``."""
    return torch.tensor([[len(task.prompt)] for task in tasks], device=device)
