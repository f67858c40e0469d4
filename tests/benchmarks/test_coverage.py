"""The lists of networks and the page of `benchmarks.coverage`, without running a network."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from benchmarks.coverage.coverage_page import page, summary
from benchmarks.coverage.networks import lists as networks
from benchmarks.coverage.networks import networks_onnx


def row(name: str, reached: str | None, cause: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "group": "timm",
        "name": name,
        "reached": reached,
        "cause": cause,
        "stock": None,
        "seconds": {},
        **more,
    }


def figures(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"machine": {"cpu": "a CPU", "commit": "abc1234"}, "rows": list(rows)}


@pytest.mark.parametrize(("group", "least"), [("torchvision", 30), ("timm", 50)])
def test_each_group_has_networks_of_many_families(group: str, least: int) -> None:
    assert len(networks.networks(group)) >= least


def test_networks_of_transformers_are_of_all_kinds_and_no_name_is_lost() -> None:
    kinds = ("text", "decoders", "vision", "various")
    modules = [importlib.import_module(f"benchmarks.networks_transformers_{k}") for k in kinds]
    lists = [
        value
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, dict) and all(map(callable, value.values()))
    ]
    listed = [name for found in lists for name in found]
    assert len(lists) == 7
    assert sorted(listed) == sorted(networks.networks("transformers"))
    assert len(listed) >= 60


def test_networks_are_factories_that_tlmd_can_load() -> None:
    for group, module in networks.LISTS.items():
        for name in networks.networks(group):
            assert callable(getattr(importlib.import_module(module), name))
    with pytest.raises(AttributeError):
        networks.factory({}, "resnet9999")


def test_exported_networks_are_on_the_other_lists() -> None:
    assert len(networks_onnx.EXPORTED) == 20
    for group, name, opset in networks_onnx.EXPORTED.values():
        assert name in networks.networks(group)
        assert 13 <= opset <= 18


def test_summary_counts_who_reaches_which_stage() -> None:
    rows = [row("a", "right"), row("b", "lowered", "no"), row("c", None, "no")]
    assert summary(rows) == [
        {
            "group": "timm",
            "networks": 3,
            "loaded": 2,
            "lowered": 2,
            "compiled": 1,
            "run": 1,
            "right": 1,
        }
    ]


def test_page_has_rates_and_causes() -> None:
    text = page(figures(row("a", "right"), row("b", None, "no `x | y`", stock="right")))
    assert "| timm | 2 | 1 | 1 | 1 | 1 | 1 |" in text
    assert "| timm | b | nothing | no `x \\| y` | right |" in text


def test_page_says_whether_stock_tvm_fails_for_the_same_reason() -> None:
    rows = [row("a", None, "BadInput: no LSTM", stock="no LSTM"), row("b", None, "x", stock="y")]
    text = page(figures(*rows))
    assert "| BadInput: no LSTM | fails likewise |" in text
    assert "| x | fails: y |" in text


def test_page_compares_only_what_was_tried_twice() -> None:
    before = figures(row("a", "right"), row("b", None, "no"), row("gone", "right"))
    text = page(figures(row("a", "run", "wrong"), row("b", "right"), row("new", "right")), before)
    assert "| timm | 2 | 1 -> 2 | 1 -> 2 | 1 -> 2 | 1 -> 2 | 1 -> 1 |" in text
    assert "no longer is" in text
