"""The page of `benchmarks.coverage`: rates by group, then every failure with its cause."""

from __future__ import annotations

import re

from benchmarks.common import report

STAGES = ("loaded", "lowered", "compiled", "run", "right")

_SAME = 90  # causes that begin with so many equal characters are one

_INTRODUCTION = """# Which networks tlmd accepts

Written by `python -m benchmarks.coverage`. Networks have random weights, with random biases and
batch statistics, and mostly few layers and small inputs. Each is loaded, lowered, compiled without
tuning, run and compared in a process of its own. "Right" means that no output differs from that of
PyTorch, or from the given one, by more than 1e-3 of its largest value (1e-2 for 16-bit outputs).
"Whole" are those that TVM compiles as a whole; of the others PyTorch or ONNX Runtime runs parts.
"Tuned" is the share of the arithmetic that TVM compiles, on average. "Lowered" is the acceptance:
lowering, compiling with a quick schedule and comparing with PyTorch or ONNX Runtime.
"""


def summary(rows: list[report.Row]) -> list[report.Row]:
    """Per group: how many networks reach which stage."""
    found = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        reached = [STAGES.index(row["reached"]) if row["reached"] else -1 for row in mine]
        counts = {stage: sum(r >= i for r in reached) for i, stage in enumerate(STAGES)}
        right = [row for row in mine if row["reached"] == "right"]
        shares = [row["share"] for row in right if "share" in row]
        whole = {"whole": sum(row.get("whole", False) for row in right)} if shares else {}
        share = {"share": round(sum(shares) / len(shares), 3)} if shares else {}
        found.append({"group": group, "networks": len(mine), **counts, **whole, **share})
    return found


def page(now: report.Row, before: report.Row | None = None) -> str:
    """The page of the figures `now`; with earlier ones, each rate as ``before -> after``."""
    parts = [_INTRODUCTION, _origin(now, before), "## Rates", _rates(now, before)]
    if before is not None:
        parts += _changes(before["rows"], now["rows"])
    failures = [row for row in now["rows"] if row["reached"] != "right"]
    parts += ["## Frequent causes", _frequent(failures)]
    parts += [f"## What fails ({len(failures)} of {len(now['rows'])})", _failures(failures)]
    parts += ["## What takes long to lower", _slowest(now["rows"])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _origin(now: report.Row, before: report.Row | None) -> str:
    here = now["machine"]
    text = f"Commit {here['commit']}, {here['cpu']}, one core."
    return text + (f" Before: commit {before['machine']['commit']}." if before else "")


def _rates(now: report.Row, before: report.Row | None) -> str:
    """A table of the groups. Only networks that both have tried are compared."""
    earlier = {row["group"]: row for row in summary(_shared(before, now) if before else [])}
    later = {row["group"]: row for row in summary(_shared(now, before) if before else now["rows"])}
    lines = []
    for group, row in later.items():
        cells = [f"{row[stage]}" for stage in STAGES]
        if group in earlier:
            old = earlier[group]
            cells = [f"{old[stage]} -> {row[stage]}" for stage in STAGES]
        cells += [str(row.get("whole", "")), f"{row['share']:.1%}" if "share" in row else ""]
        lines.append([group, str(row["networks"]), *cells])
    return report.markdown_table(["group", "networks", *STAGES, "whole", "tuned"], lines)


def _shared(document: report.Row, other: report.Row) -> list[report.Row]:
    names = {(row["group"], row["name"]) for row in other["rows"]}
    return [row for row in document["rows"] if (row["group"], row["name"]) in names]


def _changes(before: list[report.Row], now: list[report.Row]) -> list[str]:
    """What was right and no longer is: it must not be overlooked among the failures."""
    was = {(row["group"], row["name"]) for row in before if row["reached"] == "right"}
    lost = [r for r in now if r["reached"] != "right" and (r["group"], r["name"]) in was]
    return ["## Was right before and no longer is", _failures(lost)] if lost else []


def _failures(rows: list[report.Row]) -> str:
    lines = [
        [row["group"], row["name"], row["reached"] or "nothing", row["cause"], _stock(row)]
        for row in rows
    ]
    return report.markdown_table(["group", "network", "reached", "cause", "stock TVM"], lines)


def _stock(row: report.Row) -> str:
    """Whether stock TVM alone manages it; empty: not tried."""
    found = row["stock"] or ""
    if found in ("", "right"):
        return str(found)
    return "fails likewise" if found in row["cause"] else f"fails: {found[:_SAME]}"


def _frequent(rows: list[report.Row]) -> str:
    """Causes that stop several networks; quoted names and shapes in them may differ."""
    examples: dict[str, list[str]] = {}
    for row in rows:
        key = re.sub(r"'[^']*'|<[^>]*>|\d+", "...", row["cause"])[:_SAME]
        examples.setdefault(key, []).append(row["cause"])
    several = sorted((c for c in examples.values() if len(c) > 1), key=len, reverse=True)
    lines = [[str(len(causes)), causes[0]] for causes in several]
    return report.markdown_table(["networks", "cause, for example"], lines)


def _slowest(rows: list[report.Row], count: int = 10) -> str:
    """The networks with the most CPU seconds of lowering."""
    timed = [row for row in rows if "lower_cpu_s" in row]
    timed.sort(key=lambda row: float(row["lower_cpu_s"]), reverse=True)
    lines = [
        [row["group"], row["name"], f"{row['lower_cpu_s']:.1f}", str(row.get("tasks", ""))]
        for row in timed[:count]
    ]
    return report.markdown_table(["group", "network", "CPU seconds", "tasks"], lines)
