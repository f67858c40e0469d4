"""What a task has to move and to compute at least, and which limit is nearer."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, topi

from tlmd.data.types import Task
from tlmd.measure.server.program import traffic
from tlmd.measure.timing.peak import Roofline, Traffic
from tlmd.space.hardware.target import resolve

ROOFLINE = Roofline({"float32": 100.0, "int8": 400.0}, ((1 << 20, 80.0), (1 << 62, 20.0)))


def task(arguments: list[te.Tensor], constants: tuple[int, ...]) -> Task:
    module = tvm.IRModule({"main": te.create_prim_func(arguments)})
    text = tvm.ir.save_json(module)
    return Task("t", "t", 1, 1e6, text, resolve("native", 1), constants=constants)


def test_of_a_table_only_the_rows_that_are_read_count() -> None:
    table = te.placeholder((1000, 64), name="table")
    rows = te.placeholder((8,), dtype="int32", name="rows")
    found = traffic(task([table, rows, topi.take(table, rows, axis=0)], (0,)))
    assert found.constant_bytes == 8 * 64 * 4
    assert found.other_bytes == 8 * 4 + 8 * 64 * 4


def test_operands_that_are_read_again_and_again_count_once() -> None:
    a, b = te.placeholder((16, 32), name="a"), te.placeholder((32, 8), name="b")
    found = traffic(task([a, b, topi.nn.matmul(a, b)], (1,)))
    assert found == Traffic(1e6, 32 * 8 * 4, (16 * 32 + 16 * 8) * 4, "float32")


def test_the_nearer_limit_is_the_one_that_takes_longer() -> None:
    share, limit = ROOFLINE.share(Traffic(1e9, 0, 1000, "float32"), 0.02)
    assert limit == "compute" and share == pytest.approx(0.5)
    share, limit = ROOFLINE.share(Traffic(1e9, 0, 1000, "int8"), 0.02)
    assert limit == "compute" and share == pytest.approx(0.125)
    share, limit = ROOFLINE.share(Traffic(1e3, 20_000_000, 80_000, "float32"), 0.002)
    assert limit == "memory" and share == pytest.approx((1e-3 + 1e-6) / 0.002)
