"""The picture of `benchmarks.comparison`: on each CPU the peers' times over those of tlmd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common import report
from benchmarks.whole_models.comparison_page import NAMES, chosen
from benchmarks.whole_models.deployments import PEERS, TLMD
from benchmarks.whole_models.end_to_end import LABELS

_MARKERS = {"eager": "v", "compile": "s", "onnxruntime": "o", "openvino": "D"}


def draw(machines: dict[str, list[report.Row]], path: Path) -> None:
    """A panel for each CPU, in float32 on one core; the order is that of the first one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = [row["model"] for row in chosen(next(iter(machines.values())))][::-1]
    size = (4.2 * len(machines) + 1.4, 1.5 + 0.26 * len(models))
    figure, panels = pyplot.subplots(
        1, len(machines), sharex=True, sharey=True, figsize=size, squeeze=False
    )
    for axes, (name, rows) in zip(panels[0], machines.items(), strict=True):
        _panel(axes, {row["model"]: row for row in chosen(rows)}, models)
        axes.set_title(f"{name}, one core", fontsize=10, loc="left")
        axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%gx"))
    panels[0][0].set_yticks(range(len(models)), [NAMES.get(model, model) for model in models])
    panels[0][0].set_ylim(-0.6, len(models) - 0.4)
    figure.supxlabel("time over that of tlmd (right of the line: tlmd is faster)", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="upper center", ncol=4)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=130)


def _panel(axes: Any, rows: dict[str, report.Row], models: list[str]) -> None:
    axes.axvline(1, color="#2b6cb0", linewidth=2)
    for name in PEERS:
        known = [(at, rows[m]) for at, m in enumerate(models) if m in rows and rows[m][name]]
        times = [row[name] / row[TLMD] for _, row in known]
        label, marker = LABELS[name], _MARKERS[name]
        axes.scatter(times, [at for at, _ in known], marker=marker, label=label, s=30, alpha=0.85)
    axes.set_xscale("log", base=2)
    axes.grid(axis="y", color="#e6ebf0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
