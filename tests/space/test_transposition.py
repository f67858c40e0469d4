"""The tiled sketch of programs that move data."""

from __future__ import annotations

from random import Random

import numpy as np
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

from tlmd.data.types import Task
from tlmd.language.sentence import decode, encode
from tlmd.lowering.identity import task_id
from tlmd.lowering.lowering import as_task
from tlmd.space.hardware.target import resolve, tvm_target
from tlmd.space.rules import transposition_sketches
from tlmd.space.space import TaskSpace

INFO = resolve("native")


def _task(shape: tuple[int, ...], order: tuple[int, ...], fused: bool) -> Task:
    """A transposed copy, with an addition before it where it is `fused`."""
    data = te.placeholder(shape, "float32", name="data")
    added = te.compute(shape, lambda *i: data[i] + 1.0, name="added") if fused else data
    moved = te.compute(
        tuple(shape[axis] for axis in order),
        lambda *i: added[tuple(i[order.index(axis)] for axis in range(len(order)))],
        name="moved",
    )
    module = tvm.IRModule({"main": te.create_prim_func([data, moved])})
    return as_task(task_id(module), module, "main", 1, INFO)


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.integers(2, 24), min_size=2, max_size=4).flatmap(
        lambda shape: st.tuples(st.just(tuple(shape)), st.permutations(range(len(shape))))
    ),
    st.booleans(),
)
def test_only_a_moved_last_dimension_is_tiled(
    moved: tuple[tuple[int, ...], list[int]], fused: bool
) -> None:
    shape, order = moved
    space = TaskSpace(_task(shape, tuple(order), fused))
    is_moved = order[-1] != len(order) - 1
    assert len(space.sketches) == 1 + is_moved
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    want = (data + 1 if fused else data).transpose(order)
    for sketch in range(len(space.sketches)):
        candidate = space.random(Random(1), sketch)
        sentence = encode(space.sketches[sketch], candidate)
        assert decode(space.sketches, sentence, space.task.id) == candidate
        tensors = [tvm.runtime.tensor(data), tvm.runtime.tensor(np.zeros_like(want))]
        program = tvm.compile(space.finish(candidate).mod, tvm_target(INFO))
        program["main"](*tensors)
        assert (tensors[1].numpy() == want).all()


def test_a_sum_is_not_tiled_so() -> None:
    data = te.placeholder((8, 16), "float32", name="data")
    axis = te.reduce_axis((0, 8), "k")
    summed = te.compute((16,), lambda i: te.sum(data[axis, i], axis=axis), name="summed")
    module = tvm.IRModule({"main": te.create_prim_func([data, summed])})
    assert transposition_sketches.sketch(module, 16) == []
