"""The commands that talk to a daemon. Each command imports heavy packages only when it runs."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tlmd.client.commands import arguments
from tlmd.corpus.corpus import CORPORA
from tlmd.data.errors import BadInput

Common = Callable[[argparse.ArgumentParser], None]
_FOLLOW_S = 0.3
_LINES = 40
_JOBS = 30


def add(commands: Any, common: Common, job: Common) -> None:
    """Add the parsers of these commands to `commands`.

    `common` adds the options that all commands have; `job` adds the options that describe a job.
    """

    def command(name: str, text: str, run: Callable[[Any], int]) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
        common(parser)
        parser.set_defaults(run=run)
        return parser

    start = command("start", "start the daemon in the background", _start)
    arguments.add_cores(start)
    start.add_argument(
        "--no-restart",
        dest="restart",
        action="store_false",
        help="do not start the daemon again when it has died",
    )
    stop = command("stop", "stop the daemon; everything measured is kept", _stop)
    stop.add_argument("--now", action="store_true", help="do not wait for work in flight")
    command("status", "show what the daemon is doing", _status)
    submit = command(
        "submit", "give the daemon a model to tune; ends when the model works", _submit
    )
    job(submit)
    submit.add_argument(
        "--detach", action="store_true", help="do not wait until the model is known to work"
    )
    submit.add_argument(
        "--wait-for-hardware",
        action="store_true",
        help="take the job even if no slot of the cluster has its target, and wait for one",
    )
    jobs = command("jobs", "list the newest jobs", _jobs)
    jobs.add_argument("-n", type=arguments.positive, default=_JOBS, metavar="COUNT")
    jobs.add_argument("--before", default="", metavar="JOB", help="list those before this one")
    wait = command("wait", "wait until a job has ended", _wait)
    cancel = command("cancel", "end a job; everything measured is kept", _cancel)
    export = command("export", "compile a job's model with its best programs", _export)
    for parser in (wait, cancel, export):
        parser.add_argument("job", metavar="JOB")
    export.add_argument("--out", type=Path, metavar="DIR", required=True)
    export.add_argument(
        "--lowered",
        action="store_true",
        help="also write lowered.json, the model that the records apply to, for TVM without tlmd",
    )
    command("pause", "pause the daemon; work in flight is finished", _pause)
    command("resume", "continue after a pause", _resume)
    command("watch", "show the daemon's status until Ctrl-C", _watch)
    logs = command("logs", "print the daemon's log", _logs)
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", type=int, default=_LINES, metavar="LINES")
    checkpoints = command("checkpoints", "list versions of the TLM, or choose one", _checkpoints)
    checkpoints.add_argument("action", nargs="?", choices=["promote", "rollback", "unpin"])
    checkpoints.add_argument("version", nargs="?", type=int, metavar="V")
    train = command("train", "train the TLM on a corpus (the paper's campaign)", _train)
    train.add_argument(
        "--corpus",
        default="paper",
        help="'paper' (networks), 'synthetic' (single operators), 'seldom' (other operators, most "
        "of kinds that networks have seldom) or a file of tasks",
    )
    train.add_argument("--until-converged", action="store_true", help="end when gains are small")
    train.add_argument("--trials", type=int, default=0, help="measurements per task, at most")
    arguments.add_shares(train)


def _state_dir(options: Any) -> Path:
    from tlmd.data.state_dir import default_state_dir

    return Path(options.state_dir or default_state_dir()).absolute()


def _daemon(options: Any) -> Any:
    from tlmd.client.lifecycle import connect

    return connect(_state_dir(options))


def _print(options: Any, document: Any, text: str) -> int:
    print(json.dumps(document, indent=1) if options.json else text)
    return 0


def _start(options: Any) -> int:
    from tlmd.client import lifecycle
    from tlmd.data import config as configuration

    flags = {"measure.run_cores": options.cores} if options.cores else {}
    configuration.load(options.config, flags)  # a mistake is reported here, not in the log
    state_dir = _state_dir(options)
    running = lifecycle.running(state_dir)
    if running is not None:
        lifecycle.check_cores(running, options.cores)
    daemon = running or lifecycle.start(state_dir, options.config, flags, restart=options.restart)
    facts = {"pid": daemon.pid, "url": daemon.url, "state_dir": str(state_dir)}
    text = (
        f"tlmd {'runs already' if running else 'runs'} at {daemon.url} (pid {daemon.pid})\n"
        f"page   {daemon.page_link()}\n"
        f"state  {state_dir}\n"
        f"log    {lifecycle.log_of(state_dir)}"
    )
    return _print(options, facts, text)


def _stop(options: Any) -> int:
    from tlmd.client import lifecycle

    pid = lifecycle.stop(_state_dir(options), now=options.now)
    return _print(options, {"stopped": pid}, "stopped; everything measured is kept")


def _status(options: Any) -> int:
    document = _daemon(options).status()
    from tlmd.client.display import views

    return _print(options, document, views.status_text(document))


def _submit(options: Any) -> int:
    from tlmd.data import config as configuration

    daemon = _daemon(options)
    config = configuration.load(options.config, arguments.job_settings(options))
    from tlmd.models import frontends

    frontends.check(options.model)
    path = Path(options.model).expanduser()
    model = str(path.absolute()) if path.exists() else options.model
    job = daemon.submit(
        model,
        input_shape=options.input_shape,
        task=options.task,
        weights=options.weights,
        strict_numerics=options.strict_numerics,
        precision=options.precision,
        target=options.target,
        trials=config.tune.trials,
        time_budget=options.time_budget,
        priority=config.tune.priority,
        weight=config.tune.weight,
        wait_for_hardware=options.wait_for_hardware,
    )
    if not options.detach:
        from tlmd.client.display import views

        views.until_accepted(job)
    return _print(options, {"id": job.id}, f"{job.id}: `tlmd wait {job.id}` waits for it")


def _jobs(options: Any) -> int:
    jobs = _daemon(options).jobs(options.n, options.before)
    from tlmd.client.display import views

    text = views.jobs_text(jobs)
    if len(jobs) == options.n:
        text += f"\nolder ones: tlmd jobs --before {jobs[0]['id']}"
    return _print(options, jobs, text)


def _wait(options: Any) -> int:
    from tlmd.client.display import views

    job = _daemon(options).job(options.job)
    document = views.wait(job, quiet=options.json)
    return _print(options, document, views.job_text(document))


def _cancel(options: Any) -> int:
    _daemon(options).job(options.job).cancel()
    return _print(options, {"id": options.job, "state": "cancelled"}, f"{options.job} cancelled")


def _export(options: Any) -> int:
    from tlmd.client.display import terminal

    folder = _state_dir(options)
    return terminal.export(folder, options.job, options.out, options.lowered, options.json)


def _pause(options: Any) -> int:
    _daemon(options).pause()
    return _print(options, {"state": "paused"}, "paused; `tlmd resume` continues")


def _resume(options: Any) -> int:
    _daemon(options).resume()
    return _print(options, {"state": "running"}, "resumed")


def _watch(options: Any) -> int:
    from tlmd.client.display import views

    return views.watch(_daemon(options), as_json=options.json)


def _logs(options: Any) -> int:
    from tlmd.client.lifecycle import log_of

    path = log_of(_state_dir(options))
    if not path.exists():
        raise BadInput(f"{path} does not exist; `tlmd start` starts a daemon that writes it")
    with path.open(errors="replace") as file:
        print("".join(file.readlines()[-options.n :]), end="")
        while options.follow:
            line = file.readline()
            print(line, end="", flush=True)
            if not line:
                time.sleep(_FOLLOW_S)
    return 0


def _checkpoints(options: Any) -> int:
    daemon = _daemon(options)
    if options.action == "unpin":
        version = daemon.unpin()
        text = f"version {version} is in force until a newer one passes the gate"
        return _print(options, {"version": version}, text)
    if options.action and options.version is None:
        raise BadInput(f"no version given; use `tlmd checkpoints {options.action} V`")
    if options.action:
        use = daemon.promote if options.action == "promote" else daemon.rollback
        version = use(options.version)
        text = f"version {version} is in force until `tlmd checkpoints unpin`"
        return _print(options, {"version": version}, text)
    checkpoints = daemon.checkpoints()
    from tlmd.client.display import views

    return _print(options, checkpoints, views.checkpoints_text(checkpoints))


def _train(options: Any) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config, arguments.shares(options))
    corpus = options.corpus
    if corpus not in CORPORA:
        corpus = str(Path(corpus).absolute())
        if not Path(corpus).is_file():
            names = " or ".join(map(repr, CORPORA))
            raise BadInput(f"no such file: {options.corpus}; use {names} or a file of tasks")
    from tlmd.client.display import views

    return views.train(
        _state_dir(options),
        options.config,
        corpus,
        options.trials,
        options.until_converged,
        config.tune,
        as_json=options.json,
    )
