"""The throughput profile: how fast each job type runs, by gang size, accelerator, placement and partner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gavel_py.errors import Fault, InputError, MissingThroughputError, UnknownNameError
from gavel_py.io import reading
from gavel_py.problem.array_validation import labels_of
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.files import READERS, builtin_names, read_builtin, read_csv, read_gavel_json, write_csv
from gavel_py.throughput_profiles.lookup import (
    Catalogue,
    gather,
    gather_memory,
    gather_pairs,
    gather_spread,
    memory_of,
    nearest_entries,
    speed_of,
)
from gavel_py.throughput_profiles.matrix import ThroughputMatrix
from gavel_py.throughput_profiles.measurement import Entry, Measurement, Row, collect


@dataclass(frozen=True, init=False, repr=False)
class ThroughputProfile:
    """Measured speeds (steps/s of the whole gang) under one name; immutable.

    A pair may be given from either side and is kept once. Zero means "cannot run there"; what was never measured is missing,
    and asking for it raises `MissingThroughputError`. Raises `InputError` for an entry that stands twice or a pair whose two
    sides contradict each other.

    >>> ThroughputProfile.builtin("gavel-osdi20").throughput("ResNet-50 (batch size 64)", 1, "v100")
    4.395
    """

    name: str
    rows: tuple[Row, ...]
    description: str
    licence: str
    notice: str
    url: str

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
        if not name or not name.isprintable():
            faults.insert(0, Fault("", "name", f"must be printable and not empty, found {name!r}"))
        InputError.raise_any([Fault(f"throughput profile {name!r}, {f.where}".rstrip(", "), f.field, f.problem) for f in faults])
        # The class is frozen for its users; only this and `builtin` fill it.
        rows = tuple(m.row() for m in kept)
        self.__dict__.update(name=name, rows=rows, description=description, licence=licence, notice=notice, url=url)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        known = f"{len(self.job_types)} job types on {', '.join(self.accelerators) or 'nothing'}"
        return f"ThroughputProfile({self.name!r}: {len(self)} measurements, {known})"

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements, in the order given; each pair once, its two sides in alphabetical order."""
        return tuple(Measurement(**row._asdict()) for row in self.rows)

    @cached_property
    def accelerators(self) -> tuple[str, ...]:
        """The accelerators, in the order of their first measurement."""
        return tuple(dict.fromkeys(row.accelerator for row in self.rows))

    @cached_property
    def job_types(self) -> tuple[str, ...]:
        """The job types, in the order of their first measurement; partners count too."""
        return tuple(dict.fromkeys(entry.job_type for entry in self._speeds))

    @cached_property
    def gang_sizes(self) -> tuple[float, ...]:
        """The gang sizes measured, in GPUs, smallest first; fractions of a GPU come before whole ones."""
        return tuple(sorted({row.num_gpus for row in self.rows}))

    @cached_property
    def _speeds(self) -> dict[Entry, float]:
        speeds: dict[Entry, float] = {}
        for job_type, num_gpus, accelerator, placement, own, partner, others, *_ in self.rows:
            speeds[Entry(job_type, num_gpus, accelerator, placement, partner)] = own
            if partner is not None and others is not None:
                speeds[Entry(partner, num_gpus, accelerator, placement, job_type)] = others
        return speeds

    @property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self.name, self.job_types, self.accelerators, self._speeds)

    def has(
        self, job_type: str, num_gpus: float, accelerator: str, placement: str = "consolidated", partner: str | None = None
    ) -> bool:
        """Say whether `throughput` knows this, be it zero."""
        return speed_of(self._speeds, Entry(job_type, num_gpus, accelerator, placement, partner)) is not None

    def throughput(
        self, job_type: str, num_gpus: float, accelerator: str, placement: str = "consolidated", partner: str | None = None
    ) -> float:
        """Return the steps/s of a whole gang; with a `partner`, its own steps/s while the two share the same GPUs.

        A job with a fraction of a GPU has the speed measured with that fraction, or else that of one GPU.

        Raises `UnknownNameError` for a name that the profile does not know at all, `MissingThroughputError` when all are known
        but this combination was not measured.
        """
        entry = Entry(job_type, num_gpus, accelerator, placement, partner)
        speed = speed_of(self._speeds, entry)
        if speed is None:
            raise self._error(entry)
        return speed

    def _error(self, entry: Entry) -> InputError:
        unknown = self._catalogue.unknown(entry)
        error = UnknownNameError if unknown[0].field else MissingThroughputError
        return error(*(self._catalogue.fault(subject) for subject in unknown))

    def pair(
        self, job_type: str, partner: str, num_gpus: float, accelerator: str, placement: str = "consolidated"
    ) -> tuple[float, float]:
        """Return the steps/s of `job_type` and of `partner` while they share the same GPUs; errors as `throughput`."""
        own = self.throughput(job_type, num_gpus, accelerator, placement, partner)
        return own, self.throughput(partner, num_gpus, accelerator, placement, job_type)

    def job_throughput(self, job: Job, accelerator: str, placement: str = "consolidated") -> float:
        """Return the steps/s of the job's gang running alone, or with its fraction of a GPU; errors as `throughput`."""
        return self.throughput(job.job_type, job.num_gpus, accelerator, placement)

    def nearest_entries(self, entry: Entry, count: int = 5) -> tuple[Entry, ...]:
        """Return the measured entries of the same job type that come nearest to `entry`, nearest first."""
        return nearest_entries(self._speeds, entry, count)

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        """Return (N, K) steps/s of N jobs running alone and consolidated on K accelerators; 0 = cannot run there.

        What is missing on an accelerator that the job may not use counts as 0. Raises one `MissingThroughputError` with all that
        is missing otherwise.
        """
        return gather(self._speeds, self._catalogue, jobs, accelerators)

    def spread_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (N, K) steps/s of N gangs running alone on more nodes than they need, NaN where that was not measured.

        None for a profile without any such measurement.
        """
        return gather_spread(self._speeds, jobs, accelerators) if self._knows_spread else None

    def pair_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (Q, Q, K) steps/s of the first of two of Q gangs while both share the same GPUs, consolidated.

        NaN where that was not measured, and for gangs of different sizes. None for a profile without any such measurement.
        """
        return gather_pairs(self._speeds, jobs, accelerators) if self._knows_pairs else None

    def memory_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (N, K) GB that N gangs take of each of their GPUs, NaN where that is not known; see `gpu_memory_gb`.

        None for a profile that knows nothing of memory.
        """
        return gather_memory(self._memory, jobs, accelerators) if self._memory else None

    def gpu_memory_gb(self, job_type: str, num_gpus: float, accelerator: str) -> float | None:
        """Return what a gang takes of the memory of each of its GPUs, GB, None where that is not known.

        A job with a fraction of a GPU takes what was measured with that fraction, or else what it takes with one GPU.
        Where it was not measured on this accelerator, it is the most that the same gang takes on any other.
        """
        by_accelerator = memory_of(self._memory, (job_type, num_gpus))
        return by_accelerator.get(accelerator, max(by_accelerator.values(), default=None))

    @cached_property
    def _memory(self) -> dict[tuple[str, float], dict[str, float]]:
        """By job type and gang size, then by accelerator: the most of both placements."""
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
        """Load a profile that comes with gavel_py; raises `UnknownNameError`."""
        rows, about = read_builtin(name)
        profile = cls.__new__(cls)
        profile.__dict__.update(name=name, rows=rows, **about)
        return profile

    @classmethod
    def builtin_names(cls) -> tuple[str, ...]:
        """The names that `builtin` knows."""
        return builtin_names()

    @classmethod
    def from_file(cls, path: str | Path, name: str | None = None) -> ThroughputProfile:
        """Read a profile from our .csv or Gavel's .json, told apart by the file's suffix; named as the file unless said."""
        return cls(_name(path, name), READERS[reading.suffix_of(path, READERS)](path))

    @classmethod
    def from_csv(cls, path: str | Path, name: str | None = None) -> ThroughputProfile:
        """Read a profile from CSV: columns named as the fields of `Measurement`; an empty cell means the default."""
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
        """Return throughputs known job by job, from a CSV file (job_id, then a column per accelerator) or an (N, K) array.

        An array needs `job_ids` (N) and `accelerators` (K), which a DataFrame has as labels of its rows and columns. An empty cell
        (None) is missing, 0 = cannot run there.
        """
        if isinstance(source, str | Path):
            return ThroughputMatrix.from_csv(source, name)
        job_ids = labels_of(source) if job_ids is None else job_ids
        accelerators = labels_of(source, 1) if accelerators is None else accelerators
        if job_ids is None or accelerators is None:
            raise InputError("an array of throughputs needs job_ids, one per row, and accelerators, one per column")
        return ThroughputMatrix(name or "matrix", job_ids, accelerators, source)

    def to_csv(self, target: str | Path | TextIO) -> None:
        """Write the measurements as CSV that `from_csv` reads; name and description are not part of the file."""
        write_csv(self.rows, target)


def _name(path: str | Path, name: str | None) -> str:
    return Path(path).stem if name is None else name
