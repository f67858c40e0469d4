"""The commands about jobs of a daemon. Each command imports heavy packages only when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tlmd.client.commands.arguments import job_request, state_dir
from tlmd.client.commands.daemon_commands import daemon_of, print_result
from tlmd.client.default_shapes import with_shapes
from tlmd.corpus.corpus import CORPORA
from tlmd.data.errors import BadInput


def submit(options: argparse.Namespace) -> int:
    request = with_shapes(job_request(options), options.yes)
    from tlmd.data import config as configuration

    daemon = daemon_of(options)
    config = configuration.load(options.config)
    from tlmd.models import frontends

    frontends.check(request.name)
    path = Path(request.name).expanduser()
    if path.exists():
        request = request.model_copy(update={"name": str(path.absolute())})
    if reason := frontends.weights_note(request):
        print(f"tlmd: the weights of {request.name} are random: {reason}", file=sys.stderr)
    job = daemon.submit_request(request.with_defaults(config.tune))
    if not options.detach:
        from tlmd.client.display import views

        views.until_accepted(job)
    return print_result(options, {"id": job.id}, f"{job.id}: `tlmd wait {job.id}` waits for it")


def jobs(options: argparse.Namespace) -> int:
    jobs = daemon_of(options).jobs(options.n, options.before)
    from tlmd.client.display import views

    text = views.jobs_text(jobs)
    if len(jobs) == options.n:
        text += f"\nolder ones: tlmd jobs --before {jobs[0]['id']}"
    return print_result(options, jobs, text)


def wait(options: argparse.Namespace) -> int:
    from tlmd.client.display import views

    job = daemon_of(options).job(options.job)
    document = views.wait(job, quiet=options.json)
    return print_result(options, document, views.job_text(document))


def cancel(options: argparse.Namespace) -> int:
    daemon_of(options).job(options.job).cancel()
    return print_result(
        options, {"id": options.job, "state": "cancelled"}, f"{options.job} cancelled"
    )


def export(options: argparse.Namespace) -> int:
    from tlmd.client.display import terminal

    folder = state_dir(options)
    return terminal.export(folder, options.job, options.out, options.lowered, options.json)


def train(options: argparse.Namespace) -> int:
    corpus = options.corpus or "paper"
    if corpus not in CORPORA:
        path = Path(corpus).absolute()
        if not path.is_file():
            names = " or ".join(map(repr, CORPORA))
            raise BadInput(f"no such file: {corpus}; use {names} or a file of tasks")
        corpus = str(path)
    request = job_request(options, corpus=corpus)
    from tlmd.data import config as configuration

    config = configuration.load(options.config)
    from tlmd.client.display import views

    request = request.with_defaults(config.tune)
    return views.train(state_dir(options), options.config, request, as_json=options.json)
