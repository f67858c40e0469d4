"""How good is what tlmd finds for a subgraph, against MetaSchedule? The paper's Table 3.

`python -m benchmarks.subgraphs --holdout strict [--peer-trials 64 1000]` takes 16 subgraphs of the
paper's test networks, at batch 1 or 2. Nothing of these networks' families has trained the shipped
checkpoint. tlmd writes, times and refines candidates as the daemon does, 8 at a time, but without
fine-tuning. The first program, and the best after 10, 16, 32 and 64 measurements, are timed in
interleaved rounds against the best programs that MetaSchedule has found, also after its
post-optimization (`1000+`), where the longest search was followed by one.

`seconds of 1000 / until it` is how many times sooner tlmd has a program as fast as that of the
peer: the seconds of its search over ours until the end of that batch, with the references that
candidates are verified by. Subgraphs where 64 measurements do not suffice have no such figure.

What MetaSchedule finds is kept in `data/metaschedule.json` with the seconds that it took, and
searched again only on another kind of CPU. Nothing is ever trained on it. The headline `ratio` is
the time of MetaSchedule's program over that of tlmd's after 64 measurements, geometric mean.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import peer, report, setting
from benchmarks.common.measured import compare_finalists, searched
from benchmarks.learning.bank_tasks import KINDS, bank_tasks
from tlmd.data.types import Candidate, MeasureInput, Record, Task

COUNTS = (1, 10, 16, 32, 64)
_BASELINES = Path(__file__).parent / "data" / "metaschedule.json"
# Positions in `bank_tasks`: one or more of every kind.
_CHOSEN = (0, 1, 2, 4, 6, 11, 13, 14, 16, 17, 21, 23, 25, 31, 35, 36)


def main() -> int:
    """Search, compare, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--holdout", choices=("strict",), default="strict")
    parser.add_argument("--peer-trials", type=int, nargs="+", default=[64])
    parser.add_argument(
        "--post-optimization", action="store_true", help="after the longest of the peer's searches"
    )
    parser.add_argument("--trials", type=int, default=COUNTS[-1])
    parser.add_argument("--limit", type=int, help="so many subgraphs only")
    parser.add_argument("--kinds", nargs="+", choices=sorted(set(KINDS)), help="only these")
    options = parser.parse_args()
    document = _measure(options)
    report.show("time of MetaSchedule's program over tlmd's", document["rows"])
    report.show("geometric means", document["means"])
    report.finish(document, options.json)
    return 0


def _measure(options: Any) -> report.Row:
    here = report.machine()
    from tlmd.measure.cores.core_plan import plan_cores
    from tlmd.measure.measurer import Measurer
    from tlmd.space.hardware.target import resolve

    cores, layout = tuple(sorted(os.sched_getaffinity(0))), plan_cores(run=1)
    tasks = bank_tasks(resolve("native", len(layout.run)))
    kinds = options.kinds or KINDS
    chosen = [(tasks[i], KINDS[i]) for i in _CHOSEN if KINDS[i] in kinds][: options.limit]
    baselines = Baselines(_BASELINES)
    longest = max(options.peer_trials)
    for task, _ in chosen:
        for trials in options.peer_trials:
            optimize = options.post_optimization and trials == longest
            baselines.search(task, trials, options.seed, cores, optimize)
    setting.pin(layout.build)
    checkpoint = setting.load(options.checkpoint, options.untrained)
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as cache,
        Measurer(layout, Path(cache)) as measurer,
    ):
        for task, kind in chosen:
            begin = time.time()
            records = searched(measurer, task, checkpoint, options.trials, options.seed)
            row: report.Row = {"subgraph": task.name[:40], "kind": kind}
            row |= {"seconds": time.time() - begin, "writer": _winner(records).writer.value}
            peers: dict[str, MeasureInput] = {}
            for trials in options.peer_trials:
                peers |= baselines.found(task, trials)
            ratios = _ratios(measurer, task, records, peers)
            for trials in options.peer_trials:
                ours = _seconds_until(ratios, str(trials), records, begin)
                row[f"seconds of {trials} / until it"] = baselines.seconds(task, trials) / ours
            rows.append(row | ratios)
            print(rows[-1], file=sys.stderr, flush=True)
    names = list(dict.fromkeys(name for row in rows for name in row if "/" in name))
    means: list[report.Row] = []
    for name in names:
        values = [value for row in rows if (value := float(str(row.get(name, "nan")))) > 0]
        mean = report.geometric_mean(values)
        means.append({"figure": name, "subgraphs": len(values), "mean": mean})
    return {
        "benchmark": "subgraphs",
        "machine": here,
        "rows": rows,
        "means": means,
        "ratio": means[-1]["mean"] if means else float("nan"),
        "meaning": f"speed of tlmd's program over MetaSchedule's, {names[-1:]}",
    }


def _ratios(
    measurer: Any, task: Task, records: Sequence[Record], peers: dict[str, MeasureInput]
) -> report.Row:
    """Ratios of interleaved times."""
    best = {k: _winner(records[:k]) for k in COUNTS}
    right = {
        name: given
        for name, given in peers.items()
        if (outcome := measurer.measure(task, [given])[0]).ok and outcome.verified
    }
    outcomes = compare_finalists(
        measurer, task, [r.candidate for r in best.values()], right.values()
    )
    seconds = {i: outcome.seconds for i, outcome in outcomes.items()}
    row: report.Row = {}
    for name, given in peers.items():
        for k in COUNTS:
            ours = min(seconds[best[j].candidate.id] for j in COUNTS if j <= k)
            row[f"@{k} / {name}"] = (
                seconds[given.candidate_id] / ours if name in right else float("nan")
            )
    return row


def _winner(records: Sequence[Record]) -> Record:
    return min(records, key=lambda record: record.outcome.seconds)


def _seconds_until(
    ratios: report.Row, peer_name: str, records: Sequence[Record], begin: float
) -> float:
    """From `begin` to the end of the batch with which tlmd is as fast as that peer; NaN: never."""
    for k in COUNTS:
        if float(str(ratios.get(f"@{k} / {peer_name}", "nan"))) >= 1:
            return records[min(k, len(records)) - 1].created - begin
    return float("nan")


class Baselines:
    """The best programs that MetaSchedule has found, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[report.Row] = json.loads(path.read_text()) if path.exists() else []

    def search(
        self, task: Task, trials: int, seed: int, cores: tuple[int, ...], optimize: bool
    ) -> None:
        """Search, unless the file has what was found on this kind of CPU."""
        if self._entry(task, trials) is not None:
            return
        found = peer.search(task, trials, seed, cores, optimize=optimize)
        entry = {
            "task": task.id,
            "name": task.name,
            "fingerprint": task.target.fingerprint,
            "trials": trials,
            "seed": seed,
            "seconds": round(found.seconds, 1),
            "sketch": found.best.sketch if found.best else -1,
            "decisions": found.best.decisions if found.best else (),
        }
        if optimize:
            seconds = round(found.optimized_seconds, 1)
            entry |= {"optimized": found.optimized, "optimized_seconds": seconds}
        self._entries.append(entry)
        self._path.parent.mkdir(exist_ok=True)
        lines = ",\n".join(json.dumps(entry) for entry in self._entries)
        self._path.write_text(f"[\n{lines}\n]\n")
        print(f"MetaSchedule, {trials} trials: {task.name} in {entry['seconds']} s", flush=True)

    def found(self, task: Task, trials: int) -> dict[str, MeasureInput]:
        """Its best programs by what found them: ``64``, ``1000``, ``1000+`` (post-optimized)."""
        from tlmd.space.space import TaskSpace

        entry = self._entry(task, trials)
        if entry is None or entry["sketch"] < 0:
            return {}
        decisions = tuple(tuple(d) for d in entry["decisions"])
        candidate = Candidate(task.id, entry["sketch"], decisions)
        best = MeasureInput(candidate.id, TaskSpace(task).trace_json(candidate))
        optimized = entry.get("optimized")
        if optimized is None:
            return {str(trials): best}
        other = MeasureInput("optimized", optimized) if optimized else best
        return {str(trials): best, f"{trials}+": other}

    def seconds(self, task: Task, trials: int) -> float:
        """How long its search took; NaN where there was none."""
        entry = self._entry(task, trials)
        return float(str(entry["seconds"])) if entry else float("nan")

    def _entry(self, task: Task, trials: int) -> report.Row | None:
        wanted = (task.id, task.target.fingerprint, trials)
        for entry in self._entries:
            if (entry["task"], entry["fingerprint"], entry["trials"]) == wanted:
                return entry
        return None


if __name__ == "__main__":
    sys.exit(main())
