"""What PyTorch does around a call: which calls a library can stand for."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

Context = tuple[Any, ...]
"""Settings of PyTorch that change what a model computes."""

_CLASSES = (torch.Tensor, torch.nn.Parameter)
_PLAIN: Context = (False, torch.float32)
_log = logging.getLogger("tlmd.integrations")
_has_libraries = False
_is_child = False


def libraries_are_used() -> None:
    """A library is going to run in this process."""
    global _has_libraries
    _has_libraries = True


def _after_fork() -> None:
    global _is_child
    _is_child = _has_libraries


# The threads of TVM are not in the child of a fork: a library would wait for them for ever. In the
# child of a process that has run none, they start when they are needed.
os.register_at_fork(after_in_child=_after_fork)


def context() -> Context:
    """The settings of this thread. `autocast` and the default dtype are among them."""
    if torch.is_autocast_enabled("cpu"):
        return (True, torch.get_default_dtype(), torch.get_autocast_dtype("cpu"))
    return (False, torch.get_default_dtype())


@contextmanager
def with_settings(settings: Context) -> Iterator[None]:
    """Have these settings in this thread during the block."""
    if settings == context():
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(settings[1])
    try:
        dtype = settings[2] if settings[0] else None
        with torch.autocast("cpu", dtype=dtype, enabled=settings[0]):
            yield
    finally:
        torch.set_default_dtype(before)


def is_default(settings: Context) -> bool:
    """Whether these are the settings that PyTorch starts with."""
    return settings == _PLAIN


def is_observed() -> bool:
    """Whether PyTorch traces, transforms or records the call, so that the original must run.

    It must run in the child of a fork, too, which has none of TVM's threads.
    """
    return (
        (_is_child and _is_told())
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


@functools.cache
def _is_told() -> bool:
    """Say once in a child why nothing gets faster there."""
    _log.warning("a process that was forked after compiling runs in eager PyTorch; use spawn")
    return True


def are_plain(tensors: Sequence[Any]) -> bool:
    """Whether these are dense tensors on the CPU, as a library reads them."""
    return all(
        type(t) in _CLASSES
        and t.device.type == "cpu"
        and t.layout is torch.strided
        and not (t.is_complex() or t.is_neg() or t.is_quantized)
        for t in tensors
    )


def need_gradients(tensors: Iterable[Any]) -> bool:
    """Whether PyTorch would record this call for a gradient."""
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def versions(tensors: Iterable[torch.Tensor]) -> list[int]:
    """How often PyTorch has changed each tensor. It does not count for tensors of inference."""
    return [t._version for t in tensors if not t.is_inference()]
