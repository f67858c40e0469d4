"""`torch.compile(backend="tlmd")` beside eager PyTorch and torch.compile's default, on all cores.

`python -m benchmarks.torch_compile [--json FILE]`: BERT-tiny of transformers and
ResNet-18 of torchvision, with random weights. The daemon tunes them in the background; the model
swaps in what it finds. For 40 s of this the model is called without a gap: `tuning_median_ms` and
`tuning_mean_ms`. The headline `ratio` is torch.compile's default time over tlmd's, geometric
mean.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import interleaved, report

_POLL_S, _SWAP_S, _BESIDE_TUNING_S = 1.0, 30.0, 40.0


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    options = parser.parse_args()
    machine = report.machine()
    rows = [_row(name, make, options) for name, make in _MODELS.items()]
    document = {
        "ratio": report.geometric_mean(r["inductor_ms"] / r["tlmd_ms"] for r in rows),
        "meaning": "torch.compile's default time over tlmd's after the swaps, geometric mean",
        "machine": machine,
        "rows": rows,
    }
    report.show("milliseconds per call, seconds of the first call", rows)
    report.finish(document, options.json)
    return 0


def _bert_tiny() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    return BertModel(config, add_pooling_layer=False).eval(), (torch.randint(0, 30000, (1, 128)),)


def _resnet18() -> tuple[Any, tuple[Any, ...]]:
    from tlmd.data.model_spec import ModelSpec
    from tlmd.models import factories

    module, example = factories.make(ModelSpec("torchvision:resnet18"))
    return module.eval(), tuple(example)


_MODELS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "bert-tiny": _bert_tiny,
    "resnet18": _resnet18,
}


def _row(name: str, make: Callable[[], tuple[Any, tuple[Any, ...]]], options: Any) -> report.Row:
    import torch

    import tlmd

    settings: dict[str, Any] = {}
    if options.checkpoint:
        settings["generate.checkpoint"] = str(options.checkpoint)
    module, example = make()
    with (
        torch.no_grad(),
        tempfile.TemporaryDirectory(prefix="tlmd-bench-") as state,
        tlmd.start(state, None, **settings) as daemon,
    ):
        inductor: Any = torch.compile(module)
        inductor_first_s = _seconds(lambda: inductor(*example))
        chosen: dict[str, Any] = {"state_dir": state}
        fast: Any = torch.compile(module, backend="tlmd", options=chosen, dynamic=False)
        first_s = _seconds(lambda: fast(*example))
        before_ms = interleaved.medians_ms({"tlmd": lambda: fast(*example)})["tlmd"]
        begin = time.monotonic()
        during = _while_tuning(daemon, lambda: fast(*example))
        _wait_for_the_job(daemon)
        tuning_s = time.monotonic() - begin
        daemon.stop()
        time.sleep(_SWAP_S)  # the last library is compiled and swapped in
        times = interleaved.medians_ms(
            {
                "eager": lambda: module(*example),
                "inductor": lambda: inductor(*example),
                "tlmd": lambda: fast(*example),
            }
        )
        found, expected = fast(*example), module(*example)
        error = _largest_error(found, expected)
    return {
        "model": name,
        "eager_ms": round(times["eager"], 3),
        "inductor_ms": round(times["inductor"], 3),
        "tlmd_first_ms": round(before_ms, 3),
        "tuning_median_ms": round(statistics.median(during), 3),
        "tuning_mean_ms": round(statistics.fmean(during), 3),
        "tlmd_ms": round(times["tlmd"], 3),
        "inductor_first_call_s": round(inductor_first_s, 1),
        "tlmd_first_call_s": round(first_s, 1),
        "tuning_s": round(tuning_s, 1),
        "max_abs_err": error,
    }


def _while_tuning(daemon: Any, run: Callable[[], Any]) -> list[float]:
    """Milliseconds of calls without a gap, from the first measured candidate on."""
    while not daemon.status()["measured"]:
        time.sleep(_POLL_S)
    end, found = time.monotonic() + _BESIDE_TUNING_S, []
    while time.monotonic() < end:
        found.append(1e3 * _seconds(run))
    return found


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _wait_for_the_job(daemon: Any) -> None:
    while not (jobs := daemon.jobs()) or jobs[-1]["state"] not in ("done", "failed"):
        time.sleep(_POLL_S)
    if jobs[-1]["state"] == "failed":
        raise SystemExit(f"the job failed: {jobs[-1]['reason']}")


def _largest_error(found: Any, expected: Any) -> float:
    import torch

    pairs = zip(_tensors(found), _tensors(expected), strict=True)
    return max(float(torch.max(torch.abs(a - b))) for a, b in pairs)


def _tensors(value: Any) -> list[Any]:
    return [value] if hasattr(value, "shape") else [v for v in value.values() if v is not None]


if __name__ == "__main__":
    sys.exit(main())
