"""The alternative by Strassen's algorithm: matrices in 2 x 2 parts, seven products of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlmd.alternatives.alternative import Alternative
from tlmd.alternatives.combinations import matrix
from tlmd.alternatives.strassen.strassen import PRODUCTS, Multiplication, strassen
from tlmd.alternatives.strassen.strassen_sketches import sketches
from tlmd.alternatives.weights import Shape

MULTIPLICATIONS = {
    "strassen2": Multiplication(
        matrix("1 0 0 1; 0 0 1 1; 1 0 0 0; 0 0 0 1; 1 1 0 0; -1 0 1 0; 0 1 0 -1"),
        matrix("1 0 0 1; 1 0 0 0; 0 1 0 -1; -1 0 1 0; 0 0 0 1; 1 1 0 0; 0 0 1 1"),
        matrix("1 0 0 1 -1 0 1; 0 0 1 0 1 0 0; 0 1 0 1 0 0 0; 1 -1 1 0 0 1 0"),
    )
}
"""Name of the alternative -> its matrices. In 4 x 4 parts none was the fastest of its group:
benchmarks/LOG.md, "Strassen's algorithm"."""


def summed(by: Multiplication, weights: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """The sums of parts of the weights, computed in float64, of the dtype of `weights`.

    ``[..., K, N]`` become ``[products, panels, K / parts, columns]``. A row of parts is
    ``K / parts`` neighbouring rows; of the columns, panels belong to the columns of parts in turn.
    """
    _, panels, depth, columns = shape
    parts = weights.reshape(by.parts, depth, panels, by.parts, columns).astype(np.float64)
    listed = parts.transpose(0, 3, 2, 1, 4).reshape(by.parts**2, panels, depth, columns)
    sums = np.einsum("sq,qpkc->spkc", by.weights, listed, optimize=True)
    return np.ascontiguousarray(sums.astype(weights.dtype))


BY_PARTS = tuple(
    Alternative(name, partial(strassen, by), partial(summed, by), {PRODUCTS: sketches}, exact=False)
    for name, by in MULTIPLICATIONS.items()
)
