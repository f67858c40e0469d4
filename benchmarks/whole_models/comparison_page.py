"""The page of `benchmarks.comparison`: for each CPU and precision a table of whole models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from benchmarks.common import report
from benchmarks.whole_models.deployments import METASCHEDULE, PEERS, TLMD
from benchmarks.whole_models.end_to_end import LABELS, best_ratio
from tlmd.data.model_spec import BF16, FP32, INT8

Column = tuple[str, Callable[[report.Row], str]]

NAMES = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "resnext50": "ResNeXt-50",
    "wide-resnet50": "Wide ResNet-50",
    "resnet3d18": "ResNet3D-18",
    "regnet": "RegNetX-800MF",
    "mobilenet-v2": "MobileNet-V2",
    "inception-v3": "Inception-v3",
    "densenet121": "DenseNet-121",
    "convnext": "ConvNeXt-T",
    "dcgan": "DCGAN",
    "vit-s16": "ViT-S/16",
    "vit-b16": "ViT-B/16",
    "bert-small": "BERT-small",
    "bert-base": "BERT-base",
    "bert-large": "BERT-large",
    "gpt2": "GPT-2",
    "llama": "LLaMA",
    "benchmarks.whisper:encoder": "Whisper-tiny, encoder",
    "timm:efficientnet_b0": "EfficientNet-B0 (timm)",
}
_INTRODUCTION = """# Whole models beside other compilers

Written by `python -m benchmarks.comparison`. Each row is one run of `python -m
benchmarks.end_to_end MODEL`, in which all programs take turns in one process, on the same core or
cores; so only figures of one row may be compared. Times are medians in milliseconds. Weights are
random. The input is one image of 224 x 224 (Inception-v3: 299 x 299; DCGAN makes one of 64 x 64),
16 frames of 112 x 112 (ResNet3D-18), 128 tokens, or thirty seconds of sound (Whisper). Rows are of
different commits, those of one core mostly while another program used the other core.

- **untuned TVM**: with TVM's default schedules. Newer rows have the sum of the tasks' times where
  the model would run for more than five seconds.
- **best / tlmd**: the time of the fastest of PyTorch eager, torch.compile (max-autotune), ONNX
  Runtime and OpenVINO over the time of tlmd, the median of paired ratios with its 95 % interval.
  More than 1: tlmd is faster.
- **of the limit**: the time of the model's operations at the rate at which the cores multiply and
  add, over the time of tlmd ([how to read it](alternatives.md#how-near-to-the-limit)).
- **error**: the largest difference from PyTorch in float32, as a share of the largest output.
- **tuning**: how long the whole `tlmd tune` took.
- In bfloat16 the others compute in bfloat16, too, but ONNX Runtime, which cannot on CPUs. In int8
  PyTorch and torch.compile compute in float32.
- Zen 5, 4 and 3: AMD EPYC. Granite and Emerald Rapids: Intel Xeon. The first one hides its model;
  its caches are those of Granite Rapids. The second one was measured before tlmd used
  [the matrix unit](alternatives.md#what-does-the-matrix-unit-of-intel-cpus-gain), with PyTorch 2.11
  and ONNX Runtime 1.30."""
_STOCK = (
    "Beside MetaSchedule, which tuned the whole model for as long as tlmd did, and went on until"
    " each task had results, sixteen trials at a time. MetaSchedule does not look at what its"
    " programs compute; the table says where the model's outputs are wrong. "
)
_BUDGET = (
    "**float32, one core, with `--time-budget`**, each from an empty state directory. The budget"
    " is for measuring alone; the whole command also lowers the model, times it untuned, chooses"
    " inside of it and compiles it."
)
_WRONG = 0.01  # a larger error of the outputs is no rounding
_NO_ROW = "-"
_CORES = {1: "one core", 2: "two cores", 16: "16 cores"}
_README_CPU = "Zen 4"
_README_MODELS = ("resnet18", "resnet50", "bert-base", "mobilenet-v2", "gpt2", "resnext50")
_BEST_RATIO = "best / tlmd"


def chosen(
    rows: Iterable[report.Row], cores: int = 1, trials: int = 16, precision: str = FP32
) -> list[report.Row]:
    """Rows without a time budget, the best first."""
    wanted = {"cores": cores, "trials": trials, "precision": precision, "budget_s": None}
    found = [row for row in rows if all(row.get(k) == v for k, v in wanted.items())]
    return sorted(found, key=lambda row: -row[_BEST_RATIO])


def page(machines: dict[str, list[report.Row]]) -> str:
    """The page, from each CPU's rows."""
    parts = [_INTRODUCTION, "## Summary", summary_table(machines)]
    for name, rows in machines.items():
        parts += [f"## {name}", *_machine(rows)]
    return "\n\n".join(parts) + "\n"


def _machine(rows: list[report.Row]) -> list[str]:
    parts: list[str] = []
    for precision, cores in product((FP32, BF16, INT8), _CORES):
        found = chosen(rows, cores, 16, precision)
        if found:
            said = f"Geometric mean of best / tlmd, {_models(found)}: **{_mean(found)}**."
            parts += [_title(precision, cores, 16) + said, _table(_WITHOUT_STOCK, found)]
    for cores in _CORES:
        found = [row for row in chosen(rows, cores, 64) if row.get(METASCHEDULE)]
        if found:
            said = _STOCK + _stock_mean(found)
            parts += [_title(FP32, cores, 64) + said, _table(_WITH_STOCK, found)]
    budgets = [row for row in rows if row.get("budget_s")]
    if budgets:
        budgets.sort(key=lambda row: (row["model"], row["budget_s"]))
        parts += [_BUDGET, _table(_WITH_BUDGET, budgets)]
    return parts


def _title(precision: str, cores: int, trials: int) -> str:
    named = {FP32: "float32", BF16: "bfloat16", INT8: "int8"}[precision]
    return f"**{named}, {_CORES[cores]}, {trials} measurements per task.** "


def _stock_mean(rows: list[report.Row]) -> str:
    """The geometric mean beside MetaSchedule, of the models whose outputs are right."""
    right = [row for row in rows if not _is_wrong(row)]
    if not right:
        return ""
    mean = _mean(right, lambda row: row[f"{METASCHEDULE} / tlmd"][0])
    without = " without wrong outputs" if len(right) < len(rows) else ""
    return f"Geometric mean of MetaSchedule / tlmd, {_models(right)}{without}: **{mean}**."


def _mean(
    rows: list[report.Row], ratio: Callable[[report.Row], float] = lambda r: r[_BEST_RATIO]
) -> str:
    return f"{report.geometric_mean(map(ratio, rows)):.2f}"


def _models(rows: list[report.Row]) -> str:
    return f"{len(rows)} model{'s' * (len(rows) > 1)}"


def summary_table(machines: dict[str, list[report.Row]]) -> str:
    """All models in float32: times on one core of the first CPU, ratios on all that have most."""
    models = chosen(next(iter(machines.values())))
    columns = list(_SUMMARY)
    means = ["**geometric mean**", *[""] * (len(columns) - 1)]
    for (name, rows), cores in product(machines.items(), _CORES):
        found = chosen(rows, cores)
        if len(found) > len(models) / 2:
            columns.append((f"{name}, {_CORES[cores]}", _ratio_of(found)))
            means.append(f"**{_mean(found)}**")
    return _table(columns, models, means)


def readme_means(machines: dict[str, list[report.Row]]) -> str:
    """One number per CPU: the geometric mean of best / tlmd in float32 on one core."""
    all_models = chosen(next(iter(machines.values())))
    found = {name: chosen(rows) for name, rows in machines.items()}
    known = {name: rows for name, rows in found.items() if len(rows) > len(all_models) / 2}
    means = [f"**{_mean(rows)}** ({_models(rows)})" for rows in known.values()]
    return report.markdown_table(list(known), [means])


def readme_table(machines: dict[str, list[report.Row]]) -> str:
    """Six models in float32 on one core of one CPU, the best first."""
    rows = chosen(machines[_README_CPU])
    columns = (_MODEL, _TLMD_MS, _BEST_MS, _BEST_NAME, _BEST, _COMMIT)
    return _table(columns, [row for row in rows if row["model"] in _README_MODELS])


def _ratio_of(rows: list[report.Row]) -> Callable[[report.Row], str]:
    known = {row["model"]: best_ratio(row) for row in rows}
    return lambda row: known.get(row["model"], _NO_ROW)


def _of_limit(row: report.Row) -> str:
    limit = row.get("limit")
    return _NO_ROW if limit is None else f"{limit / row[TLMD]:.0%}".replace("%", " %")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _ms(value: float | None) -> str:
    """Two or three digits are all that two runs agree on; a peer that failed has no time."""
    if value is None:
        return _NO_ROW
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _fastest_peer(row: report.Row) -> str:
    """The peer with the least median time."""
    return min((name for name in PEERS if row[name]), key=lambda name: float(row[name]))


def _stock_time(row: report.Row) -> str:
    time = _ms(row[METASCHEDULE])
    return f"{time} (wrong outputs)" if _is_wrong(row) else time


def _is_wrong(row: report.Row) -> bool:
    """Whether MetaSchedule's program computes something else than the model."""
    return bool(row[f"{METASCHEDULE} error"] > _WRONG)


def _of(name: str) -> Column:
    return LABELS[name], lambda row: _ms(row[name])


def _table(
    columns: Sequence[Column], rows: Iterable[report.Row], last: list[str] | None = None
) -> str:
    lines = [[text(row) for _, text in columns] for row in rows]
    return report.markdown_table([name for name, _ in columns], lines + ([last] if last else []))


_MODEL: Column = ("model", lambda row: str(NAMES.get(row["model"], row["model"])))
_TLMD: Column = ("tlmd", lambda row: f"**{_ms(row[TLMD])}**")
_TLMD_MS: Column = ("tlmd, ms", _TLMD[1])
_BEST_MS: Column = ("best other, ms", lambda row: _ms(row[_fastest_peer(row)]))
_BEST_NAME: Column = ("best other", lambda row: LABELS[_fastest_peer(row)])
_UNTUNED: Column = ("untuned TVM", lambda row: _ms(row["untuned"]))
_PEERS = tuple(_of(name) for name in PEERS)
_BEST: Column = ("best / tlmd", best_ratio)
_LIMIT: Column = ("of the limit", _of_limit)
_ERROR: Column = ("error", lambda row: f"{row['error']:.0e}")
_TUNING: Column = ("tuning", lambda row: _minutes(row["wall_s"]))
_COMMIT: Column = ("commit", lambda row: str(row["commit"]))
_STOCK_TIME: Column = ("MetaSchedule", _stock_time)
_STOCK_RATIO: Column = (
    "MetaSchedule / tlmd",
    lambda row: report.interval(*row[f"{METASCHEDULE} / tlmd"]),
)
_STOCK_TOOK: Column = (
    "MetaSchedule took",
    lambda row: _minutes(row[f"{METASCHEDULE} seconds"]),
)
_GIVEN: Column = ("budget", lambda row: _minutes(row["budget_s"]))

_SUMMARY = (_MODEL, _TLMD, *_PEERS)
_TIMES = (_MODEL, _UNTUNED, _TLMD, *_PEERS, _BEST)
_WITHOUT_STOCK = (*_TIMES, _LIMIT, _ERROR, _TUNING, _COMMIT)
_WITH_STOCK = (*_TIMES, _STOCK_TIME, _STOCK_RATIO, _TUNING, _STOCK_TOOK, _COMMIT)
_WITH_BUDGET = (*_TIMES[:1], _GIVEN, _TUNING, *_TIMES[1:], _COMMIT)
