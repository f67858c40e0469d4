"""Would a neural cost model on the language model's trunk order candidates better than the trees?

`python -m benchmarks.shared_trunk --demonstrations FILE... [--minutes 10]` puts a linear head on
the hidden state of a sentence's last word, so that one pass of the network writes a candidate and
scores it. Head and trunk learn the order of the measured candidates of each task (`pair_loss`),
from the shipped network or from scratch; `kept`: only the head learns. Judged on the bank: the rank
correlation with the measured speed, and the speed of the first pick as a share of the best, alone
and with the shipped trees (mean of the ranks). The headline `ratio` is the correlation of the best
mean with the trees over that of the trees alone.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import report, setting
from benchmarks.common.bootstrap import mean_and_interval
from benchmarks.learning import bank_judge
from benchmarks.learning.bank_tasks import BANK

_ARMS = {"kept": (False, True), "from the shipped": (True, True), "from scratch": (True, False)}
"""Whether the trunk learns, and whether it starts as the shipped one."""
_TASKS, _SENTENCES = 8, 24
_RATE, _RATE_OF_HEAD_ALONE = 5e-4, 1e-2


@dataclass(frozen=True)
class _Judged:
    """Candidates of one task of the bank: as sentences, their speeds, the trees' scores."""

    tensors: Any
    shares: Any
    trees: Any


def main() -> int:
    """Train each arm, judge, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--demonstrations", type=Path, nargs="+", required=True)
    parser.add_argument("--minutes", type=float, default=10, help="of CPU for each arm")
    options = parser.parse_args()
    document = _document(options)
    report.show("on the bank; means over tasks, 95 %", document["rows"])
    report.finish(document, options.json)
    return 0


def _document(options: Any) -> report.Row:
    import torch

    from tlmd.tlm.demonstration_file import read_demonstrations
    from tlmd.tlm.ranking import ranks

    torch.set_num_threads(1)
    shipped = setting.load(options.checkpoint, options.untrained)
    bank = _bank(shipped)
    tasks = [task for path in options.demonstrations for task in read_demonstrations(path)]
    trees = [(one.trees, one.shares) for one in bank]
    rows, means = [_row("the shipped trees", trees)], []
    for name, (learns, starts_shipped) in _ARMS.items():
        scorer = _Scorer(shipped.model, starts_shipped, options.seed)
        steps = scorer.fit(tasks, options.minutes * 60, learns, options.seed)
        own = [scorer.scores(one.tensors) for one in bank]
        alone = [(score, one.shares) for score, one in zip(own, bank, strict=True)]
        both = [
            (ranks(score) + ranks(one.trees), one.shares)
            for score, one in zip(own, bank, strict=True)
        ]
        rows += [
            {**_row(f"trunk {name}", alone), "steps": steps},
            {**_row(f"trunk {name}, and the trees", both), "steps": steps},
        ]
        means.append(_correlations(both))
        print(rows[-2], rows[-1], file=sys.stderr, flush=True)
    before = _correlations(trees).mean()
    return {
        "benchmark": "shared_trunk",
        "machine": report.machine(),
        "minutes": options.minutes,
        "files": [path.name for path in options.demonstrations],
        "rows": rows,
        "ratio": float(max(mean.mean() for mean in means) / before),
        "meaning": "rank correlation of the best mean with the trees over that of the trees alone",
    }


def _bank(shipped: Any) -> list[_Judged]:
    """The candidates that have a program and a sentence."""
    from tlmd.learn.candidate_encoder import Encoder
    from tlmd.learn.feature_tables import FeatureTables
    from tlmd.space.cache import SpaceCache
    from tlmd.space.space import TaskSpace
    from tlmd.tlm.demonstration import TaskDemonstrations, TaskTensors

    tables = FeatureTables(SpaceCache())
    found = []
    for entry in bank_judge.entries(BANK):
        task, encoder = entry.task, Encoder(TaskSpace(entry.task))
        both = [
            (record, sentence)
            for record in entry.records
            if (sentence := encoder.encode(record.candidate)) is not None
            and tables.row(task, record) is not None
        ]
        table = tables.table(task, [record for record, _ in both])
        trees = shipped.cost_model.score(table.features, table.speedups, table.decisions)
        shares = table.seconds.min() / table.seconds
        sentences = tuple(sentence for _, sentence in both)
        tensors = TaskTensors(TaskDemonstrations(task.id, encoder.prompt, sentences))
        found.append(_Judged(tensors, shares, trees))
    return found


class _Scorer:
    """A linear head on a network's hidden states."""

    def __init__(self, model: Any, starts_shipped: bool, seed: int) -> None:
        import copy

        import torch

        from tlmd.tlm import network
        from tlmd.tlm.decoder import Decoder

        torch.manual_seed(seed)
        self._model = copy.deepcopy(model) if starts_shipped else network.create("nano", seed)
        self._decoder = Decoder(self._model)
        self._head = torch.nn.Linear(self._model.width, 1)

    def fit(self, tasks: Sequence[Any], seconds: float, learns: bool, seed: int) -> int:
        """Train for so long by the process's clock; how many steps that were."""
        import torch

        from tlmd.tlm.demonstration import TaskTensors
        from tlmd.tlm.training import pair_loss

        rate = _RATE if learns else _RATE_OF_HEAD_ALONE
        self._model.requires_grad_(learns)
        parameters = [*self._head.parameters(), *(self._model.parameters() if learns else ())]
        optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        tensors: dict[int, TaskTensors] = {}
        begin, steps = time.process_time(), 0
        while (spent := time.process_time() - begin) < seconds:
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 - 0.95 * spent / seconds)
            optimiser.zero_grad()
            for at in rng.sample(range(len(tasks)), _TASKS):
                if at not in tensors:
                    tensors[at] = TaskTensors(tasks[at])
                task = tensors[at]
                task = task.choose(torch.randperm(len(task), generator=generator)[:_SENTENCES])
                loss = pair_loss(self._forward(task), task.shares, task.weights) / _TASKS
                torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            steps += 1
        return steps

    def scores(self, task: Any) -> Any:
        """Scores ``[sentences]``; higher is faster."""
        import torch

        with torch.no_grad():
            return self._forward(task).numpy()

    def _forward(self, task: Any) -> Any:
        import torch

        from tlmd.language.vocabulary import PAD

        hidden = self._decoder.sentences(self._decoder.prompt(task.prompt), task.tokens)
        last = (task.tokens != PAD).sum(1) - 1
        states = self._model.transformer.ln_f(hidden[torch.arange(len(last)), last])
        return self._head(states)[:, 0]


def _correlations(judged: Sequence[tuple[Any, Any]]) -> Any:
    """``[tasks]``."""
    from tlmd.tlm.ranking import spearman

    return np.array([spearman(scores, shares) for scores, shares in judged])


def _row(name: str, judged: Sequence[tuple[Any, Any]]) -> report.Row:
    first = np.array([shares[int(np.argmax(scores))] for scores, shares in judged])
    return {
        "scored by": name,
        "rank correlation": mean_and_interval(_correlations(judged)),
        "first pick": mean_and_interval(first),
    }


if __name__ == "__main__":
    sys.exit(main())
