"""The arrays of a problem: element types, names, defaults, and validation with job and field of each fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Annotated, Any, NamedTuple, TypedDict, TypeGuard, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, faults_among, refuse
from gavel_py.io.names import MAX_COUNT, SMALLEST_FRACTION, NumberedNames, has_control, is_absent, repeated, same_name

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
RunningOn = Sequence[int | str | None] | NDArray[np.int64] | None


class Array(NamedTuple):
    """An array of numbers of a problem.

    Attributes:
        default: Its entries if it is not given.
        rule: What they must be (`RULES`).
        field: The field of `Job` to which it is equal, empty for none.
        axes: What its axes enumerate.
    """

    default: float
    rule: str
    field: str = ""
    axes: tuple[str, ...] = ("job",)


JOB, TYPE = "job", "accelerator type"


class OptionalArrays(TypedDict, total=False):
    """The optional arguments of `from_arrays` and `from_types`."""

    accelerator_types: Sequence[str] | None
    job_ids: Sequence[object] | None
    tenants: Sequence[str] | None
    num_gpus: Annotated[ArrayLike | None, Array(1, "GPUs", "num_gpus")]
    weights: Annotated[ArrayLike | None, Array(1, "greater than 0", "weight")]
    priorities: Annotated[ArrayLike | None, Array(0, "finite", "priority")]
    steps_remaining: Annotated[ArrayLike | None, Array(np.nan, "at least 0")]
    total_steps: Annotated[ArrayLike | None, Array(np.nan, "greater than 0", "total_steps")]
    arrival_seconds: Annotated[ArrayLike | None, Array(0, "finite", "arrival_seconds")]
    elapsed_seconds: Annotated[ArrayLike | None, Array(0, "at least 0")]
    waiting_seconds: Annotated[ArrayLike | None, Array(0, "at least 0")]
    isolated_seconds: Annotated[ArrayLike | None, Array(0, "at least 0")]
    attained_gpu_seconds: Annotated[ArrayLike | None, Array(0, "at least 0")]
    deadlines_seconds: Annotated[ArrayLike | None, Array(np.nan, "finite or NaN")]
    ready_tasks: Annotated[ArrayLike | None, Array(1, "at least 1")]
    workflow_seconds: Annotated[ArrayLike | None, Array(0, "at least 0")]
    path_seconds: Annotated[ArrayLike | None, Array(0, "at least 0")]
    latest_end_seconds: Annotated[ArrayLike | None, Array(np.nan, "finite or NaN")]
    prices_per_hour: Annotated[ArrayLike | None, Array(np.nan, "at least 0 or NaN", axes=(TYPE,))]
    previous_fractions: Annotated[ArrayLike | None, Array(0, "from 0 to 1", axes=(JOB, TYPE))]
    uncertainty: Annotated[ArrayLike | None, Array(0, "at least 0", axes=(JOB, TYPE))]
    running_on: RunningOn
    pair_kinds: ArrayLike | None
    pair_throughputs: ArrayLike | None
    count_kinds: ArrayLike | None
    gpu_counts: ArrayLike | None
    count_throughputs: ArrayLike | None


ARRAYS: dict[str, Array] = {
    name: kind.__metadata__[0]
    for name, kind in get_type_hints(OptionalArrays, include_extras=True).items()
    if get_origin(kind) is Annotated
}
"""The arrays of numbers."""

WORKFLOW_COLUMNS = ("ready_tasks", "workflow_seconds", "path_seconds", "latest_end_seconds")
"""The arrays about the workflow of a job. They have their defaults if no job belongs to a workflow or waits for another."""

JOB_ATTRIBUTES = (*(name for name, array in ARRAYS.items() if JOB in array.axes), "tenants", "running_on", "job_ids")
"""The arrays with one entry or row per job, other than throughputs and eligibility."""

UNKNOWN_WORK = dict.fromkeys(("steps_remaining", "total_steps"), Array(np.nan, "at least 0 or NaN"))
"""Rules for `from_jobs`, where jobs may omit their number of steps; in `from_arrays`, NaN is a fault."""


def isolated_shares(num_gpus: Floats, capacities: Floats, num_jobs: int) -> Floats:
    """Return (N, K) time fractions of the isolated share, 1/num_jobs of each type: (c_j / N) / s_i, divided by max(1, Σ_j x_ij)."""
    times = capacities / max(1, num_jobs) / num_gpus[:, None]
    times /= np.maximum(1.0, times.sum(axis=1, keepdims=True))
    return times


def isolated_throughputs(throughputs: Floats, num_gpus: Floats, capacities: Floats, num_jobs: int) -> Floats:
    """Return (N,) Σ_j T_ij x_ij in the isolated share x (`isolated_shares`).

    The normaliser of finish-time fairness (Themis, NSDI 2020; Gavel, OSDI 2020, section 4.2).
    """
    return (throughputs * isolated_shares(num_gpus, capacities, num_jobs)) @ np.ones(len(capacities))


def fair_shares(num_gpus: Floats, weights: Floats, capacities: Floats, runnable: Mask) -> Floats:
    """Return (N,) min(1, w_i C / (s_i Σ w)): the part of the time for which a job's slice of the cluster can hold its gang.

    C: total number of GPUs; weights are summed over the jobs that can run on some type, by the (N, K) mask.
    """
    total = float(weights @ runnable.any(axis=1)) or 1.0
    shares: Floats = np.minimum(1.0, weights * (capacities.sum() / total) / num_gpus)
    return shares


def table_shape(field: str, rows: str, table: ArrayLike, capacities: ArrayLike) -> tuple[int, int]:
    """Return (rows, K) of a table, K from the capacities if it is empty; raises `InputError` if it does not fit them."""
    try:
        shape, columns = np.shape(table), np.shape(capacities)
    except ValueError:
        raise InputError(Fault("", field, "must be a table with one number per capacity in each row")) from None
    refuse("", (len(columns) != 1, "capacities", f"must be a list with one number per accelerator type, found shape {columns}"))
    text = f"must have the shape ({rows}, {columns[0]}) to match the capacities, found {shape}"
    refuse("", (0 not in shape and shape[1:] != columns, field, text))
    return shape[0], columns[0]


def faults_of_speeds(field: str, speeds: Floats, shape: tuple[int, ...], named: str, absent: str) -> list[Fault]:
    """Return the faults of a table of speeds by kind. shape: of the entries of one kind; named: in words; absent: what 0 means."""
    return faults_among(
        "",
        (speeds.shape[1:] != shape, field, f"must have the shape (kinds, {named}), found {speeds.shape}"),
        (
            not (np.isfinite(speeds) & (speeds >= 0)).all(),
            field,
            f"must be finite numbers of at least 0, in steps/s; 0 where {absent}",
        ),
    )


def faults_of_kinds(field: str, kinds: NDArray[Any], num_jobs: int, num_kinds: int, without: str) -> list[Fault]:
    """Return the faults of the kind of each job as a number. without: the jobs that have none."""
    is_list = kinds.shape == (num_jobs,) and kinds.dtype.kind in "iu"
    text = f"must be {num_jobs} whole numbers from 0 to {num_kinds - 1}, or -1 for a job {without}"
    return faults_among("", (not is_list or not ((kinds >= -1) & (kinds < num_kinds)).all(), field, text))


def plain_size(num_gpus: float) -> int | float:
    """Return the GPUs of a gang as an int if they are whole, else as a float."""
    return int(num_gpus) if num_gpus >= 1 else float(num_gpus)


Test = Callable[[Floats], Mask]

Axis = tuple[str, Sequence[str]]
"""What an axis enumerates, such as "job", and its names."""

PLAIN = {list, tuple, np.ndarray}
"""Types of table rows without labels."""

MAX_LABELS = 5
"""Number of labels that a message lists."""

RULES: dict[str, tuple[str, Test]] = {
    "finite": ("must be a finite number", np.isfinite),
    "at least 0": ("must be a finite number of at least 0", lambda a: np.isfinite(a) & (a >= 0)),
    "at least 1": ("must be a finite number of at least 1", lambda a: np.isfinite(a) & (a >= 1)),
    "greater than 0": ("must be a finite number greater than 0", lambda a: np.isfinite(a) & (a > 0)),
    "GPUs": (
        f"must be a whole number from 1 to {MAX_COUNT:,}, or a fraction of one GPU of at least {SMALLEST_FRACTION:g}",
        lambda a: ((a >= 1) & (a <= MAX_COUNT) & (a == np.floor(a))) | ((a >= SMALLEST_FRACTION) & (a < 1)),
    ),
    "from 0 to 1": ("must be a number from 0 to 1", lambda a: (a >= -1e-9) & (a <= 1 + 1e-9)),
    "finite or NaN": ("must be a finite number, or NaN for none", lambda a: ~np.isinf(a)),
    "at least 0 or NaN": (
        "must be a finite number of at least 0, or NaN for unknown",
        lambda a: np.isnan(a) | ((a >= 0) & ~np.isinf(a)),
    ),
}


def floats_of(values: Any) -> Floats:
    """Return a copy as floats, NaN for missing and masked values; raises `TypeError` or `ValueError`."""
    if isinstance(values, list | tuple) and any(map(_is_masked, set(map(type, values)))):
        values = np.ma.array(values)
    if _is_masked(type(values)):
        return np.ma.filled(values.astype(float), np.nan)
    try:
        return np.array(values, dtype=float)
    except (TypeError, ValueError):
        cells = np.array(values, dtype=object)
        missing = np.array([is_absent(cell) for cell in cells.flat], dtype=bool).reshape(cells.shape)
        if not missing.any():
            raise
        return np.where(missing, np.nan, cells).astype(float)


def _is_masked(kind: type) -> bool:
    """Return whether a type is a masked array, without importing `numpy.ma`."""
    return issubclass(kind, np.ndarray) and hasattr(kind, "filled")


def labels_of(values: object, axis: int = 0) -> list[object] | None:
    """Return the labels of a pandas Series or DataFrame, or of another object with such an index, along an axis.

    None without labels and for a default index 0, 1, 2, ...
    """
    index: Any = getattr(values, "columns" if axis else "index", None)
    if index is None or callable(index):  # lists have a method of this name
        return None
    labels = list(index)
    by_position = all(isinstance(label, int | np.integer) for label in labels) and labels == list(range(len(labels)))
    return None if by_position else labels


class ArrayChecker:
    """Converts arrays and collects all faults; `finish` raises them together."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._rows: dict[str, list[str]] = {}
        self._unnamed: dict[str, str] = {}

    def add(self, where: str, field: str, problem: str) -> None:
        """Record a fault."""
        self.faults.append(Fault(where, field, problem))

    def finish(self) -> None:
        """Raise `InputError` with all faults recorded so far, if any."""
        InputError.raise_any(self.faults)

    def in_order(self, field: str, values: Any, axes: Sequence[Axis], labelled: object = None) -> Any:
        """Return labelled values (`labels_of`) in the order of the names along each axis, other values unchanged.

        Labels must be the names, or the labels of the Series that defines the names; otherwise a fault is recorded and None
        returned. labelled: the object with the labels, if it is not `values`.
        """
        rowwise = isinstance(values, list | tuple) and len(axes) == 2 and not set(map(type, values)) <= PLAIN
        if rowwise and any(labels_of(row) for row in values):
            rows = [self.in_order(field, row, axes[1:]) for row in values]
            return None if any(row is None for row in rows) else rows
        known = len(self.faults)
        labels = values if labelled is None else labelled
        orders = [self._order(field, labels_of(labels, axis), *axes[axis]) for axis in range(len(axes))]
        if len(self.faults) > known:
            return None
        for axis, order in enumerate(orders):
            values = values if order is None else np.take(np.asarray(values), order, axis)
        return values

    def _order(self, field: str, labels: Sequence[object] | None, word: str, names: Sequence[str]) -> list[int] | None:
        """Return the positions of labelled values in the order of the names; None if they need no reordering."""
        if labels is None or (word == "job type" and not any(isinstance(label, int | np.integer) for label in labels)):
            return None  # names of job types have no reference to match
        place = {str(label): position for position, label in enumerate(labels)}
        for wanted in (self._rows.get(word, ()), names):
            if len(wanted) == len(labels) and place.keys() == set(wanted):
                return [place[name] for name in wanted]
        found, known = (", ".join(map(repr, each[:MAX_LABELS])) + ", ..." * (len(each) > MAX_LABELS) for each in (labels, names))
        remedy = f"name them with {self._unnamed[word]}, or pass" if word in self._unnamed else "pass"
        text = f"is labelled {found}, but the {word}s are {known}; {remedy} plain values in this order (.to_numpy())"
        self.add("", field, text)
        return None

    def numbers(self, field: str, values: ArrayLike | None, default: float, rule: str, axes: Sequence[Axis]) -> Floats:
        """Return `values` as a float array with the shape of the axes, all `default` if None; record invalid entries."""
        shape = tuple(len(names) for _, names in axes)
        if values is None:
            return np.broadcast_to(np.float64(default), shape)  # a single number in memory
        values = self.in_order(field, values, axes)
        if values is None:
            return np.full(shape, float(default))
        try:
            array = floats_of(values)
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

    def _entries(self, field: str, values: object, axis: Axis) -> list[object] | None:
        """Return the values as a list with one entry per name of the axis; otherwise record a fault and return None."""
        values = None if values is None else self.in_order(field, values, [axis])
        return None if values is None else self._listed(field, values, len(axis[1]))

    def _listed(self, field: str, values: object, count: int) -> list[object] | None:
        entries = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
        if entries is None or len(entries) != count:
            self.add("", field, f"must have {count} entries, found {values if entries is None else len(entries)!r}")
            return None
        return entries

    def texts(self, field: str, values: Sequence[object] | None, axis: Axis) -> Sequence[str]:
        """Return `values` as text, missing ones empty, and empty texts if None; record a wrong count."""
        entries = self._entries(field, values, axis)
        if entries is None:
            return ("",) * len(axis[1])
        return tuple("" if is_absent(value) else str(value) for value in entries)

    def columns_of(
        self, field: str, values: Sequence[object] | Indices | None, jobs: Sequence[str], types: Sequence[str]
    ) -> Indices:
        """Return (N,) column numbers from names or numbers of accelerator types; missing values and -1 mean none."""
        if values is None:
            return np.broadcast_to(np.int64(-1), (len(jobs),))
        result = np.full(len(jobs), -1, dtype=np.int64)
        entries = self._entries(field, values, ("job", jobs))
        numbers: dict[object, int] = {name: j for j, name in enumerate(types)}
        numbers |= {j: j for j in range(-1, len(types))} | {None: -1}
        for i, given in enumerate(entries or ()):
            value = None if is_absent(given) else given
            if isinstance(value, str):
                value = same_name(value, types) or value
            if isinstance(value, str | int | np.integer | None) and not isinstance(value, bool) and value in numbers:
                result[i] = numbers[value]
            else:
                known = ", ".join(types)
                self.add(f"job {jobs[i]!r}", field, f"must be one of {known}, a column number, or -1 for none, found {value!r}")
        return result

    def indices(self, field: str, values: ArrayLike, count: int) -> Indices:
        """Return `values` as whole numbers from 0 to `count` - 1; record all others, including missing ones."""
        try:
            array = np.array(floats_of(values) if _is_masked(type(values)) else values, ndmin=1)
        except ValueError:
            array = np.array([""])
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
            self.add("", field, f"must be a list of whole numbers from 0 to {count - 1}, one per job")
            return np.zeros(0, dtype=np.int64)
        good = (array >= 0) & (array < count) & (array == np.floor(array))
        for i in np.flatnonzero(~good).tolist() if not good.all() else ():
            self.add(f"entry {i}", field, f"must be a whole number from 0 to {count - 1}, found {array[i]:g}")
        return np.where(good, array, 0).astype(np.int64)

    def unique_names(self, field: str, values: Any, count: int, prefix: str, word: str) -> Sequence[str]:
        """Return `values` as text, by default prefix0, prefix1, ...; record a wrong count and missing, empty or repeated names.

        word: what they name. Labels of the values are valid labels of other arrays too (`in_order`).
        """
        entries = None if values is None else self._listed(field, values, count)
        if entries is None:
            self._unnamed[word] = field
            return NumberedNames(prefix, count)
        for i, value in enumerate(entries):
            if not isinstance(value, str) and is_absent(value):
                self.add(f"entry {i}", field, f"must be a name, found {value!r}")
        names = tuple(str(value) for value in entries)
        self._rows[word] = [str(label) for label in labels_of(values) or ()]
        for name in repeated(names):
            self.add(repr(name), field, "appears twice; names must be unique")
        if any(not name or has_control(name) for name in names):
            self.add("", field, "must not contain an empty name or control characters")
        return names


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether the value is a finite number; booleans are not."""
    if type(value) is float:
        return math.isfinite(value)  # the usual case, and the fast one
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_number(name: str, value: float, least: float = -math.inf) -> None:
    """Raise `InputError` for an argument that is not a finite number of at least `least`."""
    is_right = isinstance(value, Real) and math.isfinite(value) and value >= least
    bound = "" if least == -math.inf else f" of at least {least:g}"
    refuse("", (not is_right, name, f"must be a finite number{bound}, found {value!r}"))
