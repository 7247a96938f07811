"""Plain values of results for `same_answers.py`, in which two checkouts are compared whatever the classes of their records are."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["plain"]


MEASURED = ("solver_seconds", "wall_seconds", "cpu_seconds", "seconds")
"""Names of computing times, which are left out; seconds only if they are a number in a table, or times by their kind."""


def plain(value: Any) -> Any:
    """Return records and arrays as dictionaries, lists, numbers and text; sets are sorted."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return plain({each.name: getattr(value, each.name) for each in fields(value) if not each.name.startswith("_")})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items() if not _is_measured(name, each)}
    if isinstance(value, Set):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else repr(value)


def _is_measured(name: str, value: Any) -> bool:
    return name in MEASURED and (name != "seconds" or isinstance(value, Mapping))
