"""A real browser without a window, where one is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


def browser_command(folder: Path, *options: str) -> list[str]:
    """Return the command that opens a page, which comes last; `folder` gets the browser's own files."""
    return [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}", *options]


def browser_environment(folder: Path) -> dict[str, str]:
    """Return the environment of this process with another home."""
    return os.environ | {"HOME": str(folder)}
