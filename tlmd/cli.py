"""The `tlmd` command. Heavy packages are imported only by the commands that need them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tlmd import __version__
from tlmd.children import VERBOSE
from tlmd.client import arguments
from tlmd.client import commands as client_commands
from tlmd.errors import BadInput, Interrupted, TlmdError

_EPILOG = """\
MODEL is file.onnx, file.pt2, package.module:factory, or a name from 'tlmd zoo'.
Exit codes: 0 done, 1 failed, 2 usage or bad input, 3 no daemon.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A `TlmdError` is printed as one line."""
    try:
        options = _parser().parse_args(argv)
        if getattr(options, "verbose", False):
            _log_everything()
        return int(options.run(options))
    except TlmdError as error:
        if os.environ.get(VERBOSE):
            traceback.print_exc()
        print(f"tlmd: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Interrupted):
        print("tlmd: interrupted; what was measured is kept", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The program that reads our output has ended (`tlmd zoo | head`): print no more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _log_everything() -> None:
    """``--verbose``: this process and those that it starts log every step."""
    os.environ[VERBOSE] = "1"
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line. The parsers of the commands are of this class too."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see `{self.prog} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tlmd",
        description="Make deep-learning models fast on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tlmd {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_tune(commands)
    client_commands.add(commands, _common, _job)
    _add_serve(commands)
    _add_records(commands)
    _add_measure(commands)
    _add_zoo(commands)
    _add_doctor(commands)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands have."""
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="folder of the records and jobs"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML configuration")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="log every step; show the output of libraries and where errors come from",
    )


def _job(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a job."""
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--input-shape",
        action="append",
        type=arguments.shape,
        metavar="1,3,224,224",
        help="input shape; give it once per input",
    )
    parser.add_argument("--target", default="native", help="'native' or a TVM target as JSON")
    parser.add_argument(
        "--trials", type=arguments.positive, help="measurements per task (default 16)"
    )
    parser.add_argument(
        "--time-budget",
        type=arguments.duration,
        metavar="10m",
        help="stop measuring after this time",
    )


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="tune one model and export the result",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _job(tune)
    tune.add_argument("--out", type=Path, metavar="DIR", help="folder for model, records, report")
    tune.add_argument("--seed", type=int)
    _common(tune)
    tune.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    flags = {"tune.trials": options.trials, "tune.seed": options.seed}
    config = configuration.load(options.config, flags)
    from tlmd.client import terminal
    from tlmd.client.tune_request import TuneRequest
    from tlmd.model_spec import ModelSpec
    from tlmd.state_dir import default_state_dir

    shapes = tuple(options.input_shape) if options.input_shape else None
    request = TuneRequest(
        ModelSpec(options.model, shapes),
        target=options.target,
        time_budget=options.time_budget,
        out=options.out,
        state_dir=options.state_dir or default_state_dir(),
        config=options.config,
        flags={key: value for key, value in flags.items() if value is not None},
    )
    return terminal.tune(request, config, as_json=options.json)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument("--address", default="", help="join a Ray cluster, such as 'auto'")
    serve.add_argument("--ownership", default="", help=argparse.SUPPRESS)
    _common(serve)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    config = configuration.load(options.config)
    from tlmd.daemon.serve import serve
    from tlmd.state_dir import default_state_dir

    state_dir = Path(options.state_dir or default_state_dir()).absolute()
    return serve(state_dir, config, options.address, options.ownership)


def _add_records(commands: Any) -> None:
    records = commands.add_parser("records", help="list, import and export measured records")
    actions = records.add_subparsers(metavar="ACTION", required=True, dest="action")
    kind = "a directory with a MetaSchedule database, or a data set file .msgpack[.gz]"
    for name, text in (
        ("import", "add records to the store"),
        ("export", "write records of the store to PATH"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("path", metavar="PATH", type=Path, help=kind)
        if name == "import":
            action.add_argument("--target", default="native", help="target of the records")
        _common(action)
        action.set_defaults(run=_records)
    listing = actions.add_parser("list", help="show the newest records and their ids")
    listing.add_argument("--failed", action="store_true", help="only candidates that failed")
    listing.add_argument("--task", default="", metavar="NAME", help="only of this task")
    listing.add_argument("-n", type=arguments.positive, default=20, metavar="COUNT")
    _common(listing)
    listing.set_defaults(run=_list_records)


def _records(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    config = configuration.load(options.config)
    from tlmd.client.output_capture import captured_output
    from tlmd.measure.cores import plan_cores
    from tlmd.state_dir import default_state_dir, make_state_dir

    cores = plan_cores(run=config.measure.run_cores or None)
    state = make_state_dir(options.state_dir or default_state_dir())
    with captured_output(state / "logs" / "records.log"):
        from tlmd.client import interchange

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


def _list_records(options: argparse.Namespace) -> int:
    from tlmd.client import record_list
    from tlmd.state_dir import default_state_dir

    state = options.state_dir or default_state_dir()
    rows = record_list.newest_records(state, options.n, options.failed, options.task)
    print(json.dumps(rows, indent=1) if options.json else record_list.text(rows))
    return 0


def _add_measure(commands: Any) -> None:
    measure = commands.add_parser(
        "measure", help="measure one recorded candidate alone and print its schedule"
    )
    measure.add_argument("record", metavar="RECORD", help="the id that `tlmd records list` shows")
    _common(measure)
    measure.set_defaults(run=_measure)


def _measure(options: argparse.Namespace) -> int:
    from tlmd import config as configuration

    config = configuration.load(options.config)
    from tlmd.client.output_capture import captured_output
    from tlmd.state_dir import default_state_dir

    state = Path(options.state_dir or default_state_dir()).absolute()
    if not (state / "records.sqlite").exists():
        raise BadInput(f"{state} holds no records; `tlmd tune` measures some")
    with captured_output(state / "logs" / "measure.log"):
        from tlmd.client.measure_record import measure_record

        measured = measure_record(state, options.record, config)
    if options.json:
        print(json.dumps(measured.document(), indent=1))
    else:
        print(measured.text(options.verbose))
    return 0 if measured.outcome.ok else 1


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
    from tlmd.client import doctor

    return doctor.run(options.state_dir, config, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
