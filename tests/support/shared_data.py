"""Where the real data for development lies; a test that needs it skips, with the reason, where it is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"

needs_shared_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the development data at {SHARED} is absent")
