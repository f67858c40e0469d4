"""What people read of the results of a job: ``report.html``, and the texts of the terminal."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tlmd.data.errors import Failed
from tlmd.data.model_spec import FP32
from tlmd.export.tune_result import TuneResult

if TYPE_CHECKING:
    from tlmd.models.parts.flow import Flow


def left_to_framework(flow: Flow) -> dict[str, Any]:
    """What the summary of a model says if PyTorch or ONNX Runtime runs a part of it."""
    if not flow.stays:
        return {}
    return {
        "left": {
            "framework": flow.framework,
            "operators": list(flow.stays),
            "tuned_share": round(flow.tuned_share, 4),
        }
    }


def write(out: Path, result: TuneResult) -> None:
    """Write ``summary.json`` and ``report.html`` to `out`. Raises `Failed` on a full disk."""
    try:
        (out / "summary.json").write_text(json.dumps(result.summary, indent=1) + "\n")
        if (result.summary["e2e"] or {}).get("tuned_ms") is not None:
            (out / "report.html").write_text(_page(result), "utf-8")
    except OSError as error:
        raise Failed(f"cannot write the results to {out}: {error.strerror}") from error


def gflops(task: dict[str, Any]) -> float:
    """GFLOP/s of a task of the summary."""
    return float(task["flops"] / task["best_us"] / 1e3) if task["best_us"] else 0.0


def verification_label(task: dict[str, Any]) -> str:
    """The text for "verified" in the reports: yes, default (TVM's schedule) or failed."""
    if not task["verified"]:
        return "failed"
    return "default" if task["version"] is None else "yes"


def speed_up(task: dict[str, Any]) -> float:
    """Untuned time divided by tuned time of a task of the summary; 0 if one is unknown."""
    return task["untuned_us"] / task["best_us"] if task["untuned_us"] and task["best_us"] else 0.0


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #1b2733; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #dde3ea; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.bar { background: #d5e6f7; height: .7rem; } .bar span { background: #2b6cb0; display: block;
height: 100%; } .big { font-size: 1.6rem; } dt { float: left; width: 9rem; color: #5a6b7b; }
"""


def of_limit(task: dict[str, Any], limit: str) -> str:
    """The text for "of limit" in the reports: a task's share of the nearer roofline limit."""
    share = task["peak_fraction"]
    return f"{share:.0%} {limit}".rstrip() if share is not None else "?"


def untuned_text(result: TuneResult) -> str:
    """The note of the reports on the time of the untuned model."""
    milliseconds = result.summary["e2e"]["untuned_ms"]
    if result.untuned_is_sum:
        return f"about {milliseconds / 1e3:.2g} s (the sum of its tasks)"
    return f"{milliseconds:.2f} ms"


def error_text(result: TuneResult) -> str:
    """The text for the largest error of an output."""
    error = result.summary["e2e"]["max_abs_err"]
    return "not compared (random numbers)" if error is None else f"{error:.1e}"


def left_text(document: dict[str, Any]) -> str:
    """What a summary says of the operators that the framework runs."""
    left, share = document["left"], f"{document['left']['tuned_share']:.1%}"
    names = ", ".join(left["operators"])
    return f"{names} in {left['framework']}; {share} of the arithmetic is tuned"


def whole_speed_up(result: TuneResult) -> str:
    """Untuned time divided by tuned time of the whole model."""
    whole = result.summary["e2e"]
    ratio = whole["untuned_ms"] / whole["tuned_ms"]
    return f"about {ratio:.0f}" if result.untuned_is_sum else f"{ratio:.1f}"


def _page(result: TuneResult) -> str:
    document, pytorch_ms = result.summary, result.pytorch_ms
    whole, ratio = document["e2e"], whole_speed_up(result)
    facts = [
        ("untuned", untuned_text(result)),
        ("PyTorch eager", f"{pytorch_ms:.2f} ms" if pytorch_ms else "not measured"),
        ("tuned", f"{whole['tuned_ms']:.2f} ms"),
        ("largest error", error_text(result)),
        ("records applied", f"{whole['functions_with_record']} of {whole['functions']}"),
        ("measured", f"{document['measured']} ({document['failed']} failed)"),
        ("wall clock", f"{document['wall_s']:.0f} s"),
        ("target", document["target"]),
        ("precision", document.get("precision", FP32)),
    ]
    if "left" in document:
        facts.append(("left as it is", left_text(document)))
    listed = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts)
    pairs = zip(document["tasks"], result.limits, strict=True)
    ordered = sorted(pairs, key=lambda pair: _share(pair[0]), reverse=True)
    rows = "".join(_row(task, limit) for task, limit in ordered)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(document['model'])}"
        f" tuned by tlmd</title><style>{_STYLE}</style><h1>{html.escape(document['model'])}</h1>"
        f"<p class=big>{ratio} times faster than untuned</p><dl>{listed}</dl><table><tr>"
        "<th>task<th>weight<th>untuned &micro;s<th>tuned &micro;s<th>speed-up<th>GFLOP/s"
        f"<th>of limit<th>trials<th>verified</tr>{rows}</table><p>Of limit: the share of the run "
        "cores' measured peak that a program reaches. The peak is the multiply-add speed (compute) "
        "or the memory bandwidth (memory), the one that limits the program more. The share can be "
        "above 100 % because LLVM simplifies some arithmetic and small buffers stay in the caches."
        "</p></html>\n"
    )


def _share(task: dict[str, Any]) -> float:
    return float(task["weight"] * (task["best_us"] or 0))


def _row(task: dict[str, Any], limit: str) -> str:
    share = task["peak_fraction"]
    bar = f"<div class=bar><span style='width:{min(share or 0, 1):.0%}'></span></div>"
    cells = [
        html.escape(task["name"]),
        str(task["weight"]),
        f"{task['untuned_us'] or math.nan:.1f}",
        f"{task['best_us'] or math.nan:.1f}",
        f"{speed_up(task):.1f}",
        f"{gflops(task):.1f}",
        f"{bar}{of_limit(task, limit)}",
        str(task["trials"]),
        verification_label(task),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
