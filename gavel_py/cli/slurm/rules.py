"""Rules for job types from a CSV file: name,job_type,total_steps."""

from __future__ import annotations

from pathlib import Path

import gavel_py as gp

__all__ = ["rules_in"]


def rules_in(path: Path | None) -> tuple[gp.TypeRule, ...]:
    """Return the rules of the file in its order, none without a file. Raises `InputError`."""
    return () if path is None else gp.TypeRule.from_csv(path)
