"""The program ``run.py`` that is written beside an exported model."""

from __future__ import annotations

from collections.abc import Sequence

from tlmd.models.sources import InputInfo

_OF_A_LIBRARY = '''\
"""Run the tuned model; needs only tvm and numpy. Usage: python run.py [inputs.npz]"""

import os
import pathlib
import sys
import time

import numpy as np

os.environ.setdefault("TVM_NUM_THREADS", "{threads}")  # the threads that the model was tuned for
os.environ.setdefault("TVM_BIND_THREADS", "0")

import ml_dtypes  # which tvm needs: numpy's names of bfloat16 and the like
import tvm
from tvm import relax

HERE = pathlib.Path(__file__).resolve().parent
INPUTS = {inputs}  # name, shape, dtype


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def example(shape, dtype):
    if dtype.startswith(("int", "uint", "bool")):
        return np.zeros(shape, numpy_dtype(dtype))
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    return values.astype(numpy_dtype(dtype))


def main():
    given = np.load(sys.argv[1]) if len(sys.argv) > 1 else {{}}
    arrays = [given[n].view(numpy_dtype(d)) if n in given else example(s, d) for n, s, d in INPUTS]
    device = tvm.device("{device}")
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(HERE / "model.so")), device)
    tensors = [tvm.runtime.tensor(a, device) for a in arrays]
    outputs = vm["main"](*tensors)
    device.sync()
    begin = time.perf_counter()
    vm["main"](*tensors)
    device.sync()
    seconds = time.perf_counter() - begin
    outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
    for index, output in enumerate(outputs):
        print(f"output {{index}}: shape {{tuple(output.shape)}}, dtype {{output.dtype}}")
    print(f"one run: {{seconds * 1e3:.3f}} ms")


if __name__ == "__main__":
    main()
'''

_IN_PARTS = '''\
"""Run the tuned model; {framework} runs parts of it, so this needs tlmd. Usage: python run.py"""

import pathlib
import time

import tlmd
from tlmd.models.sources import InputInfo, random_inputs

INPUTS = {inputs}  # name, shape, dtype, lowest and highest integer


def main():
    model = tlmd.load(pathlib.Path(__file__).resolve().parent)
    arrays = random_inputs([InputInfo(*info) for info in INPUTS], seed=0)
    model(*arrays)
    begin = time.perf_counter()
    model(*arrays)
    print(f"one run: {{(time.perf_counter() - begin) * 1e3:.3f}} ms")


if __name__ == "__main__":
    main()
'''


def run_py(inputs: Sequence[InputInfo], threads: int, device: str, framework: str) -> str:
    """The text of ``run.py``. `framework` runs a part of the model; empty: TVM runs all of it."""
    if framework:
        named = [(i.name, i.shape, i.dtype, i.low, i.high) for i in inputs]
        return _IN_PARTS.format(framework=framework, inputs=named)
    listing = [(i.name, i.shape, i.dtype) for i in inputs]
    return _OF_A_LIBRARY.format(inputs=listing, threads=threads, device=device)
