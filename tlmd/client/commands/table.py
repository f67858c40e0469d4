"""All commands of `tlmd`: name, help, options, function. Importing this loads nothing heavy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlmd.data.option import positive

QUIET_S = 60.0
"""Seconds of ``--wait-quiet``."""

_JOBS, _LINES = 30, 40


@dataclass(frozen=True)
class CommandArgument:
    """One argument, as `argparse.ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def argument(*names: str, **settings: Any) -> CommandArgument:
    return CommandArgument(names, settings)


@dataclass(frozen=True)
class Command:
    """One command. A name of two words is an action of a command."""

    name: str
    help: str

    run: str
    """``module:function``, which takes the parsed arguments and returns the exit code."""

    arguments: tuple[CommandArgument, ...] = ()

    groups: tuple[str, ...] = ()
    """The groups of `JobRequest` whose fields the command takes."""


_CORES = argument(
    "--cores", type=positive, help="physical cores that models will run on (default: all)"
)
_YES = argument(
    "--yes", action="store_true", help="take the proposed shapes if a file leaves dimensions open"
)
_OUT = argument("--out", type=Path, metavar="DIR", help="folder for model, records, report")
_JOB = argument("job", metavar="JOB")
_FILE = argument("file", metavar="FILE", type=Path)
_RECORDS = argument(
    "path",
    metavar="PATH",
    type=Path,
    help="a directory with a MetaSchedule database, or a data set file .msgpack[.gz|.xz]",
)
_RUNS = "tlmd.client.commands"

COMMANDS = (
    Command(
        "tune",
        "tune one model and export the result",
        f"{_RUNS}.model_commands:tune",
        (
            _CORES,
            _YES,
            _OUT,
            argument("--seed", type=int),
            argument(
                "--wait-quiet",
                action="store_const",
                const=QUIET_S,
                help="time nothing while other programs use the cores; each candidate waits up to "
                "60 s",
            ),
        ),
        groups=("model", "job"),
    ),
    Command(
        "compile",
        "compile one model at once with the best programs that are known; nothing is measured",
        f"{_RUNS}.model_commands:compile_model",
        (_CORES, _YES, _OUT),
        groups=("model",),
    ),
    Command(
        "check",
        "would this model work? nothing is measured",
        f"{_RUNS}.model_commands:check",
        (_CORES, _YES),
        groups=("model",),
    ),
    Command(
        "start",
        "start the daemon in the background",
        f"{_RUNS}.daemon_commands:start",
        (
            _CORES,
            argument(
                "--no-restart",
                dest="restart",
                action="store_false",
                help="do not start the daemon again when it has died",
            ),
        ),
    ),
    Command(
        "stop",
        "stop the daemon; everything measured is kept",
        f"{_RUNS}.daemon_commands:stop",
        (argument("--now", action="store_true", help="do not wait for work in flight"),),
    ),
    Command("status", "show what the daemon is doing", f"{_RUNS}.daemon_commands:status"),
    Command(
        "submit",
        "give the daemon a model to tune; ends when the model works",
        f"{_RUNS}.job_commands:submit",
        (
            _YES,
            argument(
                "--detach", action="store_true", help="do not wait until the model is known to work"
            ),
        ),
        groups=("model", "job", "submit"),
    ),
    Command(
        "jobs",
        "list the newest jobs",
        f"{_RUNS}.job_commands:jobs",
        (
            argument("-n", type=positive, default=_JOBS, metavar="COUNT"),
            argument("--before", default="", metavar="JOB", help="list those before this one"),
        ),
    ),
    Command("wait", "wait until a job has ended", f"{_RUNS}.job_commands:wait", (_JOB,)),
    Command(
        "cancel", "end a job; everything measured is kept", f"{_RUNS}.job_commands:cancel", (_JOB,)
    ),
    Command(
        "export",
        "compile a job's model with its best programs",
        f"{_RUNS}.job_commands:export",
        (
            _JOB,
            argument("--out", type=Path, metavar="DIR", required=True),
            argument(
                "--lowered",
                action="store_true",
                help="also write lowered.json, the model that the records apply to, for TVM "
                "without tlmd",
            ),
        ),
    ),
    Command(
        "pause", "pause the daemon; work in flight is finished", f"{_RUNS}.daemon_commands:pause"
    ),
    Command("resume", "continue after a pause", f"{_RUNS}.daemon_commands:resume"),
    Command("watch", "show the daemon's status until Ctrl-C", f"{_RUNS}.daemon_commands:watch"),
    Command(
        "logs",
        "print the daemon's log",
        f"{_RUNS}.daemon_commands:logs",
        (
            argument("-f", "--follow", action="store_true"),
            argument("-n", type=int, default=_LINES, metavar="LINES"),
        ),
    ),
    Command(
        "checkpoints",
        "list versions of the TLM, or choose one",
        f"{_RUNS}.daemon_commands:checkpoints",
        (
            argument("action", nargs="?", choices=["promote", "rollback", "unpin"]),
            argument("version", nargs="?", type=int, metavar="V"),
        ),
    ),
    Command(
        "train",
        "train the TLM on a corpus (the paper's campaign)",
        f"{_RUNS}.job_commands:train",
        groups=("train", "job"),
    ),
    Command(
        "serve",
        "run the daemon in the foreground",
        "tlmd.cli:serve",
        (
            argument("--address", default="", help="join a Ray cluster, such as 'auto'"),
            argument(
                "--restart", action="store_true", help="start the daemon again when it has died"
            ),
            argument("--ownership", default="", help=argparse.SUPPRESS),
        ),
    ),
    Command("records", "list, check, import and export measured records", ""),
    Command(
        "records import",
        "add records to the store",
        f"{_RUNS}.record_commands:exchange",
        (_RECORDS, argument("--target", default="native", help="target of the records")),
    ),
    Command(
        "records export",
        "write records of the store to PATH",
        f"{_RUNS}.record_commands:exchange",
        (
            _RECORDS,
            argument(
                "--best",
                action="store_true",
                help="write the best programs of each task as a file of known programs, which are "
                "used without measuring where they are imported",
            ),
            argument(
                "--least",
                type=positive,
                default=1,
                metavar="COUNT",
                help="with --best: only of tasks with this many verified records (default 1)",
            ),
        ),
    ),
    Command(
        "records check",
        "read every record and say whether any is damaged",
        f"{_RUNS}.record_commands:check",
    ),
    Command(
        "records compact",
        "remove slow and old records, and give their space back to the disk",
        f"{_RUNS}.record_commands:compact",
        (
            argument(
                "--keep",
                type=positive,
                default=1000,
                metavar="COUNT",
                help="of each task, its fastest and this many of its newest (default 1000)",
            ),
        ),
    ),
    Command(
        "records list",
        "show the newest records and their ids",
        f"{_RUNS}.record_commands:show",
        (
            argument("--failed", action="store_true", help="only candidates that failed"),
            argument("--task", default="", metavar="NAME", help="only of this task"),
            argument("-n", type=positive, default=20, metavar="COUNT"),
        ),
    ),
    Command(
        "measure",
        "measure one recorded candidate alone and print its schedule",
        f"{_RUNS}.record_commands:measure",
        (argument("record", metavar="RECORD", help="the id that `tlmd records list` shows"),),
    ),
    Command(
        "backup",
        "write records, jobs and checkpoints to one file; the daemon may run",
        f"{_RUNS}.backup_commands:backup",
        (_FILE,),
    ),
    Command(
        "restore",
        "make a new state directory from a backup",
        f"{_RUNS}.backup_commands:restore",
        (_FILE,),
    ),
    Command(
        "zoo", "list the networks tlmd can build by name", f"{_RUNS}.model_commands:list_networks"
    ),
    Command(
        "doctor", "check this machine: versions, cores, noise, disk", f"{_RUNS}.doctor:command"
    ),
    Command(
        "help",
        "show a page of the guide; without TOPIC, list the pages",
        f"{_RUNS}.help_command:show",
        (argument("topic", nargs="?", default="", metavar="TOPIC"),),
    ),
)
