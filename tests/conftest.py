"""What all tests share: surroundings in which the width of a terminal is not told."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_width_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as into a pipe, also in commands that a test starts, whatever the shell or the test runner says."""
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
