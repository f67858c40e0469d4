"""The commands about one model, without a daemon: `tlmd tune`, `compile`, `check`, `zoo`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from tlmd.client.commands.arguments import job_request, state_dir
from tlmd.client.default_shapes import with_shapes

if TYPE_CHECKING:
    from tlmd.data.job_request import JobRequest


def tune(options: argparse.Namespace) -> int:
    flags = {
        "tune.seed": options.seed,
        "measure.run_cores": options.cores,
        "measure.wait_quiet": options.wait_quiet,
    }
    return _tune(options, job_request(options), flags)


def compile_model(options: argparse.Namespace) -> int:
    flags = {"measure.run_cores": options.cores}
    return _tune(options, job_request(options, trials=0), flags)


def _tune(options: argparse.Namespace, job: JobRequest, flags: dict[str, Any]) -> int:
    request = with_shapes(job, options.yes)
    from tlmd.data import config as configuration

    config = configuration.load(options.config, flags)
    from tlmd.client.display import terminal
    from tlmd.client.tune_request import TuneRequest

    call = TuneRequest(
        request.with_defaults(config.tune),
        out=options.out,
        state_dir=state_dir(options),
        config=options.config,
        flags={key: value for key, value in flags.items() if value is not None},
    )
    return terminal.tune(call, config, as_json=options.json)


def check(options: argparse.Namespace) -> int:
    request = with_shapes(job_request(options), options.yes)
    from tlmd.data import config as configuration

    config = configuration.load(options.config, {"measure.run_cores": options.cores})
    from tlmd.client import check as checking
    from tlmd.data.state_dir import make_state_dir

    return checking.run(request, config, make_state_dir(state_dir(options)), as_json=options.json)


def list_networks(options: argparse.Namespace) -> int:
    from tlmd.models.zoo.catalogue import zoo

    entries: list[dict[str, Any]] = [
        {"name": e.name, "input_shape": list(e.shape), "dtype": e.dtype, "tasks": e.tasks}
        for e in zoo().values()
    ]
    if options.json:
        print(json.dumps(entries, indent=1))
        return 0
    for entry in entries:
        shape = ",".join(map(str, entry["input_shape"]))
        print(f"{entry['name']:18} {entry['dtype']:9} {shape:18} {entry['tasks']:3} tasks")
    return 0
