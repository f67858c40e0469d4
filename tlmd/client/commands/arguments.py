"""The parser of the command line: made of the table of commands and the fields of `JobRequest`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

from tlmd.client.commands.table import COMMANDS, Command
from tlmd.data.errors import BadInput
from tlmd.version import __version__

if TYPE_CHECKING:
    from tlmd.data.job_request import JobRequest
    from tlmd.data.option import Option

_EPILOG = """\
MODEL is file.onnx, file.pt2, a directory of transformers (config.json), package.module:factory,
torchvision:NAME, timm:NAME, hf:MODEL_TYPE, or a name from 'tlmd zoo'.
Exit codes: 0 done, 1 failed, 2 usage or bad input, 3 no daemon.
"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line. The parsers of the commands are of this class too."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see `{self.prog} --help`")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line; ``run`` names the command's function. Raises `BadInput`.

    Only the chosen command gets its options, whose descriptions take time to load.
    """
    parser = _Parser(
        prog="tlmd",
        description="Make deep-learning models fast on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tlmd {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = arguments[0] if arguments else ""
    actions: Any = None
    for command in COMMANDS:
        name, _, action = command.name.partition(" ")
        if action and name != chosen:
            continue
        added = (actions if action else commands).add_parser(
            action or name,
            help=command.help,
            epilog=_EPILOG if "model" in command.groups else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if not command.run:
            actions = added.add_subparsers(metavar="ACTION", required=True, dest="action")
        elif name == chosen:
            _fill(added, command)
    return parser.parse_args(arguments)


def _fill(parser: argparse.ArgumentParser, command: Command) -> None:
    if command.groups:
        from tlmd.data.job_request import JobRequest

        for name, field, option in JobRequest.options(*command.groups):
            _add_field(parser, name, field, option)
    for argument in command.arguments:
        parser.add_argument(*argument.names, **argument.settings)
    _add_common(parser)
    parser.set_defaults(run=command.run, groups=command.groups)


def _add_field(parser: argparse.ArgumentParser, name: str, field: Any, option: Option) -> None:
    """The flag of one field. Without the flag its value is None."""
    if option.positional:
        parser.add_argument(name, metavar=option.metavar)
        return
    settings: dict[str, Any] = {"dest": name, "help": field.description, "default": None}
    choices = _choices(field.annotation)
    if field.annotation is bool:
        settings["action"] = "store_true"
    elif choices:
        settings["choices"] = choices
    else:
        settings |= {"type": option.read, "metavar": option.metavar}
    if option.repeats:
        settings["action"] = "append"
    parser.add_argument(f"--{(option.keyword or name).replace('_', '-')}", **settings)


def _choices(annotation: Any) -> list[str]:
    """The texts of a `Literal`, also of one that may be None."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [text for part in get_args(annotation) for text in _choices(part)]


def _add_common(parser: argparse.ArgumentParser) -> None:
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


def job_request(options: argparse.Namespace, **others: Any) -> JobRequest:
    """The job that the flags describe; `others` are fields too. Raises `BadInput`."""
    from tlmd.data.job_request import JobRequest

    names = [name for name, _, _ in JobRequest.options(*options.groups)]
    return JobRequest(**{name: getattr(options, name) for name in names} | others)


def state_dir(options: argparse.Namespace) -> Path:
    """The state directory of a command, absolute."""
    from tlmd.data.state_dir import default_state_dir

    return Path(options.state_dir or default_state_dir()).absolute()
