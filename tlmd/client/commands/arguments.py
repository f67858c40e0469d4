"""Command line arguments of several commands; bad ones raise `argparse.ArgumentTypeError`."""

from __future__ import annotations

import argparse
import re
from typing import Any

from tlmd.data.errors import BadInput
from tlmd.data.model_spec import FP32, PRECISIONS, ModelSpec

EFFORTS = {"quick": 4, "normal": 16, "thorough": 64}
"""Measurements per task of each ``--effort``."""

QUIET_S = 60.0
"""Seconds of ``--wait-quiet``."""

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 1,3,224,224")
    return shape


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a model."""
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument(
        "--input-shape",
        action="append",
        type=shape,
        metavar="1,3,224,224",
        help="input shape; once per input; once more per input for each further set of shapes",
    )
    parser.add_argument(
        "--task", default="", help="what a model of transformers is for, if its config says nothing"
    )
    parser.add_argument(
        "--weights", default="", metavar="FILE", help=".safetensors weights for a factory's model"
    )
    parser.add_argument(
        "--strict-numerics",
        action="store_true",
        help="only programs that compute as the model says: no Winograd, no Strassen, and no "
        "products of bfloat16 parts by a matrix unit",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=FP32,
        help="bf16: GEMMs, convolutions and attention may round what they multiply; "
        "int8: quantised models (QDQ) multiply integers (default fp32)",
    )
    parser.add_argument(
        "--target", default="native", help="'native', 'cuda' or a TVM target as JSON"
    )


def model_spec(options: argparse.Namespace) -> ModelSpec:
    """What the options of `add_model` say of the model. Raises `BadInput`."""
    return ModelSpec(
        options.model,
        tuple(options.input_shape) if options.input_shape else None,
        options.task,
        options.weights,
        options.strict_numerics,
        options.precision,
    )


def add_cores(parser: argparse.ArgumentParser) -> None:
    """Add ``--cores``."""
    parser.add_argument(
        "--cores", type=positive, help="physical cores that models will run on (default: all)"
    )


def add_shares(parser: argparse.ArgumentParser) -> None:
    """Add ``--priority`` and ``--weight``."""
    parser.add_argument("--priority", type=int, help="jobs of a higher one come first (default 0)")
    parser.add_argument(
        "--weight", type=float, help="share among the jobs of one priority (default 1)"
    )


def shares(options: argparse.Namespace) -> dict[str, Any]:
    """The keys of the configuration that these say."""
    return {"tune.priority": options.priority, "tune.weight": options.weight}


def job_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The keys of the configuration that the options of a job say. Raises `BadInput`."""
    return {"tune.trials": trials(options), **shares(options)}


def trials(options: argparse.Namespace) -> int | None:
    """Measurements per task by ``--trials`` or ``--effort``; None: neither was given.

    Raises `BadInput` if both were given.
    """
    if options.trials is not None and options.effort is not None:
        raise BadInput("--trials and --effort both say how much to measure; give one of them")
    return EFFORTS[options.effort] if options.effort else options.trials
