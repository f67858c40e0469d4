"""What tests share: one torch thread, so that they do not fight over the cores; a measurer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tlmd.measure.client import Measurer


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `measurer` keeps references."""
    return tmp_path_factory.mktemp("measure")


@pytest.fixture(scope="module")
def measurer(cache: Path) -> Iterator[Measurer]:
    """A measuring server on this machine's slot."""
    from tests import traps
    from tlmd.measure.client import Measurer
    from tlmd.measure.cores import plan_cores

    with Measurer(traps.TARGET, plan_cores(), cache, traps.LIMITS, lend=True) as one:
        yield one
