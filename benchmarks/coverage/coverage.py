"""Which networks tlmd accepts, and whose fault it is where it does not.

`python -m benchmarks.coverage [--group NAME] [--only PATTERN] [--json FILE] [--page FILE]`. Each
network is loaded, lowered, compiled without tuning, run, and compared with PyTorch or with given
outputs, in a process of its own with a limit on its time and memory. With `--stock`, what fails is
tried again with stock TVM alone. The headline `ratio` is the share of networks that are right.
`--resume` keeps the rows that FILE has of the same commit.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.common import report
from benchmarks.coverage.coverage_page import page, summary
from benchmarks.coverage.networks import lists, networks_onnx
from tlmd.processes.durable import replacing

GROUPS = (*lists.LISTS, *lists.ONNX_GROUPS)
_POLL_S = 0.2

Rows = dict[tuple[str, str], report.Row]
"""Group and name -> what was found."""


def main() -> int:
    """Try the networks, print, write."""
    options = _options()
    if options.page_only:
        return _write_page(options)
    here = report.machine()
    found = _earlier(options, here["commit"])
    # One core: the children inherit it, and TVM does not pin its threads to cores.
    os.environ.update(OMP_NUM_THREADS="1", TVM_NUM_THREADS="1", TVM_BIND_THREADS="0")
    for group in options.group or GROUPS:
        for name, folder in _cases(group, options, found):
            row = _try(group, name, folder, options, found.get((group, name)))
            found[group, name] = row
            print(_line(row), flush=True)
            _save(_result(list(found.values()), here), options.json)
    result = _result(list(found.values()), here)
    report.show("networks that reach each stage", summary(result["rows"]))
    report.finish(result, options.json)
    return _write_page(options) if options.page else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", action="append", choices=GROUPS, help="default: all")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="as in a shell: 'swin*'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--resume", action="store_true", help="keep FILE's rows of this commit")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds per network")
    parser.add_argument("--memory", type=float, default=8.0, help="GB per network")
    parser.add_argument("--sample", type=int, help="so many per group, always the same")
    parser.add_argument("--stock", action="store_true", help="try failures with stock TVM")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page of the figures")
    parser.add_argument("--before", type=Path, metavar="JSON", help="earlier figures, for the page")
    parser.add_argument("--page-only", action="store_true", help="a page of --json, no run")
    options = parser.parse_args()
    if options.json is None and (options.resume or options.page):
        parser.error("--resume and --page need --json FILE")
    if options.page_only and not options.page:
        parser.error("--page-only needs --page FILE")
    return options


def _earlier(options: argparse.Namespace, commit: str) -> Rows:
    """The rows of an interrupted run of the same commit, or none."""
    if not options.resume or not options.json.exists():
        return {}
    found = json.loads(options.json.read_text())
    same = found["machine"]["commit"].rstrip("+") == commit.rstrip("+")
    return {(row["group"], row["name"]): row for row in found["rows"] if same}


def _cases(group: str, options: argparse.Namespace, found: Rows) -> Iterator[tuple[str, Path]]:
    """The networks of a group that are still to be tried, each with a scratch folder."""
    tests: dict[str, Any] = {}
    if group in networks_onnx.BACKEND_KINDS:
        tests = {test.name: test for test in networks_onnx.backend_tests(group)}
    exported = group == "onnx-exported"
    names = tests or (networks_onnx.EXPORTED if exported else lists.networks(group))
    for name in _sampled(list(names), options.sample):
        row = found.get((group, name))
        if not fnmatch.fnmatch(name, options.only) or (row and not _lacks_stock(row, options)):
            continue
        with tempfile.TemporaryDirectory(prefix="tlmd-coverage-") as folder:
            if name in tests:
                networks_onnx.write_test(tests[name], Path(folder))
            yield name, Path(folder)


def _sampled(names: list[str], count: int | None) -> list[str]:
    """At most `count` of the names, always the same ones."""
    if count is None or count >= len(names):
        return names
    return sorted(Random(0).sample(names, count))


def _lacks_stock(row: report.Row, options: argparse.Namespace) -> bool:
    return options.stock and row["reached"] != "right" and row["stock"] is None


def _try(
    group: str, name: str, folder: Path, options: argparse.Namespace, earlier: report.Row | None
) -> report.Row:
    """Try a network with tlmd and, where that fails and it is wanted, with stock TVM."""
    row = earlier
    if row is None:
        row = {"group": group, "name": name, "stock": None}
        row |= _child(group, name, folder, options, stock=False)
    if _lacks_stock(row, options):
        stock = _child(group, name, folder, options, stock=True)
        row["stock"] = "right" if stock["reached"] == "right" else stock["cause"]
    return row


def _child(
    group: str, name: str, folder: Path, options: argparse.Namespace, stock: bool
) -> report.Row:
    """What a process of its own reaches with a network."""
    from benchmarks.coverage.coverage_start import start

    row: report.Row = {"reached": None, "seconds": {}, "cause": None}
    process, channel = start(group, name, str(folder), stock)
    ended_by = _watch(process, channel, row, options)
    process.join()
    if row["reached"] != "right" and row["cause"] is None:
        code = process.exitcode or 0
        died = signal.Signals(-code).name if code < 0 else f"exit {code}"
        row["cause"] = ended_by or f"the process ended ({died})"
    return row


def _watch(process: Any, channel: Any, row: report.Row, options: argparse.Namespace) -> str | None:
    """Take messages until the process ends; kill it at a limit and say which."""
    begin = time.monotonic()
    while True:
        try:
            while channel.poll(_POLL_S):
                _merge(row, channel.recv())
        except EOFError:  # the process has closed its end
            return None
        if time.monotonic() - begin > options.limit:
            process.kill()
            return f"no result after {options.limit:.0f} s"
        if _resident_gb(process.pid) > options.memory:
            process.kill()
            return f"more than {options.memory:g} GB of memory"
        if not process.is_alive() and not channel.poll():
            return None


def _merge(row: report.Row, message: report.Row) -> None:
    if "stage" in message:
        row["reached"] = message.pop("stage")
        row["seconds"][row["reached"]] = message.pop("seconds")
    row.update(message)


def _resident_gb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss) / 1e9
    except psutil.NoSuchProcess:
        return 0.0


def _line(row: report.Row) -> str:
    seconds = " ".join(f"{stage} {s:.1f}" for stage, s in row["seconds"].items())
    tail = row["cause"] or f"error {row.get('error', 0.0):.1e}"
    stock = f" | stock: {row['stock']}" if row["stock"] else ""
    return f"{row['group']} {row['name']}: {seconds} s | {tail}{stock}"


def _result(rows: list[report.Row], here: report.Row) -> report.Row:
    right = sum(row["reached"] == "right" for row in rows)
    return {
        "benchmark": "coverage",
        "ratio": right / max(len(rows), 1),
        "meaning": "share of the networks whose outputs are right",
        "machine": here,
        "groups": summary(rows),
        "rows": rows,
    }


def _save(result: report.Row, path: Path | None) -> None:
    """Write after each network, so that an interrupted run can be resumed."""
    if path is not None:
        with replacing(path) as new:
            new.write_text(json.dumps(result, indent=1) + "\n")


def _write_page(options: argparse.Namespace) -> int:
    now = json.loads(options.json.read_text())
    before = json.loads(options.before.read_text()) if options.before else None
    options.page.write_text(page(now, before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
