"""The tensor language model as a search strategy of TVM's MetaSchedule.

    ms.tune_tir(module, target, work_dir, max_trials_global=64, strategy=TLMSearchStrategy())

MetaSchedule builds, runs and stores the candidates as always; the TLM writes them, and its cost
model picks what is measured. It works for `tune_tir`, `tune_tasks` and `tune_relax`.
"""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tlmd.data.config import SHIPPED, GenerateConfig
from tlmd.data.types import Candidate, Outcome, Proposal, Record, Status, Task
from tlmd.generate.generator import Generator
from tlmd.lowering.identity import task_id
from tlmd.space.cache import SpaceCache
from tlmd.space.hardware import target as targets
from tlmd.tlm import checkpoint as checkpoints
from tlmd.tlm.torch_settings import one_thread

_loaded: dict[str, checkpoints.Checkpoint] = {}


@derived_object
class TLMSearchStrategy(ms.search_strategy.PySearchStrategy):  # type: ignore[misc]
    """Candidates by the TLM in `checkpoint` (default: the one that ships with tlmd).

    `config` says how many candidates are written for each that is measured, and how they are
    picked. The design space and the cost model that MetaSchedule was given are not used. Raises
    `BadInput` if the checkpoint or the target cannot be used.
    """

    def __init__(
        self,
        checkpoint: str | Path = SHIPPED,
        config: GenerateConfig | None = None,
        seed: int | None = None,
    ) -> None:
        self._checkpoint = str(checkpoint)
        self._config = config or GenerateConfig()
        self._seed = seed
        self._context: Any = None
        self._task: Task | None = None
        self._proposals: list[Proposal] = []
        self._records: list[Record] = []
        self._refused: list[tuple[str, str]] = []
        self._left, self._batch = 0, 0
        _drop_nameless_handlers()

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._context = context

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Any,
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Begin a task with at most `max_trials` measurements."""
        context = self._context
        cores = int(context.target.attrs.get("num-cores", 1))
        target = targets.resolve(str(context.target), cores)
        module = context.mod
        self._task = Task(
            task_id(module), str(context.task_name), 1, 0.0, str(tvm.ir.save_json(module)), target
        )
        self._proposals, self._records, self._refused = [], [], []
        self._left, self._batch = int(max_trials), int(num_trials_per_iter)
        self._spaces = SpaceCache()
        seed = int(context.rand_state) if self._seed is None else self._seed
        self._generator = Generator(_load(self._checkpoint), self._config, max(seed, 0))

    def post_tuning(self) -> None:
        """End the task."""
        self._task = None

    def generate_measure_candidates(self) -> list[Any] | None:
        """The next batch; None when all trials are done or the design space is exhausted."""
        if self._task is None or self._left <= 0:
            return None
        with one_thread():
            self._proposals, refused = self._generator.write(
                self._task, min(self._batch, self._left), self._records, self._refused
            )
        self._refused += [(r.candidate.id, r.module_hash) for r in refused]
        if not self._proposals:
            return None
        self._left -= len(self._proposals)
        return [self._measurable(p.candidate) for p in self._proposals]

    def _measurable(self, candidate: Candidate) -> Any:
        assert self._task is not None
        schedule = self._spaces.get(self._task).finish(candidate)
        arguments = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        return ms.MeasureCandidate(schedule, arguments)

    def notify_runner_results(self, measure_candidates: Any, results: Any) -> None:
        """Remember what was measured: the next batch refines the best."""
        for proposal, result in zip(self._proposals, results, strict=True):
            seconds = tuple(float(s) for s in result.run_secs or ())
            outcome = Outcome(Status.RUN_ERROR, detail=str(result.error_msg or "")[:200])
            if seconds:
                # MetaSchedule compares no outputs: what ran counts as right.
                estimate = statistics.median(seconds)
                outcome = Outcome(Status.OK, seconds, verified=True, estimate=estimate)
            self._records.append(
                Record(
                    proposal.candidate,
                    outcome,
                    proposal.version,
                    module_hash=proposal.module_hash,
                    features=proposal.features,
                    writer=proposal.writer,
                )
            )

    def clone(self) -> TLMSearchStrategy:
        """A strategy of its own for another task."""
        return TLMSearchStrategy(self._checkpoint, self._config, self._seed)


def _drop_nameless_handlers() -> None:
    """`ms.tune_tir` fails if its logger has a handler without a name, as other libraries add."""
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    for handler in list(logger.handlers):
        if handler.get_name() is None:
            logger.removeHandler(handler)


def _load(directory: str) -> checkpoints.Checkpoint:
    """The checkpoint, read once for all tasks of this process."""
    if directory not in _loaded:
        _loaded[directory] = checkpoints.load(Path(directory))
    return _loaded[directory]
