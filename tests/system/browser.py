"""Chromium for the tests of the live page: found, started with an empty profile, ended."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_SIZE = {"width": 1240, "height": 900}


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A context of playwright, which opens pages. Skips where there is no browser."""
    install = "pip install 'tlmd[browser]'"
    api = pytest.importorskip("playwright.sync_api", reason=f"no playwright: {install}")
    chromium = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, args=_FLAGS, headless=True, viewport=_SIZE
        )
        try:
            yield context
        finally:
            context.close()
