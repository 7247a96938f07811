"""Requests over time: drawn at random with a rate and a burstiness for each service, or read from a file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gavel_py.errors import Fault, GavelWarning, InputError, check_known, check_type, faults_among, refuse
from gavel_py.io.reading import csv_or_json_rows
from gavel_py.io.records import Finite, Natural, Positive, Share, check, faults_of, number_of
from gavel_py.io.tabular import Tabular, csv_text
from gavel_py.io.writing import write_atomic
from gavel_py.problem.arrays import Floats

MAX_CV = 20.0
"""Largest burstiness. Beyond it, nearly all requests of a trace arrive in one burst, and traces differ too much from each other."""

MAX_TOKENS = 100_000_000
"""Largest number of tokens in a prompt or an answer; larger numbers indicate a wrong column."""

MAX_REQUESTS = 50_000_000
"""Largest expected number of requests in a drawn trace; more would not fit into memory and indicate a wrong unit of the rate."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "seconds": ("seconds", "arrival_seconds"),
    "timestamp": ("timestamp",),
    "service": ("service", "model"),
    "input_tokens": ("input_tokens", "contexttokens", "prompt_tokens", "request tokens", "input_length"),
    "output_tokens": ("output_tokens", "generatedtokens", "response tokens", "output_length"),
}
"""{field: names of its column in a file, in lower case}, including those of the traces of Azure, BurstGPT and Mooncake."""

MOONCAKE = {"timestamp", "input_length", "output_length"}
"""Fields by which Mooncake's traces are recognised, whose timestamps are in milliseconds."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of this number modulo 1 are spread evenly over 0 to 1 at every step, so that shares hold even over short times."""

ONE_SERVICE = "all"
"""The service of requests in a file without a column for it."""


class Bucket(NamedTuple):
    """A size of requests; as text, "128/2048".

    >>> str(Bucket(128, 2048))
    '128/2048'
    """

    prompt_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.prompt_tokens}/{self.output_tokens}"


def bucket_of(value: object) -> Bucket:
    """Return a bucket from a pair of numbers or from text such as "128/2048"."""
    parts = value.split("/") if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and len(parts) == 2:
        sizes = [number_of(part) for part in parts]
        if all(0 <= size <= MAX_TOKENS and size == int(size) for size in sizes) and any(sizes):
            return Bucket(*map(int, sizes))
    raise ValueError(f"must be prompt tokens/output tokens, such as 128/2048, found {value!r:.60}")


@dataclass(frozen=True, eq=False)
class RequestTrace(Tabular):
    """N requests in order of arrival.

    Attributes:
        seconds: (N,) times of arrival, ascending, from 0 to the duration.
        service_index: (N,) position of each request's service in `services`.
        services: Names of the services.
        duration_seconds: Length of the trace.
        input_tokens: (N,) tokens of the prompts, or None if unknown.
        output_tokens: (N,) tokens of the answers, or None if unknown.

    Raises:
        InputError: Arrays of different lengths, times out of order or outside of the trace, or a service twice.
    """

    seconds: Floats
    service_index: NDArray[np.intp]
    services: tuple[str, ...]
    duration_seconds: float
    input_tokens: Floats | None = None
    output_tokens: Floats | None = None

    def __post_init__(self) -> None:
        count = len(self.seconds)
        lengths = {len(each) for each in (self.service_index, self.input_tokens, self.output_tokens) if each is not None}
        has_index = count and lengths == {count}
        is_outside = has_index and (self.service_index.min() < 0 or self.service_index.max() >= len(self.services))
        late = (np.flatnonzero(~(np.diff(self.seconds) >= 0)) + 1).tolist()[:1]
        texts = (f"request {n + 1} arrives at {self.seconds[n]:g} s, after one at {self.seconds[n - 1]:g} s" for n in late)
        faults = faults_of("request trace", duration_seconds=(self.duration_seconds, Positive))
        is_longer = count and not faults and not (self.seconds[0] >= 0 and self.seconds[-1] <= self.duration_seconds)
        faults += faults_among(
            "request trace",
            (lengths != {count}, "", "its arrays must have the same length"),
            (is_outside, "service_index", f"must be at least 0 and below {len(self.services)}"),
            (len(set(self.services)) < len(self.services), "services", "a name appears twice"),
            (is_longer, "seconds", "must be from 0 to the duration"),
            *((True, "seconds", f"must be ascending: {times}") for times in texts),
        )
        InputError.raise_any(faults)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def rates(self) -> dict[str, float]:
        """Requests per second of each service, on average over the trace."""
        counts = np.bincount(self.service_index, minlength=len(self.services)) / self.duration_seconds
        return dict(zip(self.services, counts.tolist(), strict=True))

    @classmethod
    def generate(
        cls, rates: Mapping[str, float], duration_seconds: float, *, cv: float | Mapping[str, float] = 1.0, seed: int = 0
    ) -> RequestTrace:
        """Draw arrivals of a renewal process for each service, independently.

        Gaps between requests of a service follow a gamma distribution with mean 1/rate and coefficient of variation cv: shape
        1/cv², scale cv²/rate. With cv 1 arrivals are Poisson; with cv 0 gaps are equal, after a random start. Seed 0 gives the same
        arrivals as AlpaServe (Li et al., OSDI 2023), drawn for service number i from NumPy's `RandomState(i)`.

        Args:
            rates: Requests per second by service.
            duration_seconds: Length of the trace.
            cv: Coefficient of variation of the gaps, from 0 to 20; one for all services, or by service.
            seed: A whole number of at least 0. Traces of different seeds are independent.

        Raises:
            InputError: No service, a rate or duration that is not greater than 0, a cv outside its range, or an invalid seed.
        """
        cvs = dict.fromkeys(rates, cv) if not isinstance(cv, Mapping) else cv
        _check_process(rates, cvs, duration_seconds, seed)
        each = [
            _renewals(rate, cvs[name], duration_seconds, _generator_of(seed, n)) for n, (name, rate) in enumerate(rates.items())
        ]
        seconds = np.concatenate(each)
        order = np.argsort(seconds, kind="stable")
        services = np.repeat(np.arange(len(each)), [len(times) for times in each])
        return cls(seconds[order], services[order], tuple(rates), float(duration_seconds))

    @classmethod
    def from_file(cls, path: str | Path, *, service: str = ONE_SERVICE) -> RequestTrace:
        """Read a CSV or JSON Lines file with a row for each request, in order of arrival; the first arrives at 0.

        Columns: `seconds`, or `timestamp`, as in 2023-11-16 18:17:03.97 or in seconds; optionally `service`, `input_tokens` and
        `output_tokens`. The files of Azure, BurstGPT and Mooncake (timestamps in milliseconds) are read as they are. Other columns
        are ignored, and with a `GavelWarning` requests with 0 tokens, unless all have 0. Timestamps without a time zone are UTC.

        Args:
            path: The file.
            service: The service of all requests, if the file does not name services.

        Raises:
            InputError: The file cannot be read, has no requests or no time column, or has requests out of order.
        """
        rows = _with_tokens(path, list(_rows(path, service)))
        is_wrong = len(rows) < 2 or rows[-1][0] == rows[0][0]
        refuse(str(path), (is_wrong, "", "has no two requests at different times, so that it has no rate"))
        times, names, *tokens = zip(*rows, strict=True)
        number = {name: n for n, name in enumerate(dict.fromkeys(names))}
        known = [None if np.isnan(each).any() else np.array(each) for each in tokens]
        seconds = np.array(times) - times[0]
        index = np.array([number[name] for name in names], dtype=np.intp)
        return cls(seconds, index, tuple(number), float(seconds[-1]), *known)

    @classmethod
    def merged(cls, traces: Sequence[RequestTrace]) -> RequestTrace:
        """Return the requests of several traces with different services, in order of arrival.

        Args:
            traces: At least one; the result lasts as long as the longest. Tokens are kept if all traces know them.

        Raises:
            InputError: No trace, or a service in two of them.
        """
        refuse("request trace", (not traces, "traces", "must not be empty"))
        services = tuple(name for trace in traces for name in trace.services)
        firsts = np.cumsum([0, *(len(trace.services) for trace in traces[:-1])])
        seconds = np.concatenate([trace.seconds for trace in traces])
        index = np.concatenate([trace.service_index + first for trace, first in zip(traces, firsts, strict=True)])
        order = np.argsort(seconds, kind="stable")
        known = [[getattr(trace, name) for trace in traces] for name in ("input_tokens", "output_tokens")]
        tokens = [None if any(part is None for part in parts) else np.concatenate(parts)[order] for parts in known]
        return cls(seconds[order], index[order], services, max(trace.duration_seconds for trace in traces), *tokens)

    def times_faster(self, factor: float) -> RequestTrace:
        """Return the same requests in 1/`factor` of the time, so that all rates are `factor` times as high.

        Args:
            factor: Greater than 0.

        Raises:
            InputError: Another factor.
        """
        check("request trace", factor=(factor, Positive))
        return replace(self, seconds=self.seconds / factor, duration_seconds=self.duration_seconds / factor)

    def times_as_many(self, factor: float, *, shift_seconds: float = 5.0) -> RequestTrace:
        """Return `factor` times as many requests in the same time, by shifted copies of the trace; the last copy may be partial.

        Args:
            factor: Greater than 0, at most 1,000.
            shift_seconds: Shift of each copy relative to the previous one; requests shifted beyond the end wrap around to the
                start.

        Raises:
            InputError: Another factor.
        """
        check("request trace", factor=(factor, Copies))
        rank = (np.arange(len(self)) * GOLDEN) % 1  # spread evenly, so that a part of the requests has the same bursts
        copies = [np.flatnonzero(rank < factor - copy) for copy in range(math.ceil(factor))]
        at = np.concatenate(copies)
        seconds = self.seconds[at] + shift_seconds * np.repeat(np.arange(len(copies)), [len(part) for part in copies])
        seconds -= self.duration_seconds * (seconds > self.duration_seconds)
        order = np.argsort(seconds, kind="stable")
        return self._part(at[order], seconds[order], self.duration_seconds)

    def between(self, start_seconds: float, end_seconds: float) -> RequestTrace:
        """Return the requests of a part of the trace; its times start at 0 again.

        Args:
            start_seconds: Start of the part.
            end_seconds: End of the part (exclusive).

        Raises:
            InputError: The part is empty or not within the trace.
        """
        text = f"a trace of {self.duration_seconds:g} s has no part from {start_seconds:g} to {end_seconds:g} s"
        refuse("request trace", (not 0 <= start_seconds < end_seconds <= self.duration_seconds, "", text))
        part = slice(*np.searchsorted(self.seconds, [start_seconds, end_seconds]).tolist())
        return self._part(part, self.seconds[part] - start_seconds, end_seconds - start_seconds)

    def of(self, service: str) -> RequestTrace:
        """Return the requests of one service.

        Args:
            service: Its name.

        Raises:
            UnknownNameError: The trace has no such service.
        """
        check_known("request trace", "services", [service], self.services, "is missing")
        chosen = self.service_index == self.services.index(service)
        part = self._part(chosen, self.seconds[chosen], self.duration_seconds)
        return replace(part, service_index=np.zeros_like(part.service_index), services=(service,))

    def _part(self, rows: NDArray[np.bool | np.intp] | slice, seconds: Floats, duration_seconds: float) -> RequestTrace:
        tokens = [None if each is None else each[rows] for each in (self.input_tokens, self.output_tokens)]
        return RequestTrace(seconds, self.service_index[rows], self.services, duration_seconds, *tokens)

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return {"seconds", "service", and "input_tokens", "output_tokens" if known: (N,) array}."""
        columns: dict[str, NDArray[Any]] = {
            "seconds": self.seconds,
            "service": np.array(self.services, dtype=object)[self.service_index],
        }
        tokens = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return columns | {name: values for name, values in tokens.items() if values is not None}

    def to_csv(self, path: str | Path) -> None:
        """Write a file that `from_file` reads.

        Args:
            path: The file, which is replaced.

        Raises:
            InputError: It cannot be written.
        """
        write_atomic(path, csv_text(self.to_columns()).encode())

    def _title(self) -> str:
        return f"{len(self):,} requests of {len(self.services)} services in {self.duration_seconds:g} s"


Attainment = Share
Variation = Annotated[Finite, Field(ge=0, le=MAX_CV)]
Copies = Annotated[Finite, Field(gt=0, le=1_000)]


def _check_process(rates: Mapping[str, float], cvs: Mapping[str, float], seconds: float, seed: int) -> None:
    faults = faults_among("requests", (not rates, "rates", "must have at least one service"))
    faults += faults_of("requests", duration_seconds=(seconds, Positive), seed=(seed, Natural))
    for name, rate in rates.items():
        faults += faults_of(f"requests of {name!r}", rate=(rate, Positive), cv=(cvs.get(name), Variation))
    InputError.raise_any(faults)
    expected = sum(rates.values()) * seconds
    refuse(
        "requests",
        (
            expected > MAX_REQUESTS,
            "",
            f"{expected:,.0f} requests are expected, but a trace may have {MAX_REQUESTS:,}; shorten its duration",
        ),
    )


def _generator_of(seed: int, number: int) -> np.random.RandomState:
    """Return the random generator of a service: for seed 0 the same as in AlpaServe; independent of those of other seeds."""
    if seed == 0:
        return np.random.RandomState(number)
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, number])))


def _gaps(rate: float, cv: float, count: int, state: np.random.RandomState) -> Floats:
    """Return the first gaps between the requests of a service."""
    # Drawn with this scale, as in AlpaServe, since a sample scaled afterwards may differ in the last digit.
    return np.full(count, 1 / rate) if cv == 0 else state.gamma(1 / cv**2, cv**2 / rate, count)


def first_arrivals(cv: float, count: int, seeds: int) -> list[Floats]:
    """Return the times of the first requests at a rate of 1 request per second, drawn for each seed."""
    return [np.cumsum(_gaps(1.0, cv, count, _generator_of(seed + 1, 0))) for seed in range(seeds)]


def _renewals(rate: float, cv: float, duration: float, state: np.random.RandomState) -> Floats:
    """Return the times of arrival before `duration`."""
    size, now = max(int(rate * duration * 1.2), 1), 0.0
    if cv == 0:
        equal: Floats = (float(state.uniform()) + np.arange(size + 1, dtype=float)) / rate
        return equal[equal < duration]
    parts = []
    while now < duration:
        parts.append(now + np.cumsum(_gaps(rate, cv, size, state)))
        now = float(parts[-1][-1])
    found = np.concatenate(parts)
    return found[found < duration]


def _rows(path: str | Path, service: str) -> Iterator[tuple[float, str, float, float]]:
    """Yield arrival, service and tokens (NaN if unknown) of requests; `InputError` for one that is invalid or out of order."""
    before, per_second = -np.inf, 0.0
    for where, cells in csv_or_json_rows(path):
        check_type(where, "", cells, Mapping, "must be an object of field to value")
        lower = {name.lower(): cell for name, cell in cells.items() if cell is not None}
        found = {name: lower[each] for name, spelled in COLUMNS.items() for each in spelled if each in lower}
        per_second = per_second or (1e3 if lower.keys() >= MOONCAKE else 1.0)  # as in the first row
        seconds = _arrival(where, found, per_second)
        refuse(where, (seconds < before, "", "arrives before the request above it; sort the file by the time of arrival"))
        before = seconds
        name = found.get("service", service)
        check_type(where, "service", name, str | int | float, "must be text")
        yield seconds, str(name), _tokens(where, found, "input_tokens"), _tokens(where, found, "output_tokens")


def _with_tokens(path: str | Path, rows: list[tuple[float, str, float, float]]) -> list[tuple[float, str, float, float]]:
    """Return the requests without those of 0 tokens, as in traces that record failures; a column with only 0 has no effect."""
    tokens = np.array([row[2:] for row in rows], dtype=float).reshape(-1, 2)
    empty = ((tokens == 0) & (tokens > 0).any(axis=0)).any(axis=1)
    if not empty.any():
        return rows
    first, _ = next(islice(csv_or_json_rows(path), int(empty.argmax()), None))
    warnings.warn(f"requests with 0 tokens are ignored: {empty.sum():,} (first: {first})", GavelWarning, stacklevel=3)
    return [row for row, is_empty in zip(rows, empty.tolist(), strict=True) if not is_empty]


def _arrival(where: str, found: Mapping[str, Any], per_second: float) -> float:
    """Return the time of arrival in seconds; per_second: unit of a timestamp that is a number."""
    field = "seconds" if "seconds" in found else "timestamp"
    refuse(where, (field not in found, "", "has no time of arrival; a column seconds or timestamp is required"))
    number = number_of(found[field])
    if np.isfinite(number):
        return number if field == "seconds" else number / per_second
    try:
        moment = datetime.fromisoformat(str(found[field]) if field == "timestamp" else "")
    except ValueError:
        right = "a finite number" if field == "seconds" else "a time such as 2023-11-16 18:17:03.97, or in seconds"
        raise InputError(Fault(where, field, f"must be {right}, found {found[field]!r:.60}")) from None
    # Times without a zone are read as UTC, since local time may be set back within the trace.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _tokens(where: str, found: Mapping[str, Any], name: str) -> float:
    if name not in found:
        return np.nan
    value = number_of(found[name])
    if not 0 <= value < np.inf:
        raise InputError(Fault(where, name, f"must be a number of at least 0, found {found[name]!r:.60}"))
    return value
