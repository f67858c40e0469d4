"""The code of kernels of the CPU's matrix unit (Intel AMX), in LLVM's own language.

The unit has eight registers of sixteen rows of 64 bytes: up to four of them hold sums, two hold
tiles of data and two tiles of weights (Intel, "Intrinsics Guide", `_tile_dpbf16ps`). Linux lets a
process use the unit after it has asked, so the code asks when it runs for the first time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

EDGE = 16
"""Rows of a tile, and words or float32 numbers in one of them."""
PRODUCTS = {1: ((0, 0),), 2: ((0, 0), (1, 0), (0, 1))}
"""Parts of a number -> the parts of data and weights whose products are added."""
NAME = "tlmd_amx"
"""What the names of kernels begin with."""
BF16, INT8 = "bf16", "int8"
PARTS = "bf16x3"
"""Instead of a dtype: float32 numbers as two bfloat16 parts, so three products for one."""
_INSTRUCTIONS = {BF16: "tdpbf16ps", INT8: "tdpbusd"}
"""Numbers -> the instruction that multiplies two tiles and adds the products to a third."""
_WORD_BYTES, _ROW_BYTES = 4, 64
LINE_WORDS = 16  # of the caches
_DATA, _WEIGHTS = (4, 5), (6, 7)  # registers; those of the sums come before
_SHAPE = bytes(
    # Palette 1; for each register the bytes of a row, and the number of rows.
    [1, *(15 * [0]), *(8 * [_ROW_BYTES, 0]), *(16 * [0]), *(8 * [EDGE]), *(8 * [0])]
)
_TEXT = "".join(f"\\{byte:02X}" for byte in _SHAPE)
BEGIN, END = f"{NAME}_begin", f"{NAME}_end"
"""Functions that make the unit ready for the kernels of a thread, and that end this."""
READY = "_ready"
"""What the names of kernels end with that are called between these two."""
_HEAD = f"""
@tlmd_amx_shape = linkonce_odr constant [64 x i8] c"{_TEXT}"
@tlmd_amx_has_asked = linkonce_odr global i8 0
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tdpbusd(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
"""
_BEGIN = """  %asked = load i8, ptr @tlmd_amx_has_asked
  %is_first = icmp eq i8 %asked, 0
  br i1 %is_first, label %ask, label %start
ask:
  ; arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
  %answer = call i64 asm sideeffect "syscall",
    "={ax},{ax},{di},{si},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"(
    i64 158, i64 4131, i64 18)
  store i8 1, ptr @tlmd_amx_has_asked
  br label %start
start:
  call void @llvm.x86.ldtilecfg(ptr @tlmd_amx_shape)
"""
_END = "  call void @llvm.x86.tilerelease()\n"
_FUNCTION = """
define linkonce_odr i32 @{name}({parameters}) noinline {{
{body}  ret i32 0
}}
"""
_LOOP = """turn:
  %step = phi i64 [ 0, {before} ], [ %next, {end} ]
{turn}  %next = add i64 %step, 1
  %is_last = icmp eq i64 %next, %steps
  br i1 %is_last, label %done, label %turn
done:
"""
_STEPS = "i64 %steps"
_PARAMETERS = (
    f"{_STEPS}, ptr %c, i64 %c_row, ptr %a, i64 %a_row, i64 %a_part, ptr %b, i64 %b_row"
    ", i64 %has_sums, ptr %following, i64 %lines"
)
_SUMS = """  %begins_at_zero = icmp eq i64 %has_sums, 0
  br i1 %begins_at_zero, label %zeros, label %sums
zeros:
{zeros}  br label %begin
sums:
{loads}  br label %begin
begin:
  br label %turn
"""
_PREFETCHES = f"""
  %has_none = icmp eq i64 %lines, 0
  br i1 %has_none, label %products, label %first
first:
  %before = mul i64 %step, %lines
  br label %fetch
fetch:
  %line = phi i64 [ 0, %first ], [ %next_line, %fetch ]
  %from_start = add i64 %before, %line
  %place = mul i64 %from_start, {LINE_WORDS}
  %address = getelementptr i32, ptr %following, i64 %place
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 2, i32 1)
  %next_line = add i64 %line, 1
  %is_last_line = icmp eq i64 %next_line, %lines
  br i1 %is_last_line, label %products, label %fetch
products:
"""
_OF_A_WORD = f"  %word = mul i64 %step, {EDGE}\n"
_BYTES = "".join(f"  %{name}_bytes = mul i64 %{name}_row, {_WORD_BYTES}\n" for name in "abc")
Window = Sequence[tuple[int, int]]
"""Taps of each dimension of a filter, and the rows of the data from one tap to the next."""
PEAK, PEAK_PRODUCTS = "tlmd_amx_peak", 4 * EDGE * EDGE * EDGE
"""The function of `peak_code`, and the products of words of one of its steps."""


def code(name: str, numbers: str, *tiles: Any) -> str:
    """A module with the function of `definition` that makes the unit ready itself."""
    return _HEAD + definition(name, numbers, *tiles)


def ready_code(definitions: Iterable[str]) -> str:
    """A module with these functions, and with `BEGIN` and `END`, between which they are called."""
    edges = {BEGIN: _BEGIN, END: _END}
    made = (_FUNCTION.format(name=name, parameters="", body=body) for name, body in edges.items())
    return "".join([_HEAD, *made, *definitions])


def definition(
    name: str,
    numbers: str,
    rows: int,
    columns: int,
    parts: int,
    window: Window = (),
    inner: int = 0,
) -> str:
    """A function that adds products to ``rows x columns`` tiles of sums, at most four.

    Its arguments are addresses of sums, data and weights, and strides in words: `c_row`, `a_row`
    and `b_row` of rows, `a_part` of the parts of the data. Those of the weights lie one after the
    other. `steps`: tiles of each row of tiles of data. `has_sums` is 0 where sums begin at zero. In
    each step it prefetches so many `lines` after `following`. `numbers`: `BF16`, or `INT8` with
    data that have no sign. `window`: the taps for which it reads other rows of the data, `inner`
    steps for each. Where the name ends with `READY`, the unit must be ready.
    """
    tiles = list(itertools.product(range(rows), range(columns)))

    def moved(instruction: str) -> Iterator[str]:
        for number, (row, column) in enumerate(tiles):
            at = f"{instruction}{number}"
            yield _address(at, "c", ("c_row", row * EDGE), ("", column * EDGE))
            yield f"  call void @llvm.x86.{instruction}64(i8 {number}, ptr %{at}, i64 %c_bytes)\n"

    zeros = "".join(
        f"  call void @llvm.x86.tilezero(i8 {number})\n" for number in range(len(tiles))
    )
    turn = _turn(_INSTRUCTIONS[numbers], rows, columns, parts)
    body = [
        _BYTES,
        _SUMS.format(zeros=zeros, loads="".join(moved("tileloadd"))),
        _loop("%begin", [_PREFETCHES, _OF_A_WORD, *_data(window, inner), *turn], "%products"),
        *moved("tilestored"),
    ]
    if not name.endswith(READY):
        body = [_BEGIN, *body, _END]
    return _FUNCTION.format(name=name, parameters=_PARAMETERS, body="".join(body))


def peak_code(numbers: str) -> str:
    """A function that only multiplies, `steps` times."""
    pairs, instruction = itertools.product(_DATA, _WEIGHTS), _INSTRUCTIONS[numbers]
    turn = [_product(instruction, number, *pair) for number, pair in enumerate(pairs)]
    body = [_BEGIN, "  br label %turn\n", _loop("%start", turn, "%turn"), _END]
    return _HEAD + _FUNCTION.format(name=PEAK, parameters=_STEPS, body="".join(body))


def _loop(before: str, turn: Iterable[str], end: str) -> str:
    """The loop over the steps: the block before it, what it does, the last block of this."""
    return _LOOP.format(before=before, turn="".join(turn), end=end)


def _data(window: Window, inner: int) -> Iterator[str]:
    """Where the data of a step begin."""
    if not window:
        yield _address("from", "a", ("word", 1))
        return
    yield f"  %tap = udiv i64 %step, {inner}\n"
    yield f"  %in_tap = urem i64 %step, {inner}\n"
    yield f"  %in_row = mul i64 %in_tap, {EDGE}\n"
    terms = [("in_row", 1)]
    for place, (count, pitch) in enumerate(window):
        after = math.prod(count for count, _ in window[place + 1 :])
        yield f"  %outer{place} = udiv i64 %tap, {after}\n"
        yield f"  %tap{place} = urem i64 %outer{place}, {count}\n"
        yield f"  %row{place} = mul i64 %tap{place}, %a_row\n"
        terms.append((f"row{place}", pitch))
    yield _address("from", "a", *terms)


def _turn(instruction: str, rows: int, columns: int, parts: int) -> Iterator[str]:
    """The loads and products of one step."""
    # Register -> the tile in it; the one that was used longest ago comes first.
    held: dict[int, tuple[int, int]] = {}
    count = itertools.count()

    def register(of: tuple[int, ...], tile: tuple[int, int]) -> tuple[int, bool]:
        """Where a tile is, and whether it is to be loaded."""
        holding = next((one for one in of if held.get(one) == tile), None)
        chosen = next((one for one in of if one not in held), None) if holding is None else holding
        if chosen is None:
            chosen = next(one for one in held if one in of)
        held.pop(chosen, None)
        held[chosen] = tile
        return chosen, holding is None

    for row, column, of_data, of_weights in _order(rows, columns, parts):
        a, is_new = register(_DATA, (row, of_data))
        if is_new:
            at = f"a{next(count)}"
            yield _address(at, "from", ("a_row", row * EDGE), ("a_part", of_data))
            yield f"  call void @llvm.x86.tileloadd64(i8 {a}, ptr %{at}, i64 %a_bytes)\n"
        b, is_new = register(_WEIGHTS, (column, of_weights))
        if is_new:
            at, place = f"b{next(count)}", (of_weights * columns + column) * EDGE
            yield f"  %{at}_row = mul i64 %word, %b_row\n"
            yield _address(at, "b", (f"{at}_row", 1), ("", place))
            yield f"  call void @llvm.x86.tileloadd64(i8 {b}, ptr %{at}, i64 %b_bytes)\n"
        yield _product(instruction, row * columns + column, a, b)


def _product(instruction: str, total: int, data: int, weights: int) -> str:
    return f"  call void @llvm.x86.{instruction}(i8 {total}, i8 {data}, i8 {weights})\n"


def _order(rows: int, columns: int, parts: int) -> Iterator[tuple[int, int, int, int]]:
    """Tiles of sums, and parts of data and weights, in an order in which few tiles are loaded."""
    tiles = list(itertools.product(range(rows), range(columns)))
    if min(rows, columns) == 1:
        yield from ((*tile, *part) for tile in tiles for part in PRODUCTS[parts])
    else:
        yield from ((*tile, *part) for part in PRODUCTS[parts] for tile in tiles)


def _address(name: str, base: str, *terms: tuple[str, int]) -> str:
    """The address `name` of a word: the sum of values times constants after `base`."""
    lines, total = [], base
    for index, (value, factor) in enumerate((v, f) for v, f in terms if f):
        at = f"{name}_{index}"
        lines.append(f"%{at}n = mul i64 %{value}, {factor}" if value else "")
        number = f"%{at}n" if value else str(factor)
        lines.append(f"%{at} = getelementptr i32, ptr %{total}, i64 {number}")
        total = at
    lines.append(f"%{name} = getelementptr i32, ptr %{total}, i64 0")
    return "".join(f"  {line}\n" for line in lines if line)
