"""A whole model as stock MetaSchedule tunes it within a time limit.

Run by `end_to_end` in a process of its own, on the cores that it may use: ``python -m
benchmarks.metaschedule_model MODEL SECONDS DIRECTORY`` writes ``model.so`` and ``found.json``
(trials, seconds) to DIRECTORY. The passes are those of TVM's `static_shape_tuning_pipeline` with
packed weights (`cpu_weight_prepack`), except that the weights are constants of the module, so that
they are packed when the model is compiled. A turn of a task has 16 trials: with TVM's default of 64
most tasks would get none in the time. MetaSchedule takes up the first results when each task has
had a turn, so a search lasts until then at least.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import peer

_TRIALS_A_TURN = 16
_NO_LIMIT = 1_000_000
_OVER = "the time for MetaSchedule is over"


def main(model: str, seconds: float, directory: Path) -> None:
    """Import, tune until the time is over, compile, write."""
    import tvm
    from tvm import relax

    from tlmd.space.hardware.target import resolve, tvm_target

    peer.register_intrinsics()
    target = tvm_target(resolve("native", len(os.sched_getaffinity(0))))
    with target:
        module = _lowered(model)
        begin = time.monotonic()
        trials = _tune(module, target, directory, begin + seconds)
        found = {"trials": trials, "seconds": round(time.monotonic() - begin, 1)}
        module = tvm.transform.Sequential(
            [
                relax.transform.MetaScheduleApplyDatabase(str(directory)),
                relax.transform.SplitLayoutRewritePreproc(),
                relax.transform.LiftTransformParams(),
                relax.transform.FoldConstant(),
            ]
        )(module)
        tvm.compile(module, target=target).export_library(str(directory / "model.so"))
    (directory / "found.json").write_text(json.dumps(found))


def _lowered(model: str) -> Any:
    """The model's module, ready to be tuned."""
    import torch
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    from tlmd.data.model_spec import ModelSpec
    from tlmd.models import factories

    module, example = factories.make(ModelSpec(model))
    with torch.inference_mode():
        exported = torch.export.export(module.eval(), tuple(example))
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.get_pipeline("zero"),
        relax.transform.AttachAttrLayoutFreeBuffers(),
    ]
    return tvm.transform.Sequential(passes)(from_exported_program(exported))


def _tune(module: Any, target: Any, directory: Path, end: float) -> int:
    """Tune until `end` (seconds of `time.monotonic`); the number of trials."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    trials = 0
    known: set[int] = set()

    @derived_object
    class Deadline(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        """Counts trials; stops the search when the time is over and all tasks have results."""

        def apply(
            self, scheduler: Any, task: int, candidates: Any, built: Any, measured: Any
        ) -> None:
            nonlocal trials
            trials += len(candidates)
            known.add(task)
            if time.monotonic() > end and len(known) == len(scheduler.tasks_):
                raise TimeoutError(_OVER)

    callbacks = [
        ms.measure_callback.AddToDatabase(),
        ms.measure_callback.RemoveBuildArtifact(),
        ms.measure_callback.UpdateCostModel(),
        Deadline(),
    ]
    try:
        ms.relax_integration.tune_relax(
            mod=module,
            params={},
            target=target,
            work_dir=str(directory),
            max_trials_global=_NO_LIMIT,
            num_trials_per_iter=_TRIALS_A_TURN,
            builder=peer.stock_builder(),
            measure_callbacks=callbacks,
            seed=0,
        )
    except Exception as error:
        if _OVER not in str(error):
            raise
    return trials


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
