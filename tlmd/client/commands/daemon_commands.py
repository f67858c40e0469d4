"""The commands about the daemon itself. Each command imports heavy packages only when it runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from tlmd.client.commands.arguments import state_dir
from tlmd.data.errors import BadInput

if TYPE_CHECKING:
    from tlmd.client.connection import Daemon

_FOLLOW_S = 0.3


def daemon_of(options: argparse.Namespace) -> Daemon:
    """The daemon that runs on the command's state directory. Raises `NoDaemon`."""
    from tlmd.client.lifecycle import connect

    return connect(state_dir(options))


def print_result(options: argparse.Namespace, document: Any, text: str) -> int:
    """Print a result as JSON or as text; the exit code."""
    print(json.dumps(document, indent=1) if options.json else text)
    return 0


def start(options: argparse.Namespace) -> int:
    from tlmd.client import lifecycle
    from tlmd.data import config as configuration
    from tlmd.processes import scratch

    flags = {"measure.run_cores": options.cores} if options.cores else {}
    configuration.load(options.config, flags)  # a mistake is reported here, not in the log
    folder = state_dir(options)
    running = lifecycle.running(folder)
    if running is not None:
        lifecycle.check_cores(running, options.cores)
    if running is None and (told := scratch.note()):
        print(f"tlmd: {told}", file=sys.stderr)
    daemon = running or lifecycle.start(folder, options.config, flags, restart=options.restart)
    facts = {"pid": daemon.pid, "url": daemon.url, "state_dir": str(folder)}
    text = (
        f"tlmd {'runs already' if running else 'runs'} at {daemon.url} (pid {daemon.pid})\n"
        f"page   {daemon.page_link()}\n"
        f"state  {folder}\n"
        f"log    {lifecycle.log_of(folder)}"
    )
    return print_result(options, facts, text)


def stop(options: argparse.Namespace) -> int:
    from tlmd.client import lifecycle

    pid = lifecycle.stop(state_dir(options), now=options.now)
    return print_result(options, {"stopped": pid}, "stopped; everything measured is kept")


def status(options: argparse.Namespace) -> int:
    document = daemon_of(options).status()
    from tlmd.client.display import views

    return print_result(options, document, views.status_text(document))


def pause(options: argparse.Namespace) -> int:
    daemon_of(options).pause()
    return print_result(options, {"state": "paused"}, "paused; `tlmd resume` continues")


def resume(options: argparse.Namespace) -> int:
    daemon_of(options).resume()
    return print_result(options, {"state": "running"}, "resumed")


def watch(options: argparse.Namespace) -> int:
    from tlmd.client.display import views

    return views.watch(daemon_of(options), as_json=options.json)


def logs(options: argparse.Namespace) -> int:
    from tlmd.client.lifecycle import log_of

    path = log_of(state_dir(options))
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


def checkpoints(options: argparse.Namespace) -> int:
    daemon = daemon_of(options)
    if options.action == "unpin":
        version = daemon.unpin()
        text = f"version {version} is in force until a newer one passes the gate"
        return print_result(options, {"version": version}, text)
    if options.action and options.version is None:
        raise BadInput(f"no version given; use `tlmd checkpoints {options.action} V`")
    if options.action:
        use = daemon.promote if options.action == "promote" else daemon.rollback
        version = use(options.version)
        text = f"version {version} is in force until `tlmd checkpoints unpin`"
        return print_result(options, {"version": version}, text)
    checkpoints = daemon.checkpoints()
    from tlmd.client.display import views

    return print_result(options, checkpoints, views.checkpoints_text(checkpoints))
