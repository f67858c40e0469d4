"""Measure programs by tlmd's own rules, of synthetic tasks: what the cost model learns of them.

`python -m benchmarks.alternatives_measure --state DIR --out FILE [--groups 150] [--candidates 32]`
draws single operators (`tlmd.corpus.synthetic`, with a seed of their own) and measures
candidates of all their alternatives (`--only PREFIX`: of some): three fifths picked by the shipped
checkpoint, a fifth near the best programs so far, a fifth random. The direct programs are left to
`tlmd train`, but for those that have the sketch of `tlmd.space.rules.window_sketches`: `--windows
FILE` measures such tasks of a data set that has no records of them, a third each. `--joined`
measures the direct programs of attention and of expansions, `--seldom` alternatives of kinds that
networks have seldom.
It goes over all tasks again and again, 8 candidates at a time, so that it can be stopped at any
moment and continued with the same command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.common.measured import measure_in_rounds
from benchmarks.learning.bank_tasks import is_expansion
from tlmd.data.types import TargetInfo, Task

_ROUND = 8
_SHARES = {"picked": 0.6, "near": 0.2, "random": 0.2}
_SHARES_OF_WINDOWS = {"picked": 0.34, "near": 0.33, "random": 0.33}
_SEED = 20  # of the operators; `tlmd train` draws its corpora with 0 and 1


def main() -> int:
    """Measure and export."""
    parser = report.parser(__doc__, state="where the records are kept")
    parser.add_argument("--out", type=Path, required=True, help="the data set")
    parser.add_argument("--groups", type=int, default=150, help="with alternatives (default 150)")
    parser.add_argument("--candidates", type=int, default=32, help="per task (default 32)")
    parser.add_argument("--only", default="", help="alternatives whose names begin so")
    parser.add_argument("--windows", type=Path, help="depthwise convolutions and pools of a file")
    parser.add_argument("--joined", action="store_true", help="attention and expansions")
    parser.add_argument("--seldom", action="store_true", help="kinds that networks have seldom")
    parser.set_defaults(seed=_SEED)
    options = parser.parse_args()
    shares = _SHARES_OF_WINDOWS if options.windows else _SHARES
    goals = range(_ROUND, options.candidates + 1, _ROUND)
    measure_in_rounds(options.state, options.out, _draw(options), shares, goals)
    return 0


def _draw(options: Any) -> Callable[[TargetInfo], list[Task]]:
    """What draws the tasks that are asked for."""
    if options.windows:
        return partial(_windows, groups=options.groups, path=options.windows)
    drawn = {"groups": options.groups, "seed": options.seed}
    if options.joined:
        return partial(_joined, **drawn)
    return partial(_alternatives, **drawn, only=options.only, seldom=options.seldom)


def _windows(target: TargetInfo, groups: int, path: Path) -> list[Task]:
    """Tasks that are computed of each channel alone; half of them depthwise convolutions."""
    import tvm

    from tlmd.learn.encode_records import read_records
    from tlmd.space.hardware.target import tvm_target, vector_unit
    from tlmd.space.rules import window_sketches

    unit = vector_unit(tvm_target(target))
    known, records = read_records(path)
    found: dict[bool, list[Task]] = {True: [], False: []}
    for task in (task for task in known if not records[task.id]):
        if window_sketches.sketch(tvm.ir.load_json(task.module), unit, 1):
            found["conv" in task.name].append(replace(task, target=target))
    return [task for tasks in found.values() for task in tasks[: groups // 2]]


def _joined(target: TargetInfo, groups: int, seed: int) -> list[Task]:
    """Half of the tasks attention, half of them expansions with their depthwise convolutions."""
    from tlmd.corpus.synthetic_operators import JOINED

    found: dict[bool, list[Task]] = {True: [], False: []}
    for task in _synthetic(target, groups, seed, JOINED):
        if task.attention or is_expansion(task):
            found[bool(task.attention)].append(task)
        if min(map(len, found.values())) >= groups // 2:
            break
    return [task for pair in zip(*found.values(), strict=False) for task in pair]


def _alternatives(
    target: TargetInfo, groups: int, seed: int, only: str, seldom: bool
) -> list[Task]:
    """The alternatives of as many operators that have any, with names that begin with `only`."""
    from tlmd.corpus.synthetic_operators import SELDOM, USUAL
    from tlmd.lowering.alternatives import with_alternatives

    found: list[Task] = []
    for task in _synthetic(target, groups, seed, SELDOM if seldom else USUAL):
        others = [one for one in with_alternatives([task]) if one.alternative]
        found += [one for one in others if one.alternative.startswith(only)]
        if len({one.group for one in found}) >= groups:
            break
    return found


def _synthetic(
    target: TargetInfo, groups: int, seed: int, shares: Sequence[float]
) -> Iterator[Task]:
    """Many more tasks than groups, because only some of them are suitable."""
    from tlmd.corpus.corpus import held_out_ids
    from tlmd.corpus.synthetic import synthetic_tasks

    for portion in synthetic_tasks(target, held_out_ids(target), 10 * groups, seed, shares):
        yield from portion


if __name__ == "__main__":
    sys.exit(main())
