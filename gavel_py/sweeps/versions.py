"""What a result depends on beside what was asked for: the versions of what computed it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from gavel_py import __version__

__all__ = ["versions"]

PACKAGES = ("numpy", "scipy", "cvxpy", "highspy", "clarabel", "pydantic")


def versions() -> dict[str, str]:
    """Return {package: version}, with Python and the platform."""
    found = {"gavel-py": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
