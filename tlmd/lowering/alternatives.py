"""The alternatives of a model's tasks, and the model that uses the chosen ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.ir import GenericConst, GlobalVar, IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tlmd.alternatives import catalogue
from tlmd.alternatives.alternative import (
    DIRECT,
    PER_WEIGHT,
    Alternative,
    DirectProgram,
    Implementation,
)
from tlmd.alternatives.amx.amx_code import PARTS
from tlmd.data.errors import BadInput
from tlmd.data.model_spec import BF16, FP32, INT8
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering import lowering
from tlmd.lowering.identity import task_id
from tlmd.lowering.passes import rewrites
from tlmd.lowering.tunable import is_tunable
from tlmd.space import task_module
from tlmd.space.hardware.target import has_bf16, has_features, has_vnni, tvm_target, vector_unit

_WORTH_TRYING = 1.5  # times the least work of a group
_PRECISIONS = {"bfloat16": BF16, "int8": INT8, PARTS: FP32}
"""What an alternative multiplies -> the precision that asks for it; others are in all of them."""
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
    programs = _implementations(task, strict_numerics, precision)
    most = _WORTH_TRYING * min(one.work for one in programs.values())
    worth = [name for name, one in programs.items() if name == DIRECT or one.work < most]
    ordered = sorted(worth, key=lambda name: programs[name].work)
    return [task if name == DIRECT else as_task(task, name, programs[name]) for name in ordered]


def _implementations(
    task: Task, strict_numerics: bool, precision: str
) -> dict[str, Implementation]:
    """The direct program and the alternatives that fit, by their names."""
    direct = direct_program(task)
    implementations: dict[str, Implementation] = {DIRECT: direct}
    for one in catalogue.ALTERNATIVES:
        if not _is_wanted(one, strict_numerics, precision):
            continue
        if has_features(task.target, one.needs) and (made := one.find(direct)):
            implementations[one.name] = made
    return implementations


def direct_program(task: Task) -> DirectProgram:
    """The program of a direct task, from which alternatives are made."""
    module = task_module.load(task.module)
    unit = vector_unit(tvm_target(task.target))
    weights = [module["main"].params[index].ty.shape for index in task.constants]
    elements = sum(math.prod(int(extent) for extent in shape) for shape in weights)
    work = task.flops + PER_WEIGHT * elements
    return DirectProgram(module, task.flops, work, task.constants, unit, task.attention)


def _is_wanted(alternative: Alternative, strict_numerics: bool, precision: str) -> bool:
    is_exact_enough = alternative.exact or not strict_numerics
    return is_exact_enough and _PRECISIONS.get(alternative.multiplies, precision) == precision


def as_task(task: Task, alternative: str, implementation: Implementation) -> Task:
    """The task of an alternative, by its name, of a direct task."""
    name = f"{task.name}_{alternative}"
    # A record matches a function only if the symbol is equal, too.
    function = implementation.module["main"].with_attr("global_symbol", name)
    module = lowering.tuning_module(function)
    return replace(
        lowering.as_task(task_id(module), module, name, task.weight, task.target),
        flops=implementation.flops,
        constants=task.constants,
        alternative=alternative,
        group=task.id,
        direct=task.module,
    )


def direct_tasks(lowered: IRModule, chosen: Mapping[str, Task]) -> dict[str, str]:
    """Names of tunable functions after `substitute` -> the ids of their direct tasks."""
    direct = {}
    for var, function in lowered.functions.items():
        if is_tunable(function):
            key = task_id(lowering.tuning_module(function))
            direct[chosen[key].name if key in chosen else str(var.name_hint)] = key
    return direct


def substitute(lowered: IRModule, chosen: Mapping[str, Task]) -> IRModule:
    """The lowered module with the chosen alternatives, by the ids of the direct tasks.

    The weights are transformed here, so the model does not do it when it runs.
    """
    if not chosen:
        return lowered
    functions: dict[Any, Task] = {}
    for var, function in lowered.functions.items():
        if is_tunable(function):
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
            function = task_module.load(task.module)["main"]
            made = self.builder_.add_func(function, task.name)
            arguments = _arguments(task, function, list(call.args[1]))
            return relax.Call(
                call.op, [made, relax.Tuple(arguments)], call.attrs, call.ty_args, call.span
            )

    module = relax.transform.DeadCodeElimination(["main"])(rewrites.apply([Substitute])(lowered))
    return _without_unused(module, functions)


def _without_unused(module: IRModule, replaced: Iterable[Any]) -> IRModule:
    """A module without those of the replaced functions that nothing calls. TVM would build them."""
    called: set[Any] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GlobalVar):
            called.add(expr)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    unused = {var for var in replaced if var not in called}
    kept = {var: func for var, func in module.functions.items() if var not in unused}
    return IRModule(kept, attrs=module.attrs)


def _arguments(task: Task, function: Any, given: list[Any]) -> list[Any]:
    """The arguments of a call, with transformed weights where the alternative has other shapes."""
    made = []
    for parameter, argument in zip(function.params, given, strict=False):
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        if isinstance(argument, GenericConst) and argument.value.numpy().shape != shape:
            weights = catalogue.make_weights(task.alternative, argument.value.numpy(), shape)
            argument = relax.const(weights)
        made.append(argument)
    return made
