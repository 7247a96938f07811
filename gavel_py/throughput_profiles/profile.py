"""The throughput profile: steps/s by job type, gang size, accelerator, placement and partner."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TextIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import (
    SHOWN_FAULTS,
    Fault,
    InputError,
    MissingThroughputError,
    UnknownNameError,
    check_known,
    faults_among,
    nearest,
)
from gavel_py.io.records import number_of
from gavel_py.problem.accelerators import AcceleratorTable, same_accelerator
from gavel_py.problem.arrays import Floats, labels_of
from gavel_py.problem.gpu_counts import counts_of
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.files import (
    PLACEMENTS,
    Entry,
    MeasuredRow,
    Measurement,
    builtin_names,
    collect,
    read_builtin,
    read_csv,
    read_gavel_json,
    units_of,
    write_csv,
)
from gavel_py.throughput_profiles.formats import read_as
from gavel_py.throughput_profiles.matrix import ThroughputMatrix, counted
from gavel_py.throughput_profiles.units import UNITS, UnitOf, conversion

if TYPE_CHECKING:
    from gavel_py import EstimatedProfile, ThroughputEstimator

Key = TypeVar("Key", bound=Hashable)


class Coverage(NamedTuple):
    """The number of combinations of job type and accelerator with a throughput of a gang alone, and the number of all combinations.

    The percentage is rounded down, so that only a complete profile has 100 %.

    >>> str(Coverage(212, 484))
    '212 of 484 (43 %)'
    """

    measured: int
    possible: int

    def __str__(self) -> str:
        part = f" ({100 * self.measured // self.possible} %)" if self.possible else ""
        return f"{self.measured:,} of {self.possible:,}{part}"


Confidence = float | Literal["optimistic"] | None
"""The value of an estimate, as `ThroughputProfile.with_estimates` takes it."""

Unknown = tuple[str, str | Entry]
"""What a profile lacks: ("accelerator", its name) or another field and name, or ("", entry) if it knows all names of the entry."""


class Lookup(NamedTuple):
    """What a job looks up in a profile: a gang, on the accelerators that it may use, None for all."""

    job_type: str
    num_gpus: float
    allowed: tuple[str, ...] | None

    @classmethod
    def of(cls, job: Job, num_gpus: float | None = None) -> Lookup:
        """Return the lookup of a job, by default with its own number of GPUs."""
        return cls(job.job_type, job.num_gpus if num_gpus is None else num_gpus, job.allowed_accelerators)

    def entries(self, accelerators: Iterable[str]) -> Iterator[Entry]:
        """Yield the entries, consolidated and alone, on those of these accelerators that the job may use."""
        usable = accelerators if self.allowed is None else filter(self.allowed.__contains__, accelerators)
        return (Entry(self.job_type, self.num_gpus, name) for name in usable)


@dataclass(frozen=True, init=False, repr=False)
class ThroughputProfile:
    """Measured throughputs (steps/s of the whole gang, or another unit of the job type) under one name; immutable.

    A throughput of 0 means that the job cannot run there. A combination that was not measured is missing: looking it up raises
    `MissingThroughputError`.

    Args:
        name: Name of the profile.
        measurements: The measurements; a pair may be given from either side and is kept once.
        description: Text about the profile.
        licence: Licence of the figures.
        notice: Copyright notice that the licence requires.
        url: Origin of the figures.

    Attributes:
        rows: The measurements as plain tuples.
        is_by_type: Whether jobs with equal gangs have equal throughputs; a subclass may distinguish them, unless it is defined with
            `by_type=True`.

    Raises:
        InputError: A duplicate entry, a pair whose two sides contradict each other, or a job type with two units.

    >>> ThroughputProfile.builtin("gavel-osdi20").throughput("ResNet-50 (batch size 64)", 1, "v100")
    4.395
    """

    is_by_type: ClassVar[bool] = True
    name: str
    rows: tuple[MeasuredRow, ...]
    description: str
    licence: str
    notice: str
    url: str

    def __init_subclass__(cls, *, by_type: bool = False) -> None:
        cls.is_by_type = by_type

    def __init__(
        self,
        name: str,
        measurements: Iterable[Measurement],
        *,
        description: str = "",
        licence: str = "",
        notice: str = "",
        url: str = "",
    ) -> None:
        kept, faults = collect((f"measurement {number}", m) for number, m in enumerate(measurements, 1))
        is_name = name and name.isprintable()
        where, own = f"throughput profile {name!r}", (not is_name, "name", f"must be printable and not empty, found {name!r}")
        faults = faults_among(where, own) + [replace(fault, where=f"{where}, {fault.where}") for fault in faults]
        InputError.raise_any(faults)
        # The dataclass is frozen; only this method and `builtin` set its fields.
        rows = tuple(m.row() for m in kept)
        self.__dict__.update(name=name, rows=rows, description=description, licence=licence, notice=notice, url=url)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        sizes = ((len(self), "measurement"), (len(self.job_types), "job type"))
        known = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in sizes)
        return f"ThroughputProfile({self.name!r}: {known} on {', '.join(self.accelerators) or 'nothing'})"

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements in the order given, each pair once with its two sides in alphabetical order."""
        return tuple(Measurement(**row._asdict()) for row in self.rows)

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators in the order of their first measurement."""
        return tuple(dict.fromkeys(row.accelerator for row in self.rows))

    @cached_property
    def job_types(self) -> tuple[str, ...]:
        """Job types in the order of their first measurement, partners included."""
        return tuple(dict.fromkeys(entry.job_type for entry in self._speeds))

    @cached_property
    def gang_sizes(self) -> tuple[float, ...]:
        """Measured gang sizes in GPUs, ascending."""
        return tuple(sorted({row.num_gpus for row in self.rows}))

    @cached_property
    def coverage(self) -> Coverage:
        """The combinations of job type and accelerator that are measured without partner, (measured, possible)."""
        measured = {(row.job_type, row.accelerator) for row in self.rows if row.partner_job_type is None}
        return Coverage(len(measured), len(self.job_types) * len(self.accelerators))

    @cached_property
    def _units(self) -> dict[str, UnitOf]:
        return {job_type: unit for row in self.rows for job_type, unit in units_of(row)}

    @cached_property
    def units(self) -> tuple[str, ...]:
        """Units of the throughputs in the order of their first measurement, such as ("steps/s",)."""
        return tuple(dict.fromkeys(unit.unit for unit in self._units.values()))

    def unit_of(self, job_type: str) -> UnitOf:
        """Return the (unit, condition) of the throughputs of a job type; the default for unknown ones."""
        return self._units.get(job_type, UnitOf())

    def job_units(self, jobs: Sequence[Job]) -> tuple[str, ...] | None:
        """Return the unit of the throughputs of each job, None if the profile has a single unit."""
        return None if len(self.units) < 2 else tuple(self.unit_of(job.job_type).unit for job in jobs)

    def converted(self, unit: str, figures: Mapping[str, float]) -> ThroughputProfile:
        """Return the profile with all throughputs in one unit.

        Args:
            unit: One of "steps/s", "samples/s", "tokens/s", "requests/s" and "1/min".
            figures: {job type: number of smaller items in a larger one} for each job type in another unit: samples or tokens per
                step, tokens per sample or request, or steps, samples or tokens per run to the target (1/min). The same figure
                converts in either direction.

        Raises:
            InputError: A figure is missing or not above 0, or the units cannot be converted, such as steps/s to requests/s.
            UnknownNameError: The profile lacks a job type of the figures.
        """
        where = f"throughput profile {self.name!r}"
        check_known(where, "unit", [unit], UNITS)
        check_known(where, "job_type", figures, self._units, "is missing")
        problems = {job_type: _conversion_problem(found, unit, figures.get(job_type)) for job_type, found in self._units.items()}
        InputError.raise_any([Fault(f"{where}, job type {j!r}", "", problem) for j, problem in problems.items() if problem])
        factors = dict.fromkeys(self._units, 1.0)
        for job_type, figure in figures.items():
            if rule := conversion(self.unit_of(job_type).unit, unit):
                factors[job_type] = rule.apply(1.0, number_of(figure))
        rows = []
        for row in self.rows:
            changes: dict[str, object] = {"unit": unit, "steps_per_second": row.steps_per_second * factors[row.job_type]}
            if row.partner_job_type is not None and row.partner_steps_per_second is not None:
                changes["partner_steps_per_second"] = row.partner_steps_per_second * factors[row.partner_job_type]
            rows.append(row._asdict() | changes)
        measurements = [Measurement(**row) for row in rows]
        origin = {"description": self.description, "licence": self.licence, "notice": self.notice, "url": self.url}
        return ThroughputProfile(self.name, measurements, **origin)

    @cached_property
    def _speeds(self) -> dict[Entry, float]:
        speeds: dict[Entry, float] = {}
        for job_type, num_gpus, accelerator, placement, own, partner, others, *_ in self.rows:
            speeds[Entry(job_type, num_gpus, accelerator, placement, partner)] = own
            if partner is not None and others is not None:
                speeds[Entry(partner, num_gpus, accelerator, placement, job_type)] = others
        return speeds

    def _speed(self, entry: Entry) -> float | None:
        """Return the steps/s of an entry, or None if unknown.

        An unmeasured fraction of a GPU is as fast as a whole GPU, since a job requests the fraction that it can use.
        """
        speed = self._speeds.get(entry)
        return self._speeds.get(entry._replace(num_gpus=1)) if speed is None and entry.num_gpus < 1 else speed

    def _prepare(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> None:
        """Find at once what `_speed` will be asked for: nothing, if only measured throughputs count."""

    def has(
        self, job_type: str, num_gpus: float, accelerator: str, placement: str = "consolidated", partner: str | None = None
    ) -> bool:
        """Return whether `throughput` has a value, which may be 0, for these arguments."""
        return self._speed(Entry(job_type, num_gpus, accelerator, placement, partner)) is not None

    def throughput(
        self, job_type: str, num_gpus: float, accelerator: str, placement: str = "consolidated", partner: str | None = None
    ) -> float:
        """Return the steps/s of a whole gang.

        Args:
            job_type: Job type of the gang.
            num_gpus: GPUs of the gang, or a fraction of one GPU, for which the speed of a whole GPU is the default.
            accelerator: Accelerator type.
            placement: "consolidated" or "spread".
            partner: Job type of a second gang on the same GPUs; None if the gang runs alone.

        Raises:
            UnknownNameError: The profile has no such job type, accelerator or placement at all.
            MissingThroughputError: The names are known, but this combination was not measured.
        """
        entry = Entry(job_type, num_gpus, accelerator, placement, partner)
        speed = self._speed(entry)
        if speed is None:
            unknowns = self._unknown(entry)
            error = UnknownNameError if unknowns[0][0] else MissingThroughputError
            raise error(*map(self._fault, unknowns))
        return speed

    def pair(
        self, job_type: str, partner: str, num_gpus: float, accelerator: str, placement: str = "consolidated"
    ) -> tuple[float, float]:
        """Return the steps/s of `job_type` and of `partner` while they share the same GPUs; raises as `throughput`."""
        own = self.throughput(job_type, num_gpus, accelerator, placement, partner)
        return own, self.throughput(partner, num_gpus, accelerator, placement, job_type)

    def job_throughput(self, job: Job, accelerator: str, placement: str = "consolidated") -> float:
        """Return the steps/s of the gang of a job without partner; raises as `throughput`."""
        return self.throughput(job.job_type, job.num_gpus, accelerator, placement)

    def nearest_entries(self, entry: Entry, count: int = 5) -> tuple[Entry, ...]:
        """Return the `count` measured entries of the same job type that are nearest to `entry`, nearest first.

        They are compared by partner, placement, accelerator, then gang size.
        """

        def distance(other: Entry) -> tuple[bool, bool, bool, float, float]:
            names = (getattr(other, name) != getattr(entry, name) for name in ("partner", "placement", "accelerator"))
            return *names, abs(other.num_gpus - entry.num_gpus), other.num_gpus

        same = (e for e in self._speeds if e.job_type == entry.job_type and e.partner in (None, entry.partner))
        return tuple(sorted(same, key=distance)[:count])

    def _known(self, field: str) -> tuple[str, ...]:
        return {"accelerator": self.accelerators, "placement": PLACEMENTS}.get(field, self.job_types)

    def _unknown(self, entry: Entry) -> list[Unknown]:
        """Return the unknown names of an entry, or the entry itself if the profile knows all its names."""
        fields = ("job_type", "accelerator", "placement", *(() if entry.partner is None else ("partner",)))
        names: list[Unknown] = [(field, getattr(entry, field)) for field in fields]
        return [each for each in names if each[1] not in self._known(each[0])] or [("", entry)]

    def _fault(self, unknown: Unknown, concerning: str = "", hint: bool = True) -> Fault:
        """Return the fault of one unknown; hint: whether to add the nearest known names or entries, which take long to find."""
        where, (field, value) = f"throughput profile {self.name!r}", unknown
        if isinstance(value, Entry):
            known = ", ".join(near.setting for near in self.nearest_entries(value)) if hint else ""
            problem = f"has no throughput of {value}{concerning}" + f"; nearest known: {known or 'none'}" * hint
        elif value:
            problem = f"{value!r} is missing{concerning}{nearest(value, self._known(field)) if hint else ''}"
        else:
            problem = f"is empty{concerning}, but is required to look up throughputs"
        return Fault(where, field, problem)

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        """Return (N, K) steps/s of N jobs on K accelerators, alone and consolidated; 0 where a job cannot or may not run.

        Raises:
            MissingThroughputError: Throughputs are missing on accelerators that the jobs may use; the error has all of them.
        """
        self._prepare(jobs, accelerators)
        distinct, rows = _distinct(map(Lookup.of, jobs))
        table = _table(distinct, accelerators, lambda key, name: self._speed(Entry(key[0], key[1], name)))
        absent = np.isnan(table)
        if not absent.any():
            return table[rows]
        concerned: dict[Unknown, set[int]] = {}
        for row, column in np.argwhere(absent).tolist():
            for unknown in chain.from_iterable(map(self._unknown, distinct[row].entries([accelerators[column]]))):
                concerned.setdefault(unknown, set()).add(row)
        MissingThroughputError.raise_any(self._missing(concerned, jobs, rows))
        table[absent] = 0.0
        return table[rows]

    def _missing(self, concerned: Mapping[Unknown, set[int]], jobs: Sequence[Job], rows: NDArray[np.intp]) -> list[Fault]:
        """Return a fault per unknown, which names the first job and the number of jobs in the `concerned` rows."""
        _, firsts, counts = np.unique(rows, return_index=True, return_counts=True)
        faults: list[Fault] = []
        said = {""}
        for number, (unknown, those) in enumerate(concerned.items()):
            members = list(those)
            needed = ", needed by " + counted(jobs[firsts[members].min()], counts[members].sum())
            fault = self._fault(unknown, needed, hint=number < SHOWN_FAULTS)
            hint = fault.problem.rpartition(needed)[2]
            if unknown[0] and hint in said:  # the list of known names is given once
                fault = replace(fault, problem=fault.problem.removesuffix(hint))
            said.add(hint)
            faults.append(fault)
        return faults

    def missing(self, jobs: Iterable[Job], accelerators: Sequence[str]) -> dict[Entry, int]:
        """Return {entry: number of jobs} of the gangs, alone and consolidated, that were not measured where jobs may run them.

        Args:
            jobs: The jobs; elastic ones count at each of their gang sizes (`sizes_of`).
            accelerators: Accelerators of the cluster.
        """
        gangs = Counter(Lookup.of(job, size) for job in jobs for size in self.sizes_of(job))
        needed: dict[Entry, int] = {}
        for gang, count in gangs.items():
            for entry in gang.entries(accelerators):
                if self._speed(entry) is None:
                    needed[entry] = needed.get(entry, 0) + count
        return needed

    def sizes_of(self, job: Job) -> tuple[float, ...]:
        """Return the gang sizes at which a job is looked up: its own, or all those that an elastic job requests.

        Of a range, these are the gang sizes in the profile. If it has none, the smallest one that the job allows, if any.
        """
        if not job.is_elastic:
            return (job.num_gpus,)
        try:
            return counts_of(job, self)
        except MissingThroughputError:
            return tuple(job.allowed_counts[:1])

    def accelerator_named(self, name: str) -> str:
        """Return the profile's name for an accelerator, or the given name if it has none."""
        return same_accelerator(name, self.accelerators) or name

    def count_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        """Return `matrix` with NaN for unmeasured throughputs, which elastic jobs do not use."""
        self._prepare(jobs, accelerators)
        distinct, rows = _distinct((job.job_type, job.num_gpus) for job in jobs)
        return _table(distinct, accelerators, lambda key, name: self._speed(Entry(*key, name)))[rows]

    def spread_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (N, K) steps/s of N gangs, alone and spread over more nodes than necessary; NaN where unmeasured.

        Returns None if the profile has no such measurement.
        """
        if not self._knows_spread:
            return None
        distinct, rows = _distinct((job.job_type, job.num_gpus) for job in jobs)
        return _table(distinct, accelerators, lambda key, name: self._speeds.get(Entry(*key, name, "spread")))[rows]

    def pair_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (Q, Q, K) steps/s of gang q while it shares its GPUs with gang r, consolidated.

        NaN where unmeasured and for gangs of different sizes. Returns None if the profile has no such measurement.
        """
        if not self._knows_pairs:
            return None

        def speed(pair: tuple[Job, Job], name: str) -> float | None:
            job, other = pair
            entry = Entry(job.job_type, job.num_gpus, name, partner=other.job_type)
            return self._speeds.get(entry) if job.num_gpus == other.num_gpus else None

        table = _table(list(product(jobs, jobs)), accelerators, speed)
        return table.reshape(len(jobs), len(jobs), len(accelerators))

    def memory_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (N, K) GB of memory that N gangs use on each GPU, NaN where unknown; see `gpu_memory_gb`.

        Returns None if the profile has no memory figures.
        """
        if not self._memory:
            return None
        distinct, rows = _distinct((job.job_type, job.num_gpus) for job in jobs)
        return _table(distinct, accelerators, lambda key, name: self.gpu_memory_gb(*key, name))[rows]

    def gpu_memory_gb(self, job_type: str, num_gpus: float, accelerator: str) -> float | None:
        """Return the memory in GB that a gang uses on each of its GPUs, or None if it is unknown.

        The default for a fraction of a GPU is the figure of a whole GPU. The default for an accelerator is the largest figure of
        the same gang on any accelerator.
        """
        by_accelerator = self._memory.get((job_type, num_gpus), {})
        if num_gpus < 1:
            by_accelerator = self._memory.get((job_type, 1), {}) | by_accelerator
        return by_accelerator.get(accelerator, max(by_accelerator.values(), default=None))

    @cached_property
    def _memory(self) -> dict[tuple[str, float], dict[str, float]]:
        """{(job type, gang size): {accelerator: GB per GPU}}, the larger of both placements."""
        known: dict[tuple[str, float], dict[str, float]] = {}
        for row in self.rows:
            if row.gpu_memory_gb is not None:
                sizes = known.setdefault((row.job_type, row.num_gpus), {})
                sizes[row.accelerator] = max(row.gpu_memory_gb, sizes.get(row.accelerator, 0.0))
        return known

    @cached_property
    def _knows_pairs(self) -> bool:
        return any(row.partner_job_type is not None for row in self.rows)

    @cached_property
    def _knows_spread(self) -> bool:
        return any(row.placement == "spread" for row in self.rows)

    @classmethod
    def builtin(cls, name: str) -> ThroughputProfile:
        """Load a built-in profile. Raises `UnknownNameError` for an unknown name."""
        rows, about = read_builtin(name)
        profile = cls.__new__(cls)
        profile.__dict__.update(name=name, rows=rows, **about)
        return profile

    @classmethod
    def builtin_names(cls) -> tuple[str, ...]:
        """Return the names of the built-in profiles."""
        return builtin_names()

    @classmethod
    def from_file(cls, path: str | Path, name: str | None = None, *, format: str | None = None) -> ThroughputProfile:  # noqa: A002
        """Read a profile from a file.

        Args:
            path: A .csv (see `from_csv`) or .json (see `from_gavel_json`) file, or the folder of tables of Pollux.
            name: Name of the profile; the stem of the file name by default.
            format: A name of `profile_formats`; by default that of the suffix.

        Raises:
            UnknownNameError: There is no such format.
            InputError: The file cannot be read or has faults.
        """
        return cls(_name(path, name), read_as(path, format))

    @classmethod
    def from_csv(cls, path: str | Path, name: str | None = None) -> ThroughputProfile:
        """Read a profile from CSV with columns named as the fields of `Measurement`; an empty cell is the default."""
        return cls(_name(path, name), read_csv(path))

    @classmethod
    def from_gavel_json(cls, path: str | Path, name: str | None = None) -> ThroughputProfile:
        """Read a profile from the throughputs JSON of the published Gavel."""
        return cls(_name(path, name), read_gavel_json(path))

    @classmethod
    def from_matrix(
        cls,
        source: str | Path | ArrayLike,
        *,
        job_ids: Iterable[object] | None = None,
        accelerators: Iterable[object] | None = None,
        name: str | None = None,
    ) -> ThroughputMatrix:
        """Return throughputs by job instead of by job type.

        Args:
            source: A CSV file (column job_id, then one per accelerator) or (N, K) steps/s. An empty cell (None) is missing, 0
                means that the job cannot run there.
            job_ids: N job ids of an array; a DataFrame has them as row labels.
            accelerators: K accelerators of an array; a DataFrame has them as column labels.
            name: Name of the profile.
        """
        if isinstance(source, str | Path):
            return ThroughputMatrix.from_csv(source, name)
        job_ids = labels_of(source) if job_ids is None else job_ids
        accelerators = labels_of(source, 1) if accelerators is None else accelerators
        if job_ids is None or accelerators is None:
            raise InputError("an array of throughputs needs job_ids, one per row, and accelerators, one per column")
        return ThroughputMatrix(name or "matrix", job_ids, accelerators, source)

    def with_estimates(
        self,
        method: str | ThroughputEstimator = "gaussian_process",
        *,
        confidence: Confidence = None,
        accelerators: AcceleratorTable | None = None,
    ) -> EstimatedProfile:
        """Return the profile with estimates for unmeasured throughputs; measured ones do not change.

        Args:
            method: "gaussian_process" (random effects in log space), "additive" (two-way effects), "specs" (specifications of
                accelerators alone), or a `ThroughputEstimator`.
            confidence: The value of an estimate. None: the median; a probability p: the value that the throughput exceeds with
                probability p; "optimistic": one standard deviation above the median, for schedulers that learn.
            accelerators: Specifications; the built-in table by default.

        Raises:
            InputError: The method or the confidence is unknown.
        """
        from gavel_py import EstimatedProfile  # by its public name, since estimates build on profiles

        return EstimatedProfile(self, method, confidence=confidence, accelerators=accelerators)

    def to_csv(self, target: str | Path | TextIO) -> None:
        """Write the measurements as CSV for `from_csv`; the file does not contain the name and description."""
        write_csv(self.rows, target)


def _conversion_problem(found: UnitOf, unit: str, figure: float | None) -> str:
    """Return why throughputs cannot be converted with this figure; empty if they can."""
    if found.unit == unit:
        return ""
    rule = conversion(found.unit, unit)
    if rule is None or (found.condition is not None and unit not in ("requests/s", "tokens/s")):
        return f"its throughputs are in {found}, which cannot be converted to {unit}"
    if unit == "requests/s" and found.condition is None:
        return f"its throughputs are in {found} without a condition, so they are not of serving and have no requests/s"
    if figure is None:
        return f"its throughputs are in {found}; to convert them to {unit}, give the {rule.needed}"
    if not 0 < number_of(figure) < math.inf:
        return f"the {rule.needed} must be a finite number above 0, found {figure!r}"
    return ""


def _name(path: str | Path, name: str | None) -> str:
    return Path(path).stem if name is None else name


def _distinct(keys: Iterable[Key]) -> tuple[list[Key], NDArray[np.intp]]:
    """Return the distinct keys in order of first occurrence, and for each key its index among them."""
    numbers: dict[Key, int] = {}
    rows = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)
    return list(numbers), rows


def _table(keys: Sequence[Key], accelerators: Sequence[str], value: Callable[[Key, str], float | None]) -> Floats:
    """Return (keys, K) values, NaN where `value` is None."""
    table = [[value(key, name) for name in accelerators] for key in keys]
    return np.array(table, dtype=float).reshape(len(keys), len(accelerators))
