"""Checking arrays that a caller hands in: shape, finiteness, range, each fault with the job and the field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError
from gavel_py.ordering import NumberedNames
from gavel_py.validation import MOST, SMALLEST_FRACTION, has_control

__all__ = ["ArrayChecker", "returned_numbers"]

Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]

RULES: dict[str, tuple[str, Test]] = {
    "at least 0 or infinite": ("must be a number of at least 0, or infinite where no throughput is enough", lambda a: a >= 0),
    "a number": ("must not be NaN", lambda a: ~np.isnan(a)),
    "finite": ("must be a finite number", np.isfinite),
    "at least 0": ("must be a finite number of at least 0", lambda a: np.isfinite(a) & (a >= 0)),
    "greater than 0": ("must be a finite number greater than 0", lambda a: np.isfinite(a) & (a > 0)),
    "GPUs": (
        f"must be a whole number from 1 to {MOST:,}, or a fraction of one GPU of at least {SMALLEST_FRACTION:g}",
        lambda a: ((a >= 1) & (a <= MOST) & (a == np.floor(a))) | ((a >= SMALLEST_FRACTION) & (a < 1)),
    ),
    "from 0 to 1": ("must be a number from 0 to 1", lambda a: (a >= -1e-9) & (a <= 1 + 1e-9)),
    "finite or NaN": ("must be a finite number, or NaN for none", lambda a: ~np.isinf(a)),
    "at least 0 or NaN": (
        "must be a finite number of at least 0, or NaN for unknown",
        lambda a: np.isnan(a) | ((a >= 0) & ~np.isinf(a)),
    ),
}


def returned_numbers(
    values: object, count: int, where: str, method: str, rule: str, job_of: Callable[[int], str]
) -> NDArray[np.float64]:
    """Return what a policy's method returned as a (count,) array; raises `InputError` when it is not that or breaks the rule.

    job_of: the name of a job in a row.
    """
    try:
        numbers = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        numbers = np.zeros(())
    if numbers.shape != (count,):
        raise InputError(Fault(where, method, f"must return one number for each of the {count} rows of jobs, returned {values!r}"))
    text, test = RULES[rule]
    for row in np.flatnonzero(~test(numbers)).tolist():
        raise InputError(Fault(where, method, f"{text}, returned {numbers[row]:g} for job {job_of(row)!r}"))
    return numbers


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
            return np.broadcast_to(np.float64(default), shape)  # one number in memory, however many jobs there are
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
        good = test(array)
        for place in np.argwhere(~good) if not good.all() else ():
            where = ", ".join(f"{word} {names[i]!r}" for (word, names), i in zip(axes, place, strict=True))
            self.add(where, field, f"{text}, found {array[tuple(place)]:g}")
        return array

    def _entries(self, field: str, values: object, count: int) -> list[object] | None:
        """The values as a list of `count` entries; None, with a fault noted, when they are not that."""
        if values is None:
            return None
        entries = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
        if entries is None or len(entries) != count:
            self.add("", field, f"must have {count} entries, found {values if entries is None else len(entries)!r}")
            return None
        return entries

    def texts(self, field: str, values: Sequence[object] | None, count: int) -> Sequence[str]:
        """Return `values` as text, or as many empty texts when None; note a wrong count."""
        entries = self._entries(field, values, count)
        return ("",) * count if entries is None else tuple(str(value) for value in entries)

    def columns_of(
        self, field: str, values: Sequence[object] | NDArray[np.int64] | None, jobs: Sequence[str], types: Sequence[str]
    ) -> NDArray[np.int64]:
        """Return (N,) column numbers from names or numbers of accelerator types; None and -1 mean none."""
        if values is None:
            return np.broadcast_to(np.int64(-1), (len(jobs),))
        result = np.full(len(jobs), -1, dtype=np.int64)
        entries = self._entries(field, values, len(jobs))
        numbers: dict[object, int] = {name: j for j, name in enumerate(types)}
        numbers |= {j: j for j in range(-1, len(types))} | {None: -1}
        for i, value in enumerate(entries or ()):
            if isinstance(value, str | int | np.integer | None) and not isinstance(value, bool) and value in numbers:
                result[i] = numbers[value]
            else:
                known = ", ".join(types)
                self.add(f"job {jobs[i]!r}", field, f"must be one of {known}, its column, or -1 for none, found {value!r}")
        return result

    def indices(self, field: str, values: ArrayLike, count: int) -> NDArray[np.int64]:
        """Return `values` as a list of whole numbers from 0 to `count` - 1, noting what is not."""
        try:
            array = np.array(values, ndmin=1)
        except ValueError:
            array = np.array([""])
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
            self.add("", field, f"must be a list of whole numbers from 0 to {count - 1}, one per job")
            return np.zeros(0, dtype=np.int64)
        good = (array >= 0) & (array < count) & (array == np.floor(array))
        for i in np.flatnonzero(~good).tolist() if not good.all() else ():
            self.add(f"entry {i}", field, f"must be a whole number from 0 to {count - 1}, found {array[i]:g}")
        return np.where(good, array, 0).astype(np.int64)

    def unique_names(self, field: str, values: Sequence[object] | None, count: int, prefix: str) -> Sequence[str]:
        """Return `values` as text, or prefix0, prefix1, ...; note a wrong count, an empty name or one that repeats."""
        entries = self._entries(field, values, count)
        if entries is None:
            return NumberedNames(prefix, count)
        names = tuple(str(value) for value in entries)
        if len(set(names)) < count:
            for name in (name for name, times in Counter(names).items() if times > 1):
                self.add(repr(name), field, "stands twice; names must be unique")
        if any(not name or has_control(name) for name in names):
            self.add("", field, "must not contain an empty name or control characters")
        return names
