"""The pages of the guide that are made from the code: settings, HTTP and Python."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import tlmd
from tlmd.client.connection import Daemon
from tlmd.client.job import Job
from tlmd.daemon.http import make_app
from tlmd.data.config import Config
from tlmd.data.job_request import JobRequest

_WIDTH = 100


def pages() -> dict[str, str]:
    """The text of each generated page, by its name."""
    return {"settings": settings(), "http": http(), "python": python()}


def settings() -> str:
    """All keys of the configuration, by section."""
    lines = [
        "# Settings",
        "",
        "Which settings there are, what each means, and how you set it.",
        "",
        "```bash",
        "tlmd start --config tlmd.toml        # TOML: [measure] and below it builders = 1",
        "TLMD_MEASURE__BUILDERS=1 tlmd start  # the environment overrides the file",
        "```",
        "",
        "Flags override both. An unknown key is an error. A key that was renamed still works and",
        "warns which version removes it. This page is made from `tlmd/data/config.py`.",
    ]
    for section, info in Config.model_fields.items():
        config = type(info.default)
        lines += ["", f"## {section}", "", *_wrapped(inspect.cleandoc(config.__doc__ or "")), ""]
        for name, field in config.model_fields.items():
            default = json.dumps(getattr(info.default, name))
            lines += _item(f"`{section}.{name}` = `{default}`", field.description or "")
    return "\n".join(lines) + "\n"


def http() -> str:
    """All calls of the daemon's HTTP interface, from its OpenAPI document."""
    service: Any = None  # only the routes are asked for
    document = make_app(service, "").openapi()
    lines = [
        "# HTTP",
        "",
        "How programs talk to a daemon over HTTP on loopback.",
        "",
        "```bash",
        'curl -H "Authorization: Bearer $(cat STATE/token)" URL/v1/status',
        "```",
        "",
        "`tlmd start` prints URL; `STATE/daemon.json` has it, too. Every call needs the token.",
        'A mistake gets status 400 and `{"error": TEXT, "bad_input": true}`. This page is made',
        "from the OpenAPI document of the daemon.",
        "",
        "## Calls",
        "",
    ]
    for path, calls in sorted(document["paths"].items()):
        for method, call in calls.items():
            said = [f"{p['name']}" for p in call.get("parameters", ()) if p["in"] == "query"]
            query = f"?{'&'.join(said)}" if said else ""
            lines += _item(f"`{method.upper()} {path}{query}`", call.get("description", ""))
    lines += ["", "## The body of POST /v1/jobs", ""]
    for name, field in JobRequest.model_fields.items():
        lines += _item(f"`{field.alias or name}`", f"{field.description}. {_default(field)}")
    return "\n".join(lines) + "\n"


def python() -> str:
    """The Python interface: functions, the options of a job, daemons and jobs."""
    lines = [
        "# Python",
        "",
        "Which functions tlmd has in Python, and which options a job takes.",
        "",
        "```python",
        "import tlmd",
        "",
        'result = tlmd.tune("resnet18", trials=16, out="out")',
        'model = tlmd.load("out")',
        "```",
        "",
        "This page is made from the docstrings and from `JobRequest`.",
        "",
        "## Functions",
    ]
    for name in ("tune", "check", "load", "start", "connect", "optimize"):
        lines += ["", *_documented(f"tlmd.{name}", getattr(tlmd, name))]
    lines += ["", "## Options of a job", "", "For `tune`, `check` and `Daemon.submit`:", ""]
    for keyword, name in JobRequest.keywords().items():
        field = JobRequest.model_fields[name]
        if keyword not in ("name", "cwd"):  # the model itself; what the client fills in
            lines += _item(f"`{keyword}`", f"{field.description}. {_default(field)}")
    for kind in (Daemon, Job):
        lines += ["", f"## {kind.__name__}"]
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in ("ask", "submit_request"):
                lines += ["", *_documented(f"{kind.__name__}.{name}", method)]
    return "\n".join(lines) + "\n"


def _documented(name: str, function: Any) -> Iterator[str]:
    """The heading and the docstring of a function."""
    signature = str(inspect.signature(function))
    words = re.sub(r"\(self(, )?", "(", re.sub(r"'", "", signature))
    yield f"### {name}"
    yield ""
    yield "```python"
    yield from textwrap.wrap(f"{name}{words}", _WIDTH, subsequent_indent="    ")
    yield "```"
    yield ""
    for part in inspect.cleandoc(function.__doc__ or "").split("\n\n"):
        if part.startswith("    "):
            yield from ["```python", textwrap.dedent(part), "```", ""]
        else:
            yield from [*_wrapped(part), ""]


def _default(field: Any) -> str:
    return f"Default: `{json.dumps(field.default)}`."


def _item(name: str, text: str) -> list[str]:
    """One entry of a list, wrapped."""
    body = " ".join(text.split()).replace("``", "`")
    return textwrap.wrap(f"- {name}: {body}", _WIDTH, subsequent_indent="  ")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()).replace("``", "`"), _WIDTH)
