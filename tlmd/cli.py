"""The `tlmd` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tlmd import __version__
from tlmd.daemon import commands as daemon
from tlmd.errors import BadInput, Interrupted, TlmdError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_EPILOG = """\
MODEL is file.onnx, file.pt2, package.module:factory, or a name from 'tlmd zoo'.
Exit codes: 0 done, 1 failed, 2 usage or bad input, 3 no daemon.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Errors that tlmd raises on purpose are one line each."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.run(options))
    except TlmdError as error:
        print(f"tlmd: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Interrupted):
        print("tlmd: interrupted; what was measured is kept", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output is gone (`tlmd zoo | head`); there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else does; commands are parsers like it."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see `{self.prog} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tlmd",
        description="Make deep-learning models fast on the hardware in front of you.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tlmd {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_tune(commands)
    daemon.add(commands, _common, _job)
    _add_records(commands)
    _add_zoo(commands)
    _add_doctor(commands)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where records are kept")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML configuration")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _job(parser: argparse.ArgumentParser) -> None:
    """What describes a job."""
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--input-shape",
        action="append",
        type=_shape,
        metavar="1,3,224,224",
        help="input shape; once per input",
    )
    parser.add_argument("--target", default="native", help="'native' or a TVM target as JSON")
    parser.add_argument("--trials", type=_positive, help="measurements per task (default 16)")
    parser.add_argument(
        "--time-budget", type=_duration, metavar="10m", help="end measuring after this time"
    )


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="tune one model from end to end",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _job(tune)
    tune.add_argument("--out", type=Path, metavar="DIR", help="write model, records, report here")
    tune.add_argument("--seed", type=int)
    _common(tune)
    tune.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    flags = {"tune.trials": options.trials, "tune.seed": options.seed}
    config = configuration.load(options.config, flags)
    from tlmd.daemon import terminal

    shapes = tuple(options.input_shape) if options.input_shape else None
    return terminal.tune(
        options.model,
        shapes,
        options.target,
        options.time_budget,
        options.out,
        options.state_dir,
        config,
        options.config,
        {key: value for key, value in flags.items() if value is not None},
        as_json=options.json,
    )


def _add_records(commands: Any) -> None:
    records = commands.add_parser("records", help="import and export what was measured")
    actions = records.add_subparsers(metavar="ACTION", required=True, dest="action")
    kind = "a directory with a MetaSchedule database, or a data set file .msgpack[.gz]"
    for name, text in (("import", "add records to the store"), ("export", "write them out")):
        action = actions.add_parser(name, help=text)
        action.add_argument("path", metavar="PATH", type=Path, help=kind)
        if name == "import":
            action.add_argument("--target", default="native", help="what the records are of")
        _common(action)
        action.set_defaults(run=_records)


def _records(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    config = configuration.load(options.config)
    from tlmd.daemon.silence import silenced
    from tlmd.daemon.state import default_state_dir, make_state_dir
    from tlmd.measure.cores import plan_cores

    cores = plan_cores(run=config.measure.run_cores or None)
    state = make_state_dir(options.state_dir or default_state_dir())
    with silenced(state / "logs" / "records.log"):
        from tlmd.daemon import interchange

        if options.action == "import":
            counts = interchange.import_records(options.path, options.target, len(cores.run), state)
        else:
            counts = interchange.export_records(options.path, state)
    if options.json:
        print(json.dumps(counts))
        return 0
    skipped = f", {counts['skipped']} skipped" if counts.get("skipped") else ""
    print(f"{options.action}ed {counts['records']} records of {counts['tasks']} tasks{skipped}")
    return 0


def _add_zoo(commands: Any) -> None:
    zoo = commands.add_parser("zoo", help="list the networks tlmd can build by name")
    zoo.add_argument("--json", action="store_true", help="print JSON instead of text")
    zoo.set_defaults(run=_zoo)


def _zoo(options: argparse.Namespace) -> int:
    from tlmd.workloads.zoo import zoo

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


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check this machine: versions, cores, noise, disk")
    _common(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    config = configuration.load(options.config)
    from tlmd.daemon import doctor

    return doctor.run(options.state_dir, config, as_json=options.json)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1,3,224,224")
    return shape


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


if __name__ == "__main__":
    sys.exit(main())
