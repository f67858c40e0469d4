"""`tlmd doctor`: check this machine and tell the user how to fix each problem.

Each check imports the heavy packages that it needs itself. A broken installation is therefore
reported as a finding and not as a traceback.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tlmd.client.commands.findings import FAIL, OK, WARN, CheckContext, Finding, MachineCheck
from tlmd.client.commands.installation_checks import checkpoint, linker, torchvision, versions
from tlmd.client.commands.machine_checks import card, disk, noise, processor, speed
from tlmd.data.config import Config, load
from tlmd.data.errors import TlmdError
from tlmd.data.state_dir import default_state_dir

CHECKS: dict[str, MachineCheck] = {
    "versions": versions,
    "torchvision": torchvision,
    "linker": linker,
    "processor": processor,
    "card": card,
    "disk": disk,
    "checkpoint": checkpoint,
    "noise": noise,
    "speed": speed,
}


def command(options: argparse.Namespace) -> int:
    return run(options.state_dir, load(options.config), as_json=options.json)


def run(state_dir: Path | None, config: Config, as_json: bool) -> int:
    """Run all checks and print the findings (about 20 s). Returns 0 if nothing failed, else 1."""
    warnings.filterwarnings("ignore")
    context = CheckContext(state_dir or default_state_dir(), config)
    findings = []
    for finding in run_checks(context):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    return 1 if any(finding.status == FAIL for finding in findings) else 0


def run_checks(
    context: CheckContext, checks: dict[str, MachineCheck] | None = None
) -> Iterator[Finding]:
    """Yield each finding as soon as it is known. A check that raises yields a failed finding."""
    for name, check_machine in (checks or CHECKS).items():
        try:
            yield from check_machine(context)
        except TlmdError as error:  # its message says what the user can do
            yield Finding(name, FAIL, str(error))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            yield Finding(name, FAIL, f"{type(error).__name__}: {reason}")


def _print(finding: Finding) -> None:
    from rich.console import Console
    from rich.markup import escape

    colour = {OK: "green", WARN: "yellow", FAIL: "red"}[finding.status]
    mend = f"\n{'':22}mend: {escape(finding.mend)}" if finding.mend else ""
    line = f"[{colour}]{finding.status:4}[/]  {finding.check:16}{escape(finding.detail)}{mend}"
    Console(highlight=False, soft_wrap=True).print(line)
