"""The systemd unit and the container file: their commands exist, and systemd takes the unit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.daemon.test_metrics import BUSY
from tlmd import cli
from tlmd.client.commands.arguments import parse
from tlmd.daemon import metrics

DEPLOY = Path(cli.__file__).parent / "deploy"
ROOT = DEPLOY.parent.parent


def lines(name: str) -> dict[str, str]:
    """The last value of each key or instruction of a file."""
    pairs = (line.replace("=", " ", 1).partition(" ") for line in texts(name))
    return {key: value.strip() for key, _, value in pairs}


def texts(name: str) -> list[str]:
    return (DEPLOY / name).read_text().replace("\\\n", " ").splitlines()


def test_the_commands_exist() -> None:
    unit, container = lines("tlmd.service"), lines("Containerfile")
    program, *arguments = shlex.split(unit["ExecStart"].removeprefix("/usr/bin/env "))
    inside = json.loads(container["ENTRYPOINT"]) + json.loads(container["CMD"])
    for command in ([program, *arguments], inside):
        assert command[0] == "tlmd"
        assert parse(command[1:]).run == "tlmd.cli:serve"
    assert unit["RestartPreventExitStatus"] == "2" and container["STOPSIGNAL"] == "SIGTERM"


def test_a_container_gets_what_the_build_needs() -> None:
    copied = [line.split()[1:-1] for line in texts("Containerfile") if line.startswith("COPY")]
    for path in (path for paths in copied for path in paths):
        assert (ROOT / path).exists(), path


def test_the_panels_show_figures_that_there_are() -> None:
    names = {s.name for f in metrics.families(BUSY, {"joined": 1}) for s in f.samples}
    names |= {f"ray_{name}" for name in names}
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    for expression in (target["expr"] for panel in panels for target in panel["targets"]):
        (pattern,) = re.findall(r'__name__=~"([^"]+)"', expression)
        shown = {name for name in names if re.fullmatch(pattern, name)}
        assert {name.removeprefix("ray_") for name in shown} < shown, expression


def test_prometheus_reads_both_kinds_of_daemons() -> None:
    own, cluster = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert own["authorization"]["credentials_file"].endswith("/token")
    assert own["static_configs"][0]["targets"][0].startswith("127.0.0.1:")
    assert "prom_metrics_service_discovery" in cluster["file_sd_configs"][0]["files"][0]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "tlmd.service"
    unit.write_text((DEPLOY / "tlmd.service").read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stderr) == (0, "")
