"""A task in the server: its parsed module, its arguments and their roles, random inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import SBlockRealize
from tvm.s_tir import meta_schedule as ms

from tlmd.alternatives import catalogue
from tlmd.data.types import Task
from tlmd.measure.server.verify import Argument, make_input
from tlmd.measure.timing.peak import Traffic
from tlmd.space import task_module

_REDUCTION = 2  # IterVar.CommReduce
_ROUNDING = {"tirx.nearbyint", "tirx.round"}


@dataclass(frozen=True)
class Program:
    """A task's unscheduled module and what is needed to call and to check it.

    ``reduction`` is the number of terms of the longest sum, ``has_floats`` whether floats are
    computed anywhere (integers rounded from them may be off by one).
    """

    task: Task
    module: Any
    arguments: tuple[Argument, ...]
    reduction: int
    has_floats: bool
    direct: Program | None = None
    """The direct program of an alternative; its outputs are the reference."""

    has_steps: bool = False
    """Whether floats are rounded to integers on the way, as in quantised models."""

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def reference_id(self) -> str:
        """The name under which the reference outputs are stored; the random inputs depend on it."""
        return self.task.computation

    @property
    def multiplied(self) -> str:
        """The dtype of the operands of a GEMM or a convolution; a bias is smaller."""
        read = [a for a in self.arguments if a.reads] or list(self.arguments)
        widest = max(read, key=lambda a: a.nbytes)
        return catalogue.declared(self.task.alternative).multiplies or widest.dtype

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.arguments) if a.writes)

    @property
    def input_bytes(self) -> int:
        return sum(a.nbytes for a in self.arguments if a.reads)


def parse(task: Task) -> Program:
    """Parse a task's module; raises what TVM raises, or `ValueError`, for one that is unusable."""
    # Tasks are stored without a symbol; a built function needs one to be called.
    function = task_module.load(task.module)["main"].with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    params = list(function.params)
    infos = ms.arg_info.ArgInfo.from_prim_func(function)
    reads: set[int] = set()
    writes: set[int] = set()
    steps = False
    reduction, dtypes = 1, {str(info.dtype) for info in infos}

    def indices(regions: Any) -> set[int]:
        return {i for r in regions for i, p in enumerate(params) if p.same_as(r.source)}

    def visit(realize: Any) -> None:
        nonlocal reduction
        block = realize.block
        # In execution order: a buffer that is read before it is written is an input.
        reads.update(indices(block.reads) - writes)
        writes.update(indices(block.writes))
        extents = [iv.dom.extent for iv in block.iter_vars if int(iv.iter_type) == _REDUCTION]
        reduction = max(reduction, math.prod(int(e) for e in extents))
        dtypes.update(str(region.source.ty.dtype) for region in block.writes)

    def visit_call(call: Any) -> None:
        nonlocal steps
        steps = steps or getattr(call.op, "name", "") in _ROUNDING

    callbacks = [(SBlockRealize, visit), (tvm.ir.Call, visit_call)]
    tvm_ffi.structural_walk(function.body, callbacks, order="post")
    if not writes:  # an opaque body: by convention its result is the last argument
        writes.add(len(params) - 1)
        reads.update(range(len(params) - 1))
    arguments = tuple(
        Argument(tuple(int(d) for d in info.shape), str(info.dtype), i in reads, i in writes)
        for i, info in enumerate(infos)
    )
    floats = any("float" in dtype for dtype in dtypes)
    if not task.direct:
        return Program(task, module, arguments, reduction, floats, has_steps=steps)
    direct = parse(replace(task, id=task.group, module=task.direct, group="", direct=""))
    return Program(
        task, module, arguments, direct.reduction, direct.has_floats, direct, direct.has_steps
    )


def traffic(task: Task) -> Traffic:
    """The least that the task has to compute and to move; raises what `parse` raises."""
    program = parse(task)
    touched = _touched_bytes(program)
    constant = sum(touched[i] for i in task.constants)
    return Traffic(task.flops, constant, sum(touched) - constant, program.multiplied)


def _touched_bytes(program: Program) -> list[int]:
    """Bytes of each argument that the task touches; of a table only the rows that it reads."""
    function = program.module["main"]
    elements: list[float] = [0] * len(program.arguments)

    def visit(realize: Any) -> None:
        block = realize.block
        domain = [iv.dom.extent for iv in block.iter_vars]
        for region in block.reads:
            extents = [*domain, *(side.extent for side in region.region)]
            # A region whose size depends on the iterators counts as the whole buffer.
            fixed = all(isinstance(e, tvm.tirx.IntImm) for e in extents)
            count = math.prod(map(int, extents)) if fixed else math.inf
            for i, parameter in enumerate(function.params):
                if parameter.same_as(region.source):
                    elements[i] += count

    tvm_ffi.structural_walk(function.body, (SBlockRealize, visit), order="post")
    return [
        int(count) * a.numpy_dtype.itemsize if 0 < count < math.prod(a.shape) else a.nbytes
        for a, count in zip(program.arguments, elements, strict=True)
    ]


def make_inputs(program: Program, positive: bool) -> list[Any]:
    """TVM tensors on the CPU, one per argument; None for those the program only writes.

    Those of an alternative are made from the direct program's.
    """
    made = (program.direct or program).arguments
    tensors: list[Any] = []
    for i, (given, argument) in enumerate(zip(made, program.arguments, strict=True)):
        if not argument.reads:
            tensors.append(None)
            continue
        array = make_input(program.reference_id, i, given, positive)
        if given.shape != argument.shape:
            array = catalogue.make_weights(program.task.alternative, array, argument.shape)
        tensor = tvm.runtime.empty(argument.shape, argument.dtype, tvm.cpu())
        tensor.copyfrom(array)
        tensors.append(tensor)
    return tensors
