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

from tlmd.client.commands import arguments, backup_commands, record_commands
from tlmd.client.commands import daemon_commands as client_commands
from tlmd.data.errors import BadInput, Interrupted, TlmdError
from tlmd.processes.children import VERBOSE
from tlmd.version import __version__

_EPILOG = """\
MODEL is file.onnx, file.pt2, a directory of transformers (config.json), package.module:factory,
torchvision:NAME, timm:NAME, hf:MODEL_TYPE, or a name from 'tlmd zoo'.
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
    _add_check(commands)
    client_commands.add(commands, _common, _job)
    _add_serve(commands)
    record_commands.add(commands, _common)
    backup_commands.add(commands, _common)
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
    arguments.add_model(parser)
    parser.add_argument(
        "--trials", type=arguments.positive, help="measurements per task (default 16)"
    )
    efforts = ", ".join(f"{name} {trials}" for name, trials in arguments.EFFORTS.items())
    parser.add_argument(
        "--effort", choices=arguments.EFFORTS, help=f"instead of --trials: {efforts} per task"
    )
    parser.add_argument(
        "--time-budget",
        type=arguments.duration,
        metavar="10m",
        help="stop measuring after this time",
    )
    arguments.add_shares(parser)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="tune one model and export the result",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _job(tune)
    arguments.add_cores(tune)
    tune.add_argument("--out", type=Path, metavar="DIR", help="folder for model, records, report")
    tune.add_argument("--seed", type=int)
    tune.add_argument(
        "--wait-quiet",
        action="store_const",
        const=arguments.QUIET_S,
        help="time nothing while other programs use the cores; each candidate waits up to 60 s",
    )
    _common(tune)
    tune.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    flags = {
        **arguments.job_settings(options),
        "tune.seed": options.seed,
        "measure.run_cores": options.cores,
        "measure.wait_quiet": options.wait_quiet,
    }
    config = configuration.load(options.config, flags)
    from tlmd.client.display import terminal
    from tlmd.client.tune_request import TuneRequest
    from tlmd.data.state_dir import default_state_dir

    request = TuneRequest(
        arguments.model_spec(options),
        target=options.target,
        time_budget=options.time_budget,
        out=options.out,
        state_dir=options.state_dir or default_state_dir(),
        config=options.config,
        flags={key: value for key, value in flags.items() if value is not None},
    )
    return terminal.tune(request, config, as_json=options.json)


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="would this model work? nothing is measured",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_model(check)
    arguments.add_cores(check)
    _common(check)
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config, {"measure.run_cores": options.cores})
    from tlmd.client import check
    from tlmd.data.state_dir import default_state_dir, make_state_dir

    state_dir = make_state_dir(options.state_dir or default_state_dir())
    return check.run(
        arguments.model_spec(options), options.target, config, state_dir, as_json=options.json
    )


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument("--address", default="", help="join a Ray cluster, such as 'auto'")
    serve.add_argument(
        "--restart", action="store_true", help="start the daemon again when it has died"
    )
    serve.add_argument("--ownership", default="", help=argparse.SUPPRESS)
    _common(serve)
    serve.set_defaults(run=_serve)


def _serve(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config)
    from tlmd.data.state_dir import default_state_dir, make_state_dir

    state_dir = make_state_dir(Path(options.state_dir or default_state_dir()).absolute())
    if options.restart:
        return _supervise(options, state_dir)
    from tlmd.daemon.serve import serve

    return serve(state_dir, config, options.address, options.ownership)


def _supervise(options: argparse.Namespace, state_dir: Path) -> int:
    from tlmd.processes.supervisor import Supervisor

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    command = [sys.executable, "-m", "tlmd.cli", "serve", "--state-dir", str(state_dir)]
    command += ["--config", str(options.config.absolute())] if options.config else []
    command += ["--address", options.address] if options.address else []
    command += ["--verbose"] if options.verbose else []
    return Supervisor(command, state_dir).run()


def _add_zoo(commands: Any) -> None:
    zoo = commands.add_parser("zoo", help="list the networks tlmd can build by name")
    zoo.add_argument("--json", action="store_true", help="print JSON instead of text")
    zoo.set_defaults(run=_zoo)


def _zoo(options: argparse.Namespace) -> int:
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


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check this machine: versions, cores, noise, disk")
    _common(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config)
    from tlmd.client.commands import doctor

    return doctor.run(options.state_dir, config, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
