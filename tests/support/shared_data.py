"""The place of real data for development; tests that need it are skipped, with the reason, if it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the development data at {SHARED} is absent")
