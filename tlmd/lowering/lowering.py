"""Lowering of a model to loops, for the extraction of tasks and for the final compile.

A record matches a function only if both come from the same lowering. Therefore no other module of
tlmd may lower a model.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst, IRModule
from tvm.ir.transform import PassContext, Sequential
from tvm.relax import transform
from tvm.s_tir.analysis import estimate_tir_flops

from tlmd.alternatives.prefetch import with_prefetches
from tlmd.data.types import TargetInfo, Task
from tlmd.lowering import building
from tlmd.lowering.identity import task_id
from tlmd.lowering.passes import fusion, reshapes, rewrites
from tlmd.lowering.passes.convolution_1d import SingleRows
from tlmd.lowering.passes.fuse_attention import ORIGIN, FuseAttention
from tlmd.lowering.passes.fuse_expansions import join_expansions
from tlmd.lowering.passes.importer_forms import SpellOutImports
from tlmd.lowering.passes.legalisation import own_loops
from tlmd.lowering.passes.padding import FoldPadding
from tlmd.lowering.passes.projections import CombineProjections
from tlmd.lowering.passes.quantisation import IntegerProducts, SpellOutScales
from tlmd.lowering.passes.transposed_convolution import TransposedConvolutions
from tlmd.lowering.tunable import is_tunable
from tlmd.space import gpu_default
from tlmd.space.hardware.target import for_building

# Channels last: the innermost loop then runs over contiguous channels for all image sizes.
# Transposed convolutions are listed because TVM would otherwise give them channels last, for which
# it has no loops.
_LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv3d": ["NDHWC", "DHWIO"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}


@dataclass(frozen=True)
class Compiled:
    """A compiled model, and how many of its functions use records."""

    executable: Any

    functions: int
    """Number of tunable functions."""

    functions_with_record: int

    missing: list[str]
    """Names of the tunable functions without a record, which use TVM's default schedule."""


def lower(
    module: IRModule,
    target: tvm.target.Target,
    shared: dict[str, Any] | None = None,
    *,
    restructure: bool = True,
    attention: bool = True,
    expansions: bool = True,
    int8: bool = False,
) -> IRModule:
    """Lower a Relax module to fused TensorIR functions and the Relax function that calls them.

    Weights must be constants and shapes static, as in the modules of `frontends.load_model`.
    `shared` holds functions by task id; modules that are lowered with the same one share them.
    Without `restructure` attention is several functions, as on targets but CPUs, so are expansions
    with their depthwise convolutions, and transposed and 1-D convolutions stay what they are: these
    are the programs that other tuners see. Without `attention` or `expansions` only that one is
    several functions. With `int8` the products of quantised models are products of integers.
    """
    on_cpu = str(target.kind.name) == "llvm"
    mutators: list[type[Any]] = [rewrites.VectorMath] if on_cpu else []
    if on_cpu and restructure:
        fused = [FuseAttention] if attention else []
        mutators = [CombineProjections, *fused, reshapes.SinkMoves, *mutators]
    with target, PassContext(opt_level=3):
        lowered = Sequential(
            [
                *_graph_passes(module, mutators, restructure, int8),
                *_loop_passes(on_cpu and restructure and expansions),
            ]
        )(module)
    return _with_equal_names(lowered, {} if shared is None else shared)


def _with_equal_names(lowered: IRModule, shared: dict[str, Any]) -> IRModule:
    """Replace functions of one task id by one of them.

    Their blocks may have other names, and a schedule finds blocks by their names.
    """
    functions = {}
    for var, func in lowered.functions.items():
        if is_tunable(func):
            first = shared.setdefault(task_id(tuning_module(func)), func)
            func = first.with_attr("global_symbol", str(var.name_hint))
        functions[var] = func
    return IRModule(functions, attrs=lowered.attrs)


def _graph_passes(
    module: IRModule, mutators: list[type[Any]], restructure: bool, int8: bool
) -> list[Any]:
    """Passes over operators, `mutators` last. Their order matters; see the comments."""
    passes = [
        rewrites.apply([SpellOutImports]),
        rewrites.apply([IntegerProducts, SpellOutScales] if int8 else [SpellOutScales]),
        rewrites.apply([FoldPadding, rewrites.FoldNormalisation, rewrites.SpellOut]),
        rewrites.apply([TransposedConvolutions, SingleRows] if restructure else []),
        rewrites.apply([reshapes.SpellOutMoves, reshapes.FoldMoves]),
        # Directly afterwards; otherwise TVM compiles the dead normalisations to fold them.
        transform.DeadCodeElimination(),
        transform.DecomposeOpsForInference(),
        transform.FoldConstant(),
        transform.CanonicalizeBindings(),
    ]
    if _has_convolutions(module):
        # After the weights are folded to constants, because ConvertLayout crashes on nested calls.
        passes += [transform.ConvertLayout(_LAYOUTS), transform.CanonicalizeBindings()]
    return [
        *passes,
        rewrites.apply([reshapes.FoldMoves]),
        transform.FoldConstant(),
        transform.EliminateCommonSubexpr(),
        rewrites.apply([reshapes.SinkMoves, reshapes.SinkMoves]),
        transform.DeadCodeElimination(),  # FuseAttention counts uses
        rewrites.apply(mutators),
        transform.DeadCodeElimination(),
    ]


def _loop_passes(expansions: bool) -> list[Any]:
    return [
        transform.LegalizeOps(own_loops()),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        fusion.fuse(),
        *([join_expansions()] if expansions else []),
        transform.FuseTIR(),
        # Here and not in the final build, so that a reshape is a view and not a task.
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination(),
        tvm.transform.module_pass(_remove_patterns, opt_level=0, name="TlmdForgetPatterns"),
    ]


def _remove_patterns(module: IRModule, _context: PassContext) -> IRModule:
    """Remove attributes of functions, so that the database finds equal functions equal.

    Attributes that name the origin of a function become one attribute of the module.
    """
    functions, origins = {}, {}
    for var, func in module.functions.items():
        if isinstance(func, tvm.tirx.PrimFunc):
            if ORIGIN in func.attrs:
                origins[str(var.name_hint)] = str(func.attrs[ORIGIN])
            func = func.without_attr("op_pattern").without_attr(ORIGIN)
        functions[var] = func
    return IRModule(functions, attrs=module.attrs).with_attr(ORIGIN, origins)


def _has_convolutions(module: IRModule) -> bool:
    return any(_LAYOUTS.keys() & _operators(func) for func in _relax_functions(module))


def _relax_functions(module: IRModule) -> list[Any]:
    return [f for f in module.functions.values() if isinstance(f, relax.Function)]


def _operators(func: relax.Function) -> set[str]:
    names: set[str] = set()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            names.add(str(expr.op.name))

    relax.analysis.post_order_visit(func, visit)
    return names


def extract(lowered: IRModule, target_info: TargetInfo) -> list[Task]:
    """The tasks of a lowered module. Equal computations become one task with summed weight."""
    tasks: dict[str, Task] = {}
    origins = dict(lowered.attrs.get(ORIGIN, {})) if lowered.attrs else {}
    for var, sites in _calls(lowered).items():
        func = lowered[var]
        if not is_tunable(func):
            continue
        module = tuning_module(func)
        key = task_id(module)
        weight = len(sites) + (tasks[key].weight if key in tasks else 0)
        task = as_task(key, module, str(var.name_hint), weight, target_info)
        origin = str(origins.get(task.name, ""))
        tasks[key] = replace(task, constants=_constants(sites), attention=origin)
    return list(tasks.values())


def as_task(key: str, module: IRModule, name: str, weight: int, target_info: TargetInfo) -> Task:
    """Build the task of a TensorIR module with one function `main`; `key` is its `task_id`."""
    return Task(key, name, weight, _flops(module), str(tvm.ir.save_json(module)), target_info)


def tuning_module(func: tvm.tirx.PrimFunc) -> IRModule:
    """Convert a function of a model to the module by which MetaSchedule's database finds it."""
    normalise = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    # Pass a function: TVM would not rename the function of a module, and would find no record.
    module: IRModule = normalise(func)
    return module


def _calls(lowered: IRModule) -> dict[Any, list[Any]]:
    """The calls of each function, in the order of the first call."""
    calls: dict[Any, list[Any]] = {}
    call_tir = tvm.ir.Op.get("relax.call_tir")

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == call_tir:
            calls.setdefault(expr.args[0], []).append(expr)

    for func in _relax_functions(lowered):
        relax.analysis.post_order_visit(func, visit)
    return calls


def _constants(sites: list[Any]) -> tuple[int, ...]:
    """The indices of the arguments that are weights of the model in all calls."""
    per_call = [
        {i for i, argument in enumerate(call.args[1]) if isinstance(argument, GenericConst)}
        for call in sites
    ]
    return tuple(sorted(set.intersection(*per_call)))


def _flops(module: IRModule) -> float:
    try:
        return float(estimate_tir_flops(module))
    except Exception:  # a loop has unknown extent; the number is only displayed
        return 0.0


def compile_model(
    lowered: IRModule,
    target: tvm.target.Target,
    database: Any | None = None,
    to_link: bool = False,
) -> Compiled:
    """Compile a module of `lower`, with the best record of `database` for each function.

    `to_link`: it becomes a library; several processes then compile it, where that is allowed.
    The executable's `main` has the inputs and outputs of the model (a tuple of tensors).
    """
    names = [v.name_hint for v in _calls(lowered) if is_tunable(lowered[v])]
    scheduled = lowered
    if database is not None:
        with target, database, PassContext(opt_level=3):
            scheduled = transform.MetaScheduleApplyDatabase(enable_warning=False)(lowered)
    missing = [name for name in names if is_tunable(scheduled[name])]
    made = with_prefetches(scheduled)
    executable = building.build(made, for_building(target), _build_pipeline(target), to_link)
    return Compiled(executable, len(names), len(names) - len(missing), missing)


def save(lowered: IRModule, path: Path) -> None:
    """Write a module of `lower` with its weights; `tvm.ir.load_json` reads it."""
    path.write_text(str(tvm.ir.save_json(lowered)))


def _build_pipeline(target: tvm.target.Target) -> Any:
    """TVM's pipeline without its second round of fusion, which would undo `lower`."""
    on_cpu = str(target.kind.name) == "llvm"
    backend = "cpu_generic" if on_cpu else "cuda"
    default = importlib.import_module(f"tvm.relax.backend.{backend}.pipeline")
    schedules = []
    if not on_cpu:
        schedules.append(gpu_default.default_schedules())
    return Sequential(
        [
            *default.library_dispatch_passes(target),
            *schedules,
            *default.dataflow_lower_passes(target),
            *default.finalize_passes(target),
        ]
    )
