"""The alternatives of a model's tasks, and the model that uses the chosen ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst, IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.alternatives.amx import amx_code, amx_packed
from tlmd.alternatives.attention.attention import Attention
from tlmd.alternatives.attention.attention_short import short_attention, unit_attention
from tlmd.alternatives.implementation import DIRECT, PER_WEIGHT, Implementation
from tlmd.alternatives.packed.packed import packed
from tlmd.alternatives.strassen.strassen import strassen
from tlmd.alternatives.transforms import (
    AMX_BF16,
    AMX_INT8,
    AMX_PARTS,
    PACKED,
    PACKED_BF16,
    PACKED_INT8,
    transform,
)
from tlmd.alternatives.winograd.winograd import winograd
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import BF16, FP32, INT8
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering import lowering
from tlmd.lowering.identity import task_id
from tlmd.lowering.passes import rewrites
from tlmd.space.hardware.target import has_amx, has_bf16, has_vnni, tvm_target, vector_unit

_WORTH_TRYING = 1.5  # times the least work of a group
_SHORT = {BF16: [PACKED_BF16], INT8: [PACKED_INT8]}
_NEEDED = {
    BF16: (has_bf16, "AVX-512 BF16 (AMD Zen 4, Intel Cooper Lake or newer ones)"),
    INT8: (has_vnni, "AVX-512 VNNI (AMD Zen 4, Intel Cascade Lake or newer ones)"),
}


def with_alternatives(
    tasks: Iterable[Task], strict_numerics: bool = False, precision: str = FP32
) -> list[Task]:
    """The tasks and their alternatives: those of one group together, the least work first.

    What does much more work than another of its group is left out, but never the direct task.
    `strict_numerics` leaves out what computes with other numbers than the direct program; the
    precision `BF16` adds what multiplies bfloat16. Raises `BadInput` where the target cannot.
    """
    tasks = list(tasks)
    check_precision(precision, {task.target for task in tasks})
    return [member for task in tasks for member in _group(task, strict_numerics, precision)]


def check_precision(precision: str, on: Iterable[TargetInfo]) -> None:
    """Raise `BadInput` where one of the targets cannot multiply in this precision."""
    has, needed = _NEEDED.get(precision, (None, ""))
    if has and not all(map(has, on)):
        raise BadInput(f"{precision} needs a CPU with {needed}; use --precision fp32")


def _group(task: Task, strict_numerics: bool, precision: str) -> list[Task]:
    if task.target.device != "cpu" or not (task.constants or task.attention):
        return [task]
    found = _implementations(task, strict_numerics, precision)
    least = min(i.work for i in found)
    worth = [i for i in found if i.name == DIRECT or i.work < _WORTH_TRYING * least]
    ordered = sorted(worth, key=lambda i: i.work)
    return [task if i.name == DIRECT else _alternative(task, i) for i in ordered]


def _implementations(task: Task, strict_numerics: bool, precision: str) -> list[Implementation]:
    module = tvm.ir.load_json(task.module)
    unit = vector_unit(tvm_target(task.target))
    weights = [module["main"].params[index].ty.shape for index in task.constants]
    elements = sum(math.prod(int(extent) for extent in shape) for shape in weights)
    direct = Implementation(DIRECT, module, task.flops, task.flops + PER_WEIGHT * elements)
    by_unit = _by_unit(task.target, strict_numerics, precision)
    if task.attention:
        attention = Attention.from_json(task.attention)
        short = [short_attention(direct, attention)] if precision == BF16 else []
        short += [unit_attention(direct, attention, name) for name in by_unit if name != AMX_INT8]
        return [direct, *(one for one in short if one is not None)]
    names = [PACKED, *_SHORT.get(precision, [])]
    others = [packed(direct, task.constants, unit, name) for name in names]
    others += [amx_packed.packed(direct, task.constants, name) for name in by_unit]
    found = [direct, *(other for other in others if other is not None)]
    if not strict_numerics:
        found += [*winograd(direct, unit), *strassen(direct, task.constants, unit)]
    return found


def _by_unit(target: TargetInfo, strict_numerics: bool, precision: str) -> list[str]:
    """The names of the programs for the matrix unit of the CPU, if it has one."""
    if precision == INT8:
        return [AMX_INT8] if has_amx(target, amx_code.INT8) else []
    if not has_amx(target):
        return []
    parts = [] if strict_numerics else [AMX_PARTS]
    return [AMX_BF16] if precision == BF16 else parts


def _alternative(task: Task, implementation: Implementation) -> Task:
    name = f"{task.name}_{implementation.name}"
    # A record matches a function only if the symbol is equal, too.
    function = implementation.module["main"].with_attr("global_symbol", name)
    module = lowering.tuning_module(function)
    return replace(
        lowering.as_task(task_id(module), module, name, task.weight, task.target),
        flops=implementation.flops,
        constants=task.constants,
        alternative=implementation.name,
        group=task.id,
        direct=task.module,
    )


def direct_tasks(lowered: IRModule, chosen: Mapping[str, Task]) -> dict[str, str]:
    """Ids of direct tasks, by the names of tunable functions after `substitute`."""
    found = {}
    for var, function in lowered.functions.items():
        if lowering.is_tunable(function):
            key = task_id(lowering.tuning_module(function))
            found[chosen[key].name if key in chosen else str(var.name_hint)] = key
    return found


def substitute(lowered: IRModule, chosen: Mapping[str, Task]) -> IRModule:
    """The lowered module with the chosen alternatives, by the ids of the direct tasks.

    The weights are transformed here, so the model does not do it when it runs.
    """
    if not chosen:
        return lowered
    functions: dict[Any, Task] = {}
    for var, function in lowered.functions.items():
        if lowering.is_tunable(function):
            task = chosen.get(task_id(lowering.tuning_module(function)))
            if task is not None:
                functions[var] = task
    if not functions:
        return lowered

    @mutator
    class Substitute(PyExprMutator):  # type: ignore[misc]
        """Calls the function of the alternative, with its weights."""

        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            is_call = rewrites.op_name(call) == "relax.call_tir"
            task = functions.get(call.args[0]) if is_call else None
            if task is None:
                return call
            function = tvm.ir.load_json(task.module)["main"]
            made = self.builder_.add_func(function, task.name)
            arguments = _arguments(task, function, list(call.args[1]))
            return relax.Call(
                call.op, [made, relax.Tuple(arguments)], call.attrs, call.ty_args, call.span
            )

    return relax.transform.DeadCodeElimination(["main"])(rewrites.apply([Substitute])(lowered))


def _arguments(task: Task, function: Any, given: list[Any]) -> list[Any]:
    """The arguments of a call, with transformed weights where the alternative has other shapes."""
    made = []
    for parameter, argument in zip(function.params, given, strict=False):
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        if isinstance(argument, GenericConst) and argument.value.numpy().shape != shape:
            argument = relax.const(transform(task.alternative, argument.value.numpy(), shape))
        made.append(argument)
    return made
