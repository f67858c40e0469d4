"""Does the TLM get better? TLM-base and later versions on subgraphs they have never seen.

`python -m benchmarks.learning --checkpoint BASE --campaign STATE/checkpoints [--figure FILE]`: the
TLM-base that the campaign began with, versions of the campaign, evenly spaced, and the shipped one.
Each writes 16 candidates of each of eight subgraphs of held-out networks, once, without looking at
what came of them: by the language model, over-generated eightfold and picked by its own ranker,
best first. Beside them: random candidates, random candidates picked by the newest ranker (the
baseline to beat), and MetaSchedule's best of 64 trials. Reported is the best known time
of a subgraph over the best of the first 1, 4, 10 and 16 measured, geometric mean over subgraphs and
seeds. What each found in the end, MetaSchedule too, is raced against all others in interleaved
rounds; raced times are longer than the luckiest of many, so compare them with each other only.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report, setting
from benchmarks.setting import pin
from tlmd.config import SHIPPED
from tlmd.model import checkpoint
from tlmd.model.checkpoint import Checkpoint
from tlmd.types import Candidate, Outcome, Task

COUNTS = (1, 4, 10, 16)
# Tasks of held-out networks: GEMM (two), batched GEMM, softmax, layer norm, convolution (3x3 with
# stride 2, and 1x1), depthwise convolution.
_CHOSEN = {
    ("bert-base", (1, 128)): (
        "fused_matmul_add2",
        "fused_matmul4_add2_add",
        "matmul2",
        "fast_softmax",
        "layer_norm",
    ),
    ("resnet50", (1, 3, 224, 224)): ("fused_conv2d6_add5_relu4", "fused_conv2d7_add6_add7_relu5"),
    ("mobilenet-v2", (1, 3, 224, 224)): ("fused_conv2d7_add5_maximum3_minimum3",),
}
_OVER = 8
_RANDOM, _RANKED, _PEER = "random", "random + ranker", "MetaSchedule, 64 trials"


@dataclass
class Try:
    """What one policy wrote for one task with one seed, best first."""

    policy: str
    candidates: list[tuple[Candidate, str]]  # with their traces


def main() -> int:
    """Measure, print, write, draw."""
    parser = report.parser(__doc__, figure=True)
    parser.add_argument("--campaign", type=Path, help="the folder of its checkpoints")
    parser.add_argument("--versions", type=int, default=4, help="later versions (default 4)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=64, help="of MetaSchedule; 0: leave it out")
    options = parser.parse_args()
    document = report.document(options, _measure)
    report.show("best known time over the best of the first k", document["rows"])
    report.show("in the end, finalists raced", document["finals"])
    report.finish(document, options.json)
    if options.figure:
        _draw(document, options.figure)
    return 0


def _measure(options: Any) -> dict[str, Any]:
    here = report.machine()
    from tlmd.measure.client import Measurer
    from tlmd.measure.cores import plan_cores
    from tlmd.space.target import resolve

    everything, layout = tuple(sorted(os.sched_getaffinity(0))), plan_cores()
    pin(layout.build)
    tasks = held_out(resolve("native", len(layout.run)))
    policies = _policies(options)
    shares: dict[str, list[dict[int, float]]] = defaultdict(list)
    finals: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as cache,
        Measurer(tasks[0].target, layout, Path(cache), builders=3, lend=True) as measurer,
    ):
        for task in tasks:
            tries = list(_tries(task, policies, options.seeds))
            outcomes = _outcomes(measurer, task, tries)
            peers = _peers(task, options, everything)
            raced = _race(measurer, task, tries, peers, outcomes)
            known = min(o.seconds for o in [*outcomes.values(), *raced.values()])
            for one in tries:
                shares[one.policy].append(_shares(one, outcomes, known))
                finals[one.policy].append(known / _end(one, outcomes, raced))
            for candidate in peers:
                finals[_PEER].append(known / raced[candidate.id].seconds)
            print(task.name, {p: round(v[-1], 2) for p, v in finals.items()}, file=sys.stderr)
    rows = [
        {"policy": p, **{f"@{k}": report.geometric_mean(s[k] for s in found) for k in COUNTS}}
        for p, found in shares.items()
    ]
    ends = [{"policy": p, "share": report.geometric_mean(found)} for p, found in finals.items()]
    newest, ranked = rows[-1], next(r for r in rows if r["policy"] == _RANKED)
    return {
        "benchmark": "learning",
        "machine": here,
        "seeds": options.seeds,
        "tasks": [task.name for task in tasks],
        "versions": list(policies),
        "rows": rows,
        "finals": ends,
        "by_task": {p: [[s[k] for k in COUNTS] for s in found] for p, found in shares.items()},
        "ratio": newest["@10"] / ranked["@10"],
        "meaning": "best of 10 by the newest TLM over that of random candidates with its ranker",
    }


def held_out(target: Any) -> list[Task]:
    """The eight subgraphs."""
    from tlmd.workloads.corpus import workload_tasks

    chosen = []
    for workload, names in _CHOSEN.items():
        tasks = {task.name: task for task in workload_tasks(workload, target)}
        chosen += [tasks[name] for name in names]
    return chosen


def _policies(options: Any) -> dict[str, Checkpoint]:
    """TLM-base, versions of the campaign, evenly spaced, and the shipped one, by their names."""
    policies = {"TLM-base": setting.load(options.checkpoint, options.untrained)}
    folders = sorted(options.campaign.glob("v*")) if options.campaign else []
    count = min(options.versions, len(folders))
    for number in range(1, count + 1):
        found = checkpoint.load(folders[round(number * len(folders) / count) - 1])
        policies[f"version {found.version}"] = found
    if options.checkpoint:
        policies["shipped"] = checkpoint.load(SHIPPED)
    return policies


def _tries(task: Task, policies: Mapping[str, Checkpoint], seeds: int) -> Iterable[Try]:
    from tlmd.generate.generator import Generator, Policy

    policy = Policy(over=_OVER, explore=0.0, uniform=0.0)
    for seed in range(seeds):
        drawn = _random(task, _OVER * COUNTS[-1], seed)
        yield Try(_RANDOM, [(d.candidate, d.trace) for d in drawn[: COUNTS[-1]]])
        newest = Generator(list(policies.values())[-1], policy, seed)
        rows = newest.extractor(task).rows([d.schedule for d in drawn])
        scores = newest.checkpoint.ranker.score(rows)
        order = sorted(range(len(drawn)), key=lambda i: -scores[i])[: COUNTS[-1]]
        yield Try(_RANKED, [(drawn[i].candidate, drawn[i].trace) for i in order])
        for name, one in policies.items():
            proposals, _ = Generator(one, policy, seed).write(task, COUNTS[-1], [])
            yield Try(name, [(p.candidate, p.trace) for p in proposals])


def _random(task: Task, count: int, seed: int) -> list[setting.Drawn]:
    """Distinct random programs."""
    found: dict[str, setting.Drawn] = {}
    for drawn in setting.random_programs(task, 4 * count, seed):
        if len(found) >= count:
            break
        found.setdefault(drawn.module_hash, drawn)
    return list(found.values())


def _outcomes(measurer: Any, task: Task, tries: Sequence[Try]) -> dict[str, Outcome]:
    """Everything that was written, each measured once, in an order that favours nobody."""
    from tlmd.measure.client import Job

    distinct = {c.id: Job(task, c, trace) for one in tries for c, trace in one.candidates}
    jobs = random.Random(0).sample(list(distinct.values()), len(distinct))
    return {job.candidate.id: outcome for job, outcome in measurer.measure(jobs)}


def _shares(one: Try, outcomes: dict[str, Outcome], known: float) -> dict[int, float]:
    seconds = [outcomes[c.id].seconds for c, _ in one.candidates]
    return {k: max(known / min(seconds[:k]), 1e-3) for k in COUNTS}


def _peers(task: Task, options: Any, cores: tuple[int, ...]) -> list[Candidate]:
    from benchmarks import peer

    seeds = range(options.seeds if options.trials else 0)
    found = [peer.tune(task, options.trials, seed, cores) for seed in seeds]
    return [candidate for candidate in found if candidate is not None]


def _best(one: Try, outcomes: dict[str, Outcome]) -> Candidate:
    return min((c for c, _ in one.candidates), key=lambda c: outcomes[c.id].seconds)


def _race(
    measurer: Any,
    task: Task,
    tries: Sequence[Try],
    peers: Sequence[Candidate],
    outcomes: dict[str, Outcome],
) -> dict[str, Outcome]:
    """The best of every try and of the peer against each other."""
    racers = {c.id: c for c in [*(_best(t, outcomes) for t in tries), *peers]}
    found = measurer.final(task, list(racers.values()))
    if not found:
        raise SystemExit(f"the finalists of {task.name} could not be raced")
    return dict(zip(racers, found, strict=True))


def _end(one: Try, outcomes: dict[str, Outcome], raced: dict[str, Outcome]) -> float:
    return raced[_best(one, outcomes).id].seconds


def _draw(document: dict[str, Any], path: Path) -> None:
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
        beside(rows[_RANKED][f"@{k}"], "#c47a33", f"{_RANKED}, {k}", "--")
    raced = {row["policy"]: row["share"] for row in document["finals"]}
    values = [raced[version] for version in versions]
    axes.plot(range(len(versions)), values, "D:", color="#3a3a3a", ms=5, label="raced in the end")
    if _PEER in raced:
        beside(raced[_PEER], "#3a3a3a", f"{_PEER},\nraced", "-")
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
