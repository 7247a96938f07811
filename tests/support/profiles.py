"""The built-in profiles, loaded once for all tests: profiles are immutable, and each holds megabytes."""

from __future__ import annotations

import gavel_py as gp

__all__ = ["NVIDIA", "OSDI"]

OSDI, NVIDIA = (gp.ThroughputProfile.builtin(name) for name in ("gavel-osdi20", "nvidia-2023"))
