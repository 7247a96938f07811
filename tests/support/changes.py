"""What differs from an earlier commit: HEAD~1, or the one that the environment variable GAVEL_PY_SINCE names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

__all__ = ["changed_files", "packages_of"]

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = ("pyproject.toml", "requirements/", "tests/conftest.py")
"""What concerns the tests of all packages."""


@cache
def changed_files() -> frozenset[str]:
    """Return the files of the checkout that differ from the earlier commit; none where there is no such commit, or no git."""
    try:
        listed = [
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            for words in (
                ("diff", "--name-only", os.environ.get("GAVEL_PY_SINCE") or "HEAD~1"),
                ("ls-files", "--others", "--exclude-standard"),
            )
        ]
    except (OSError, subprocess.CalledProcessError):
        return frozenset()
    return frozenset("".join(listed).splitlines())


def packages_of(files: Iterable[str], packages: Iterable[str]) -> set[str]:
    """Return those packages of tests to which files belong, below `gavel_py` or `tests`."""
    files, packages = list(files), set(packages)
    if any(file.startswith(EVERYWHERE) for file in files):
        return packages
    folders = (file.removeprefix("gavel_py/integrations/").removeprefix("gavel_py/").removeprefix("tests/") for file in files)
    return packages & {folder.partition("/")[0] for folder in folders}
