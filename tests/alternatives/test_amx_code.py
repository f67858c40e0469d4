"""The code of kernels of the CPU's matrix unit (Intel AMX), executed line by line."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlmd.alternatives.amx import amx, amx_code

TILES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1)]
kernels = st.builds(
    lambda tiles, steps, kind, window: amx.Kernel(
        kind[0], tiles[0], tiles[1], steps, kind[1], window
    ),
    st.sampled_from(TILES),
    st.integers(1, 5),
    st.sampled_from([(amx_code.BF16, 1), (amx_code.BF16, 2), (amx_code.INT8, 1)]),
    st.sampled_from([(), ((3, 1),), ((2, 5), (3, 1)), ((2, 12), (1, 4), (2, 1))]),
)


class Unit:
    """Executes the code of a kernel, with a number instead of each pair."""

    def __init__(self, memory: dict[str, Any], values: dict[str, int]) -> None:
        self.memory = memory
        self.values: dict[str, Any] = {name: (name, 0) for name in memory} | values
        self.registers = {number: np.full((16, 16), np.nan) for number in range(8)}
        self.loads = 0

    def execute(self, lines: list[str]) -> None:
        for line in lines:
            words = re.findall(r"[\w.%]+", line)
            if " = mul " in line:
                self.values[words[0][1:]] = self._value(words[3]) * self._value(words[4])
            elif " = udiv " in line:
                self.values[words[0][1:]] = self._value(words[3]) // self._value(words[4])
            elif " = urem " in line:
                self.values[words[0][1:]] = self._value(words[3]) % self._value(words[4])
            elif " = getelementptr " in line:
                base, at = self._value(words[4])
                self.values[words[0][1:]] = (base, at + self._value(words[6]))
            elif "llvm.x86.tdp" in line:
                total, data, weights = map(int, words[4::2])
                self.registers[total] += self.registers[data] @ self.registers[weights]
            elif "tilezero" in line:
                self.registers[int(words[4])] = np.zeros((16, 16))
            elif "call void @llvm.x86.tile" in line and "release" not in line:
                self._move("load" in line, int(words[4]), words[6], words[8])

    def _move(self, is_load: bool, register: int, address: str, step: str) -> None:
        base, at = self._value(address)
        rows = at + np.arange(16)[:, None] * (self._value(step) // 4) + np.arange(16)
        if is_load:
            self.registers[register] = self.memory[base][rows]
            self.loads += 1
        else:
            self.memory[base][rows] = self.registers[register]

    def _value(self, word: str) -> Any:
        return self.values[word[1:]] if word.startswith("%") else int(word)


@settings(deadline=None)
@given(kernels, st.integers(0, 3), st.booleans(), st.booleans())
def test_the_code_of_a_kernel_adds_all_products(
    kernel: amx.Kernel, apart: int, has_sums: bool, is_ready: bool
) -> None:
    rng = np.random.default_rng(0)
    rows, columns, words = kernel.rows * 16, kernel.columns * 16, kernel.steps * 16
    c = rng.random((rows, columns + apart))
    a = rng.random((rows + amx.reach(kernel.window), kernel.parts * words + apart))
    b = rng.random((kernel.all_steps * 16, kernel.parts, columns))
    strides = {"c_row": c.shape[1], "a_row": a.shape[1], "a_part": words, "b_row": b[0].size}
    unit = Unit({"c": c.copy().ravel(), "a": a.ravel(), "b": b.ravel()}, strides)
    text = kernel.ready if is_ready else kernel.imported.partition("start:\n")[2]
    assert ("ldtilecfg" in text, "tilerelease" in text) == (not is_ready, not is_ready)
    start, turn, done = re.split(r"\n(?:turn|done):\n", text)
    turn = turn.partition("products:\n")[2]
    zeros, sums = start.partition("zeros:\n")[2].split("sums:\n")
    unit.execute(
        [*start.partition("zeros:\n")[0].splitlines(), *(sums if has_sums else zeros).splitlines()]
    )
    for step in range(kernel.all_steps):
        unit.values["step"] = step
        before = unit.loads
        unit.execute(turn.splitlines())
    of_a_step = unit.loads - before
    unit.execute(done.splitlines())
    places = [range(0, count * pitch, pitch) for count, pitch in kernel.window]
    of_taps = [a[first : first + rows] for first in map(sum, itertools.product(*places))]
    of_parts = [one[:, : kernel.parts * words].reshape(rows, kernel.parts, -1) for one in of_taps]
    parts = np.concatenate(of_parts, axis=2)
    if not has_sums:
        c[:, :columns] = 0
    c[:, :columns] += sum(parts[:, i] @ b[:, j] for i, j in amx_code.PRODUCTS[kernel.parts])
    np.testing.assert_allclose(unit.memory["c"].reshape(c.shape), c)
    tiles = kernel.parts * (kernel.rows + kernel.columns)
    again = (
        min(kernel.rows, kernel.columns) * (kernel.parts - 1)
        if min(kernel.rows, kernel.columns) > 1
        else 0
    )
    assert of_a_step == tiles + again


@given(st.lists(kernels, max_size=4, unique=True))
def test_kernels_are_found_by_their_names(found: list[amx.Kernel]) -> None:
    text = "".join(f'["Annotate", "{kernel.dot}"] {kernel.imported}' for kernel in found)
    assert amx.named(text) == found
    for kernel in found:
        name = re.findall(r"@(tlmd_amx_\w+)\(", kernel.ready)[0]
        assert name.endswith(amx_code.READY)
        same = amx.of_function(name.removesuffix(amx_code.READY))
        assert same.ready == kernel.ready


def test_only_kernels_have_names_of_kernels() -> None:
    with pytest.raises(ValueError, match="is not a kernel"):
        amx.of_function(amx_code.BEGIN)


def test_code_of_several_kernels_makes_the_unit_ready_once() -> None:
    one, other = (amx.Kernel(amx_code.BF16, rows, 2, 3, 1) for rows in (1, 2))
    text = amx_code.ready_code([one.ready, other.ready])
    defined = re.findall(r"^define .* @(\w+)\(", text, re.MULTILINE)
    assert defined[:2] == [amx_code.BEGIN, amx_code.END] and len(set(defined)) == 4
    assert text.count("call void @llvm.x86.ldtilecfg") == 1
