"""What an optimised model does in PyTorch after something has changed, beside inductor.

`python -m benchmarks.behaviours [--json FILE] [--only PATTERN]`. Each row compiles a small network
with `tlmd.optimize`, ``torch.compile(backend="tlmd")`` and inductor, changes something, and
compares the next answers with those of eager PyTorch: `as eager`, `differs`, or the error that is
raised. tlmd uses its library whatever its time. A second table has the microseconds that
`tlmd.optimize` spends before each call. The headline `ratio` is the share of answers of tlmd that
are as eager's.
"""

from __future__ import annotations

import fnmatch
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tlmd
from benchmarks.common import report
from benchmarks.coverage.behaviour_cases import CASES, Case, Net, Outputs, X, keyword
from tlmd.integrations import hot_swap
from tlmd.integrations.libraries import key_of, layout_of
from tlmd.integrations.module_state import ModuleState

COLUMNS = ("inductor", "optimize", "backend")
_SPREAD = 1e-4
_CALLS, _TURNS = 200, 7


def _answer(column: str, make: Callable[[], nn.Module], case: Case, state: Path) -> str:
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = make()
    net.train(not isinstance(net, Net | Outputs))
    options: dict[str, Any] = {"state_dir": str(state), "background": False}
    try:
        with torch.no_grad():
            if column == "optimize":
                example = {"x": X, "double": True} if case is keyword else (X,)
                fast: Any = tlmd.optimize(net, example, state_dir=state, background=False)
            elif column == "backend":
                fast = torch.compile(net, backend="tlmd", options=options)
            else:
                fast = torch.compile(net)
            return "as eager" if _are_equal(*case(fast, net)) else "differs"
    except Exception as error:
        return f"raises {type(error).__name__}"


def _are_equal(found: Any, expected: Any) -> bool:
    try:
        torch.testing.assert_close(found, expected, atol=_SPREAD, rtol=_SPREAD)
    except AssertionError:
        return False
    return True


def _guards() -> list[report.Row]:
    """Microseconds that a call of `tlmd.optimize` spends on looking whether its library fits."""
    import transformers

    resnet = {"depths": [2, 2, 2, 2], "layer_type": "basic"}
    small = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    models = {
        "two layers": Net(),
        "BERT, 2 layers": transformers.BertModel(transformers.BertConfig(**small)),
        "ResNet-18": transformers.ResNetModel(transformers.ResNetConfig(**resnet)),
        "BERT, 12 layers": transformers.BertModel(transformers.BertConfig()),
        "ResNet-50": transformers.ResNetModel(transformers.ResNetConfig()),
    }
    rows = []
    for name, model in models.items():
        state = ModuleState(model.eval())
        state.weights.keep_sums()
        whole = _microseconds(partial(_look, state))
        moved = _microseconds(state.weights.have_moved)
        rows.append(
            {
                "model": name,
                "submodules": len(list(model.modules())),
                "tensors": len(state.tensors),
                "us a call": round(whole, 1),
                "of them versions and places": round(moved, 1),
            }
        )
    return rows


def _look(state: ModuleState) -> None:
    key_of([X])
    layout_of([X])
    state.has_changed()


def _microseconds(work: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(_TURNS):
        begin = time.perf_counter()
        for _ in range(_CALLS):
            work()
        best = min(best, (time.perf_counter() - begin) / _CALLS)
    return 1e6 * best


def main() -> None:
    """Try all behaviours, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    here = report.machine()
    hot_swap.FASTER, hot_swap._TIMING_S = 1e9, 0.02
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, case) in CASES.items():
            if fnmatch.fnmatch(name, options.only):
                answers = {c: _answer(c, make, case, Path(folder)) for c in COLUMNS}
                rows.append({"behaviour": name, **answers})
                print(rows[-1], flush=True)
    report.show("answers after a change", rows)
    guards = _guards()
    report.show("what looking costs", guards)
    ours = [row[column] for row in rows for column in COLUMNS[1:]]
    ratio = sum(answer == "as eager" for answer in ours) / max(1, len(ours))
    result = {
        "benchmark": "behaviours",
        "machine": here,
        "ratio": round(ratio, 3),
        "meaning": "share of answers of tlmd that are as eager's",
        "rows": rows,
        "guards": guards,
    }
    report.finish(result, options.json)


if __name__ == "__main__":
    main()
