"""Operators that ONNX Runtime's optimiser writes, rewritten: the outputs of ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.onnx_models import (
    MICROSOFT,
    check_import,
    node,
    onnx_model,
    rewritten,
    run_in_onnx_runtime,
)

RANDOM = np.random.default_rng(0)
BATCH, LENGTH, HEADS, SIZE, PAST = 2, 5, 4, 16, 3
WIDTH = HEADS * SIZE


def random(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def own(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """An operator of ONNX Runtime's own."""
    return node(operator, inputs, outputs, domain=MICROSOFT, **attributes)


X, SCALE, SHIFT = random(BATCH, LENGTH, WIDTH), random(WIDTH), random(WIDTH)
IMAGE = random(1, 3, 6, 6)
TOKENS = RANDOM.integers(0, 9, (BATCH, LENGTH)).astype(np.int32)
MASK = np.asarray([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], np.int32)
LENGTHS = np.asarray([3, 5], np.int32)
ANGLES = random(16, SIZE // 2)
TABLES = {"c": np.cos(ANGLES), "s": np.sin(ANGLES)}
QKV = {"w": random(WIDTH, 3 * WIDTH) / 5, "b": random(3 * WIDTH)}
KEYS = {"k": random(BATCH, LENGTH + 2, WIDTH), "v": random(BATCH, LENGTH + 2, WIDTH)}
OLD = {"pk": random(BATCH, HEADS, PAST, SIZE), "pv": random(BATCH, HEADS, PAST, SIZE)}
SHARED = {"k": random(1, LENGTH, 2 * SIZE), "v": random(1, LENGTH, 2 * SIZE)}
OLD_SHARED = {"pk": random(1, 2, PAST, SIZE), "pv": random(1, 2, PAST, SIZE)}


def counts(total: int) -> dict[str, Any]:
    """What a grouped attention is told of the length."""
    return {"n": np.asarray([total - 1], np.int32), "t": np.asarray(total, np.int32)}


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "FusedMatMul": (
        own("FusedMatMul", "x w", transA=1, transB=1, alpha=0.5),
        {"x": X},
        {"w": random(BATCH, 7, LENGTH)},
    ),
    "FusedConv": (
        own("FusedConv", "x w b", activation="LeakyRelu", activation_params=[0.2]),
        {"x": IMAGE},
        {"w": random(4, 3, 3, 3), "b": random(4)},
    ),
    "FusedGemm": (
        own("FusedGemm", "x w b", activation="Relu", transB=1),
        {"x": X[0]},
        {"w": random(3, WIDTH), "b": random(3)},
    ),
    "Gelu": (own("Gelu", "x"), {"x": X}, {}),
    "BiasGelu": (own("BiasGelu", "x b"), {"x": X}, {"b": SHIFT}),
    "FastGelu": (own("FastGelu", "x b"), {"x": X}, {"b": SHIFT}),
    "FastGelu without bias": (own("FastGelu", "x"), {"x": X}, {}),
    "QuickGelu": (own("QuickGelu", "x", alpha=1.5), {"x": X}, {}),
    "SkipLayerNormalization": (
        own("SkipLayerNormalization", "x z s b c", "y _ _ t"),
        {"x": X, "z": X + 1},
        {"s": SCALE, "b": SHIFT, "c": SHIFT},
    ),
    "SkipLayerNormalization without bias": (
        own("SkipLayerNormalization", "x z s", epsilon=1e-5),
        {"x": X, "z": X * 2},
        {"s": SCALE},
    ),
    "SkipSimplifiedLayerNormalization": (
        own("SkipSimplifiedLayerNormalization", "x z s c"),
        {"x": X, "z": X + 1},
        {"s": SCALE, "c": SHIFT},
    ),
    "EmbedLayerNormalization": (
        own("EmbedLayerNormalization", "x z w p t s b m", "y n"),
        {"x": TOKENS, "z": TOKENS % 2, "m": MASK},
        {"w": random(9, WIDTH), "p": random(8, WIDTH), "t": random(2, WIDTH)}
        | {"s": SCALE, "b": SHIFT},
    ),
    "Attention": (own("Attention", "x w b m", num_heads=HEADS), {"x": X, "m": MASK}, QKV),
    "Attention with lengths": (
        own("Attention", "x w b m", num_heads=HEADS),
        {"x": X, "m": LENGTHS},
        QKV,
    ),
    "Attention of decoders": (
        own("Attention", "x w b _ p", "y q", num_heads=HEADS, unidirectional=1),
        {"x": X, "p": np.stack(list(OLD.values()))},
        QKV,
    ),
    "MultiHeadAttention": (
        own("MultiHeadAttention", "x k v b m a", num_heads=HEADS, scale=0.3),
        {"x": X, **KEYS, "m": np.concatenate([MASK, MASK[:, :2]], 1)},
        {"b": QKV["b"], "a": random(1, HEADS, LENGTH, LENGTH + 2)},
    ),
    "MultiHeadAttention with past": (
        own("MultiHeadAttention", "x k v _ _ _ pk pv", "y q r", num_heads=HEADS),
        {"x": X, **KEYS, **OLD},
        {},
    ),
    "GroupQueryAttention": (
        own(
            "GroupQueryAttention",
            "x k v _ _ n t c s",
            "y q r",
            num_heads=HEADS,
            kv_num_heads=2,
            do_rotary=1,
        ),
        {"x": X[:1], **SHARED},
        counts(LENGTH) | TABLES,
    ),
    "GroupQueryAttention with past": (
        own(
            "GroupQueryAttention",
            "x k v pk pv n t c s",
            "y q r",
            num_heads=HEADS,
            kv_num_heads=2,
            do_rotary=1,
            rotary_interleaved=1,
            local_window_size=4,
        ),
        {"x": X[:1, :1], **{name: x[:, :1] for name, x in SHARED.items()}, **OLD_SHARED}
        | {"n": np.asarray([PAST], np.int32)},
        {"t": np.asarray(PAST + 1, np.int32)} | TABLES,
    ),
    "RotaryEmbedding": (
        own("RotaryEmbedding", "x p c s", num_heads=HEADS),
        {"x": X, "p": np.tile(np.arange(2, 2 + LENGTH), (BATCH, 1))},
        TABLES,
    ),
    "RotaryEmbedding of pairs": (
        own("RotaryEmbedding", "x p c s", interleaved=1),
        {"x": random(BATCH, HEADS, LENGTH, SIZE), "p": np.asarray([3])},
        TABLES,
    ),
}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("opset", [14, 18])
def test_operators_give_the_outputs_of_onnx_runtime(name: str, opset: int) -> None:
    made, inputs, constants = CASES[name]
    outputs = " ".join(output for output in made.output if output)
    check_import(onnx_model(made, inputs, constants, outputs, opset), inputs, 2e-3, 1e-3)


@pytest.mark.parametrize("name", ["SimplifiedLayerNormalization", "LayerNormalization"])
def test_normalisations_of_onnx_runtime_are_those_of_older_files(name: str) -> None:
    made = node(name, "x s", axis=-1, epsilon=1e-6)
    model = onnx_model(made, {"x": X}, {"s": SCALE}, opset=14)
    changed = rewritten(model)
    onnx.checker.check_model(changed)
    (want,), (got,) = (run_in_onnx_runtime(m, {"x": X}) for m in (model, changed))
    np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_shapes_are_known_behind_operators_that_stay() -> None:
    nodes = [
        own("Gelu", "x", "g"),
        node("MatMul", "g w", "h"),
        own("SkipLayerNormalization", "h x s"),
    ]
    constants = {"w": random(WIDTH, WIDTH), "s": SCALE}
    check_import(onnx_model(nodes, {"x": X}, constants, opset=14), {"x": X})
