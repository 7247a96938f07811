"""Checking arrays that a caller hands in: shape, finiteness, range, each fault with the job and the field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError

__all__ = ["ArrayChecker"]

Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]

RULES: dict[str, tuple[str, Test]] = {
    "finite": ("must be a finite number", np.isfinite),
    "at least 0": ("must be a finite number of at least 0", lambda a: np.isfinite(a) & (a >= 0)),
    "greater than 0": ("must be a finite number greater than 0", lambda a: np.isfinite(a) & (a > 0)),
    "whole": ("must be a whole number of at least 1", lambda a: np.isfinite(a) & (a >= 1) & (a == np.floor(a))),
    "finite or NaN": ("must be a finite number, or NaN for none", lambda a: ~np.isinf(a)),
    "at least 0 or NaN": (
        "must be a finite number of at least 0, or NaN for unknown",
        lambda a: np.isnan(a) | ((a >= 0) & ~np.isinf(a)),
    ),
}


class ArrayChecker:
    """Converts arrays and collects every fault; `finish` raises them together.

    `names` gives the words for each axis, e.g. [("job", job_ids), ("accelerator type", types)].
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def add(self, where: str, field: str, problem: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(where, field, problem))

    def finish(self) -> None:
        """Raise `InputError` with all faults noted so far, if any."""
        InputError.raise_any(self.faults)

    def numbers(
        self, field: str, values: ArrayLike | None, default: float, rule: str, axes: Sequence[tuple[str, Sequence[str]]]
    ) -> NDArray[np.float64]:
        """Return `values` as a float array of the axes' shape (all `default` when None), noting what breaks the rule."""
        shape = tuple(len(names) for _, names in axes)
        if values is None:
            return np.full(shape, float(default))
        try:
            array = np.array(values, dtype=float)
        except (TypeError, ValueError):
            self.add("", field, f"must be an array of numbers of shape {shape}")
            return np.full(shape, float(default))
        if array.size == 0 and 0 in shape:
            array = array.reshape(shape)
        if array.shape != shape:
            self.add("", field, f"must have the shape {shape}, found {array.shape}")
            return np.full(shape, float(default))
        text, test = RULES[rule]
        for place in np.argwhere(~test(array)):
            where = ", ".join(f"{word} {names[i]!r}" for (word, names), i in zip(axes, place, strict=True))
            self.add(where, field, f"{text}, found {array[tuple(place)]:g}")
        return array

    def texts(self, field: str, values: Sequence[object] | None, count: int) -> tuple[str, ...]:
        """Return `values` as text, or as many empty texts when None; note a wrong count."""
        if values is not None and len(values) != count:
            self.add("", field, f"must have {count} entries, found {len(values)}")
        return ("",) * count if values is None else tuple(str(value) for value in values)

    def columns_of(
        self, field: str, values: Sequence[object] | NDArray[np.int64] | None, jobs: Sequence[str], types: Sequence[str]
    ) -> NDArray[np.int64]:
        """Return (N,) column numbers from names or numbers of accelerator types; None and -1 mean none."""
        result = np.full(len(jobs), -1, dtype=np.int64)
        if values is not None and len(values) != len(jobs):
            self.add("", field, f"must have {len(jobs)} entries, found {len(values)}")
            return result
        numbers: dict[object, int] = {name: j for j, name in enumerate(types)}
        numbers |= {j: j for j in range(-1, len(types))} | {None: -1}
        for i, value in enumerate(() if values is None else values):
            if value in numbers:
                result[i] = numbers[value]
            else:
                known = ", ".join(types)
                self.add(f"job {jobs[i]!r}", field, f"must be one of {known}, its column, or -1 for none, found {value!r}")
        return result

    def unique_names(self, field: str, values: Sequence[object] | None, count: int, prefix: str) -> tuple[str, ...]:
        """Return `values` as text, or prefix0, prefix1, ...; note a wrong count, an empty name or one that repeats."""
        if values is None:
            return tuple(f"{prefix}{i}" for i in range(count))
        names = tuple(str(value) for value in values)
        if len(names) != count:
            self.add("", field, f"must have {count} entries, found {len(names)}")
            return tuple(f"{prefix}{i}" for i in range(count))
        if len(set(names)) < count:
            for name in (name for name, times in Counter(names).items() if times > 1):
                self.add(repr(name), field, "stands twice; names must be unique")
        if "" in names:
            self.add("", field, "must not contain an empty name")
        return names
