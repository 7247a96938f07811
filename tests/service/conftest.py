"""Fixtures of the tests of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.test_api import READ, WRITE


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# of the scheduler, and of the page\nwrite {WRITE}\nread {READ}\n")
    path.chmod(0o600)
    return path
