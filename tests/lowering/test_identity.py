"""A task's id says what is computed, not what anything is called."""

# The annotations of TVMScript are buffers, which no type checker knows.
# mypy: disable-error-code="untyped-decorator,no-untyped-def,valid-type"

import tvm
import tvm_ffi
from tvm.script import tirx as T

from tlmd.lowering.identity import task_id


@T.prim_func(s_tir=True)
def scale(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")):
    T.func_attr({"global_symbol": "scale", "op_pattern": 0})
    for i, j in T.grid(4, 8):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def renamed(data: T.Buffer((4, 8), "float32"), lv33: T.Buffer((4, 8), "float32")):
    for x0, x1 in T.grid(4, 8):
        with T.sblock("T_multiply_7"):
            row, column = T.axis.remap("SS", [x0, x1])
            lv33[row, column] = data[row, column] * T.float32(2)


@T.prim_func(s_tir=True)
def other_constant(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float32(3)


@T.prim_func(s_tir=True)
def other_shape(a: T.Buffer((4, 9), "float32"), b: T.Buffer((4, 9), "float32")):
    for i, j in T.grid(4, 9):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float32(2)


@T.prim_func(s_tir=True)
def other_dtype(a: T.Buffer((4, 8), "float16"), b: T.Buffer((4, 8), "float16")):
    for i, j in T.grid(4, 8):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float16(2)


@T.prim_func(s_tir=True)
def other_access(a: T.Buffer((4, 8), "float32"), b: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = b[vi, vj] * T.float32(2)


def identify(func: tvm.tirx.PrimFunc) -> str:
    return task_id(tvm.IRModule({"main": func}))


def test_id_is_stable() -> None:
    assert identify(scale) == "t1deef6313e9f6affc677cba8a9f8513"


def test_names_do_not_matter() -> None:
    assert identify(scale) == identify(renamed)


def test_equal_ids_share_records() -> None:
    # MetaSchedule's database finds a record by structural equality: it must agree with the id.
    plain = scale.without_attr("op_pattern").without_attr("global_symbol")
    assert tvm_ffi.structural_equal(plain, renamed.without_attr("global_symbol"))


def test_what_is_computed_matters() -> None:
    ids = [identify(f) for f in (scale, other_constant, other_shape, other_dtype, other_access)]
    assert len(set(ids)) == len(ids)
