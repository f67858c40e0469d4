"""Train the language model: `python -m tlmd.tlm.pretrain --demonstrations FILE --out WEIGHTS`.

It needs torch, numpy, msgpack and safetensors, not TVM: `python -m tlmd.learn.encode_records`
makes the demonstrations; `WEIGHTS` is a .safetensors file. Every twentieth task, or 60 of many, are
kept out of training, to show how well the model orders candidates of tasks that it has never seen
(``--kept-out``: those of another file, and training is on all). With ``--device cuda`` it trains on
a card, all tasks of a step in one pass, with products in TF32.
The weights are written every few minutes; with ``--start`` training goes on from such a file.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import safetensors.torch
import torch

from tlmd.processes.durable import replacing
from tlmd.tlm import network
from tlmd.tlm.demonstration import TaskDemonstrations, TaskTensors
from tlmd.tlm.demonstration_file import read_demonstrations
from tlmd.tlm.network import Gpt2
from tlmd.tlm.ranking import rank
from tlmd.tlm.training import Trainer, TrainingPlan, until

_VALIDATION = 20  # one task in 20 is held out,
_MOST_KEPT_OUT = 60  # 60 at most: ranking more takes minutes each time
_SAVE_S = 180.0


def main(arguments: list[str]) -> int:
    """Train and save; progress goes to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demonstrations", type=Path, nargs="+", required=True)
    parser.add_argument("--kept-out", type=Path, help="demonstrations that only judge")
    parser.add_argument("--out", type=Path, required=True, help="a .safetensors file")
    parser.add_argument("--start", type=Path, help="weights to start from")
    parser.add_argument("--preset", default="nano", choices=sorted(network.PRESETS))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--learning-rate", type=float, default=TrainingPlan.learning_rate)
    for weight in ("differences", "likelihood", "worst"):
        usual = getattr(TrainingPlan, weight)
        parser.add_argument(f"--{weight}", type=float, default=usual, help=f"default {usual:g}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.device != "cpu":
        torch.set_float32_matmul_precision("high")  # TF32
    tasks = sorted(
        (task for path in options.demonstrations for task in read_demonstrations(path)),
        key=lambda task: task.task_id,
    )
    training, judging = _parts(tasks, options.kept_out)
    kept_out = [TaskTensors(task) for task in judging]
    model = network.create(options.preset, options.seed)
    if options.start:
        model.load_state_dict(safetensors.torch.load_file(options.start), strict=False)
    model.to(options.device)
    print(f"{len(training)} tasks, {len(kept_out)} kept out: {rank(model, kept_out)}", flush=True)
    _train(model, training, kept_out, options)
    _save(model, options.out)
    print(f"saved {options.out}: {rank(model, kept_out)}", flush=True)
    return 0


def _parts(
    tasks: list[TaskDemonstrations], kept_out: Path | None
) -> tuple[list[TaskDemonstrations], list[TaskDemonstrations]]:
    """The tasks that train and those that judge."""
    if kept_out is not None:
        return tasks, list(read_demonstrations(kept_out))
    every = max(_VALIDATION, -(-len(tasks) // _MOST_KEPT_OUT))
    return [task for index, task in enumerate(tasks) if index % every], tasks[::every]


def _train(
    model: Gpt2,
    training: list[TaskDemonstrations],
    kept_out: list[TaskTensors],
    options: argparse.Namespace,
) -> None:
    """Train for the minutes that the options say, and write the weights now and then."""
    plan = TrainingPlan(
        learning_rate=options.learning_rate,
        differences=options.differences,
        likelihood=options.likelihood,
        worst=options.worst,
        seed=options.seed,
    )
    begin = saved_at = time.monotonic()
    recent: list[float] = []

    def report(step: int, loss: float) -> bool:
        nonlocal saved_at
        recent.append(loss)
        now = time.monotonic()
        if now - saved_at > _SAVE_S:
            saved_at = now
            _save(model, options.out)
            passes = (step + 1) * plan.tasks_per_step / len(training)
            print(
                f"{(now - begin) / 60:.0f} min, {step + 1} steps, {passes:.1f} passes, "
                f"loss {sum(recent) / len(recent):.3f}: {rank(model, kept_out)}",
                flush=True,
            )
            recent.clear()
            model.train()
        return True

    losses = Trainer(model, plan).fit(training, report, until(options.minutes * 60, time.monotonic))
    print(f"{len(losses)} steps")


def _save(model: Gpt2, path: Path) -> None:
    """Write the weights."""
    weights = {name: weight.cpu().contiguous() for name, weight in model.state_dict().items()}
    with replacing(path) as new:
        safetensors.torch.save_file(weights, new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
