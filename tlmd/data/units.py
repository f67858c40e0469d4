"""Units that reports and the HTTP interface use."""

from __future__ import annotations

import math


def microseconds(seconds: float) -> float | None:
    """Convert seconds to microseconds with three decimals; None if `seconds` is not finite."""
    return round(seconds * 1e6, 3) if math.isfinite(seconds) else None
