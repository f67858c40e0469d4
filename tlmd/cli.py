"""The `tlmd` command. Heavy packages are imported only by the commands that need them."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tlmd.client.commands.arguments import parse, state_dir
from tlmd.client.display.encoding import write_anything
from tlmd.data.errors import BadInput, Interrupted, TlmdError
from tlmd.processes import shadows
from tlmd.processes.children import VERBOSE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A `TlmdError` is printed as one line."""
    write_anything()
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        if options.verbose:
            _log_everything()
        module, _, function = options.run.partition(":")
        return int(getattr(importlib.import_module(module), function)(options))
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
    except Exception as error:
        line = shadows.blamed_for(error)
        if not line or os.environ.get(VERBOSE):
            raise
        print(f"tlmd: {line}", file=sys.stderr)
        return BadInput.exit_code


def _log_everything() -> None:
    """``--verbose``: this process and those that it starts log every step."""
    os.environ[VERBOSE] = "1"
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")


def serve(options: argparse.Namespace) -> int:
    from tlmd.data import config as configuration

    config = configuration.load(options.config)
    from tlmd.data.state_dir import make_state_dir

    folder = make_state_dir(state_dir(options))
    if options.restart:
        return _supervise(options, folder)
    from tlmd.daemon import serve as serving

    return serving.serve(folder, config, options.address, options.ownership)


def _supervise(options: argparse.Namespace, state_dir: Path) -> int:
    from tlmd.processes.supervisor import Supervisor

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    command = [sys.executable, "-m", "tlmd.cli", "serve", "--state-dir", str(state_dir)]
    command += ["--config", str(options.config.absolute())] if options.config else []
    command += ["--address", options.address] if options.address else []
    command += ["--verbose"] if options.verbose else []
    return Supervisor(command, state_dir).run()


if __name__ == "__main__":
    sys.exit(main())
