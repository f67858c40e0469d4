"""Gives the outputs of an imported module the dtypes that the original says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.ir import IRModule


def with_output_dtypes(module: Any, dtypes: Sequence[str]) -> IRModule:
    """The module with casts of the outputs of `main` that have another dtype than `dtypes` says.

    An empty string leaves an output as it is. TVM's ONNX importer gives some operators another
    dtype, such as `ReduceMean` of integers.
    """
    main = module["main"]
    result = main.body.body
    several = isinstance(result.ty, relax.TupleType)
    types = list(result.ty.fields) if several else [result.ty]
    if len(types) != len(dtypes):
        return module
    wanted = [
        name if isinstance(ty, relax.TensorType) and name not in ("", _dtype(ty)) else ""
        for ty, name in zip(types, dtypes, strict=True)
    ]
    if not any(wanted):
        return module
    builder = relax.BlockBuilder()
    bindings: list[Any] = []

    def bound(value: Any) -> Any:
        value = builder.normalize(value)
        variable = relax.Var(f"output_{len(bindings)}", value.ty)
        bindings.append(relax.VarBinding(variable, value))
        return variable

    outputs = []
    for index, name in enumerate(wanted):
        output = bound(relax.TupleGetItem(result, index)) if several else result
        outputs.append(bound(relax.op.astype(output, name)) if name else output)
    new = bound(relax.Tuple(outputs)) if several else outputs[0]
    body = relax.SeqExpr([*main.body.blocks, relax.BindingBlock(bindings)], new)
    function = relax.Function(main.params, body, new.ty, main.is_pure, main.attrs)
    functions = {
        var: (function if var.name_hint == "main" else f) for var, f in module.functions_items()
    }
    return IRModule(functions, attrs=module.attrs)


def _dtype(ty: Any) -> str:
    return str(getattr(ty.dtype, "dtype", ty.dtype))
