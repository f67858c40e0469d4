"""Does the TLM get better? TLM-base and later versions on subgraphs that they have never seen.

`python -m benchmarks.learning --checkpoint BASE --campaign STATE/checkpoints [--figure FILE]`
compares TLM-base, evenly spaced versions of the campaign, and the shipped TLM. Each writes
candidates of eight subgraphs of held-out networks, once, and learns nothing from the results: eight
times more than 16, of which its own cost model picks 16, the best first. The peers are random
candidates, without and with the newest cost model, and MetaSchedule's best of 64 trials.

Reported is the best known time of a subgraph over the best of the first 1, 4, 10 and 16 measured,
geometric mean over subgraphs and seeds. At the end a finalist comparison times the best candidates
of all, MetaSchedule's too, in interleaved rounds. The best of many single times is short by luck,
so times of the comparison are longer: compare them with each other only.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import report, setting
from benchmarks.common.measured import compare_finalists
from benchmarks.common.setting import pin
from tlmd.data.config import SHIPPED
from tlmd.data.types import Candidate, MeasureInput, Outcome, Task
from tlmd.tlm import checkpoint
from tlmd.tlm.checkpoint import Checkpoint

COUNTS = (1, 4, 10, 16)
# Tasks of held-out networks: GEMM (two), batched GEMM, softmax, layer norm, convolution (3x3 with
# stride 2, and 1x1), depthwise convolution.
_CHOSEN = {
    ("bert-base", (1, 128)): (
        "fused_matmul_add1",
        "fused_matmul4_add1_add",
        "matmul2",
        "fast_softmax",
        "layer_norm",
    ),
    ("resnet50", (1, 3, 224, 224)): ("fused_conv2d6_add5_relu4", "fused_conv2d7_add6_add7_relu5"),
    ("mobilenet-v2", (1, 3, 224, 224)): ("fused_conv2d7_add5_maximum3_minimum3",),
}
_OVERSAMPLE = 8
# Policies, as benchmarks/learning/data/learning.json names them.
_RANDOM, _PICKED, _PEER = "random", "random + cost model", "MetaSchedule, 64 trials"
_PICKED_LABEL = "random + cost model"


@dataclass
class PolicyRun:
    """What one policy wrote for one task with one seed."""

    policy: str
    candidates: list[tuple[Candidate, str]]
    """With their traces; those that the cost model prefers first."""


def main() -> int:
    """Measure, print, write, draw."""
    parser = report.parser(__doc__, figure=True)
    parser.add_argument("--campaign", type=Path, help="the folder of its checkpoints")
    parser.add_argument("--versions", type=int, default=4, help="later versions (default 4)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=64, help="of MetaSchedule; 0: leave it out")
    options = parser.parse_args()
    document = report.document(options, _measure_learning)
    report.show("best known time over the best of the first k", document["rows"])
    report.show("in the finalist comparison", document["finals"])
    report.finish(document, options.json)
    if options.figure:
        _draw_curve(document, options.figure)
    return 0


@dataclass
class LearningResults:
    """Shares of the best known speed by policy, one entry per subgraph and seed."""

    first: dict[str, list[dict[int, float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of the best of the first 1, 4, 10 and 16 measured."""
    compared: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of the finalists, in the comparison."""

    def rows(self) -> list[report.Row]:
        """Geometric means of `first`."""
        return [
            {"policy": p, **{f"@{k}": report.geometric_mean(s[k] for s in found) for k in COUNTS}}
            for p, found in self.first.items()
        ]


def _measure_learning(options: Any) -> report.Row:
    here = report.machine()
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.measure.measurer import Measurer
    from tlmd.space.hardware.target import resolve

    cores, layout = tuple(sorted(os.sched_getaffinity(0))), plan_cores(run=1)
    pin(layout.build)
    tasks = held_out_tasks(resolve("native", len(layout.run)))
    policies = _policies(options)
    results = LearningResults()
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as cache,
        Measurer(layout, Path(cache)) as measurer,
    ):
        for task in tasks:
            runs = list(_policy_runs(task, policies, options.seeds))
            peers = _peer_candidates(task, options, cores)
            _measure_task(measurer, task, runs, peers, results)
            newest = {p: round(found[-1], 2) for p, found in results.compared.items()}
            print(task.name, newest, file=sys.stderr)
    rows = results.rows()
    picked = next(row for row in rows if row["policy"] == _PICKED)
    return {
        "benchmark": "learning",
        "machine": here,
        "seeds": options.seeds,
        "tasks": [task.name for task in tasks],
        "versions": list(policies),
        "rows": rows,
        "finals": [
            {"policy": p, "share": report.geometric_mean(found)}
            for p, found in results.compared.items()
        ],
        "by_task": {
            p: [[s[k] for k in COUNTS] for s in found] for p, found in results.first.items()
        },
        "ratio": rows[-1]["@10"] / picked["@10"],
        "meaning": "best of 10: the newest TLM over random candidates with its cost model",
    }


def _measure_task(
    measurer: Any,
    task: Task,
    runs: Sequence[PolicyRun],
    peers: Sequence[Candidate],
    results: LearningResults,
) -> None:
    """Measure and compare what all policies and the peer found for a task."""
    outcomes = _outcomes(measurer, task, runs)
    finalists = [*(_best(one, outcomes) for one in runs), *peers]
    compared = compare_finalists(measurer, task, finalists)
    known = min(o.seconds for o in [*outcomes.values(), *compared.values()])
    for one in runs:
        results.first[one.policy].append(_shares(one, outcomes, known))
        share = known / _compared_seconds(one, outcomes, compared)
        results.compared[one.policy].append(share)
    for candidate in peers:
        results.compared[_PEER].append(known / compared[candidate.id].seconds)


def held_out_tasks(target: Any) -> list[Task]:
    """The eight subgraphs."""
    return setting.tasks_of_networks(_CHOSEN, target)


def _policies(options: Any) -> dict[str, Checkpoint]:
    """TLM-base, evenly spaced versions of the campaign and the shipped one, by name."""
    policies = {"TLM-base": setting.load(options.checkpoint, options.untrained)}
    folders = sorted(options.campaign.glob("v*")) if options.campaign else []
    count = min(options.versions, len(folders))
    for number in range(1, count + 1):
        found = checkpoint.load(folders[round(number * len(folders) / count) - 1])
        policies[f"version {found.version}"] = found
    if options.checkpoint:
        policies["shipped"] = checkpoint.load(SHIPPED)
    return policies


def _policy_runs(task: Task, policies: Mapping[str, Checkpoint], seeds: int) -> Iterable[PolicyRun]:
    from tlmd.data.config import GenerateConfig
    from tlmd.generate.generator import Generator
    from tlmd.space.features import FeatureExtractor

    config = GenerateConfig(oversample=_OVERSAMPLE, explore=0.0, uniform=0.0)
    extractor = FeatureExtractor(task.target)
    cost_model = list(policies.values())[-1].cost_model
    for seed in range(seeds):
        drawn = _random_candidates(task, _OVERSAMPLE * COUNTS[-1], seed)
        yield PolicyRun(_RANDOM, [(d.candidate, d.trace) for d in drawn[: COUNTS[-1]]])
        scores = cost_model.score(extractor.rows([d.schedule for d in drawn]))
        order = sorted(range(len(drawn)), key=lambda i: -scores[i])[: COUNTS[-1]]
        yield PolicyRun(_PICKED, [(drawn[i].candidate, drawn[i].trace) for i in order])
        for name, one in policies.items():
            proposals, _ = Generator(one, config, seed).write(task, COUNTS[-1], [])
            yield PolicyRun(name, [(p.candidate, p.trace) for p in proposals])


def _random_candidates(task: Task, count: int, seed: int) -> list[setting.RandomProgram]:
    """Distinct random programs."""
    found: dict[str, setting.RandomProgram] = {}
    for drawn in setting.random_programs(task, 4 * count, seed):
        if len(found) >= count:
            break
        found.setdefault(drawn.module_hash, drawn)
    return list(found.values())


def _outcomes(measurer: Any, task: Task, runs: Sequence[PolicyRun]) -> dict[str, Outcome]:
    """Measure every candidate once, in a random order."""
    distinct = {c.id: MeasureInput(c.id, trace) for one in runs for c, trace in one.candidates}
    inputs = random.Random(0).sample(list(distinct.values()), len(distinct))
    outcomes = measurer.measure(task, inputs)
    return {given.candidate_id: o for given, o in zip(inputs, outcomes, strict=True)}


def _shares(one: PolicyRun, outcomes: dict[str, Outcome], known: float) -> dict[int, float]:
    seconds = [outcomes[c.id].seconds for c, _ in one.candidates]
    return {k: max(known / min(seconds[:k]), 1e-3) for k in COUNTS}


def _peer_candidates(task: Task, options: Any, cores: tuple[int, ...]) -> list[Candidate]:
    from benchmarks.common import peer

    seeds = range(options.seeds if options.trials else 0)
    found = [peer.tune(task, options.trials, seed, cores) for seed in seeds]
    return [candidate for candidate in found if candidate is not None]


def _best(one: PolicyRun, outcomes: dict[str, Outcome]) -> Candidate:
    return min((c for c, _ in one.candidates), key=lambda c: outcomes[c.id].seconds)


def _compared_seconds(
    one: PolicyRun, outcomes: dict[str, Outcome], compared: dict[str, Outcome]
) -> float:
    return compared[_best(one, outcomes).id].seconds


def _draw_curve(document: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = {row["policy"]: row for row in document["rows"]}
    versions = document["versions"]
    figure, axes = pyplot.subplots(figsize=(8, 4.4), layout="constrained")
    shades = ("#c6dbef", "#6baed6", "#2171b5", "#08306b")
    end = len(versions) - 0.85

    def beside(share: float, colour: str, text: str, style: str) -> None:
        axes.plot((-0.15, end), (share, share), style, color=colour, lw=1, zorder=0)
        axes.annotate(text, (end + 0.05, share), fontsize=8, color=colour, va="center")

    for k, shade in zip(COUNTS, shades, strict=True):
        values = [rows[version][f"@{k}"] for version in versions]
        axes.plot(range(len(versions)), values, "o-", color=shade, label=f"TLM, best of {k}")
        beside(rows[_PICKED][f"@{k}"], "#c47a33", f"{_PICKED_LABEL}, {k}", "--")
    compared = {row["policy"]: row["share"] for row in document["finals"]}
    values = [compared[version] for version in versions]
    axes.plot(
        range(len(versions)), values, "D:", color="#3a3a3a", ms=5, label="finalist comparison"
    )
    if _PEER in compared:
        beside(compared[_PEER], "#3a3a3a", f"{_PEER},\ncompared", "-")
    axes.set_xticks(range(len(versions)), versions)
    axes.set_xlim(-0.2, len(versions) + 0.45)
    axes.set_ylabel("best known time / best time found")
    title = f"{len(document['tasks'])} held-out subgraphs, {document['seeds']} seeds"
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, frameon=False, loc="outside lower left", ncols=5)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
