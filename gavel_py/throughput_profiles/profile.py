"""The throughput profile: steps/s by job type, gang size, accelerator, placement and partner."""

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
from gavel_py.problem.arrays import labels_of
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
    """Measured throughputs (steps/s of the whole gang) under one name; immutable.

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

    Raises:
        InputError: A duplicate entry, or a pair whose two sides contradict each other.

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
        # The dataclass is frozen; only this method and `builtin` set its fields.
        rows = tuple(m.row() for m in kept)
        self.__dict__.update(name=name, rows=rows, description=description, licence=licence, notice=notice, url=url)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        known = f"{len(self.job_types)} job types on {', '.join(self.accelerators) or 'nothing'}"
        return f"ThroughputProfile({self.name!r}: {len(self)} measurements, {known})"

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
        """Return whether `throughput` has a value, which may be 0, for these arguments."""
        return speed_of(self._speeds, Entry(job_type, num_gpus, accelerator, placement, partner)) is not None

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
        speed = speed_of(self._speeds, entry)
        if speed is None:
            unknowns = self._catalogue.unknown(entry)
            error = UnknownNameError if unknowns[0].field else MissingThroughputError
            raise error(*(self._catalogue.fault(unknown) for unknown in unknowns))
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
        """Return the `count` measured entries of the same job type that are nearest to `entry`, nearest first."""
        return nearest_entries(self._speeds, entry, count)

    def matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
        """Return (N, K) steps/s of N jobs on K accelerators, alone and consolidated; 0 where a job cannot or may not run.

        Raises:
            MissingThroughputError: Throughputs are missing on accelerators that the jobs may use; the error has all of them.
        """
        return gather(self._speeds, self._catalogue, jobs, accelerators)

    def spread_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (N, K) steps/s of N gangs, alone and spread over more nodes than necessary; NaN where unmeasured.

        Returns None if the profile has no such measurement.
        """
        return gather_spread(self._speeds, jobs, accelerators) if self._knows_spread else None

    def pair_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (Q, Q, K) steps/s of gang q while it shares its GPUs with gang r, consolidated.

        NaN where unmeasured and for gangs of different sizes. Returns None if the profile has no such measurement.
        """
        return gather_pairs(self._speeds, jobs, accelerators) if self._knows_pairs else None

    def memory_matrix(self, jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64] | None:
        """Return (N, K) GB of memory that N gangs use on each GPU, NaN where unknown; see `gpu_memory_gb`.

        Returns None if the profile has no memory figures.
        """
        return gather_memory(self._memory, jobs, accelerators) if self._memory else None

    def gpu_memory_gb(self, job_type: str, num_gpus: float, accelerator: str) -> float | None:
        """Return the memory in GB that a gang uses on each of its GPUs, or None if it is unknown.

        The default for a fraction of a GPU is the figure of a whole GPU. The default for an accelerator is the largest figure of
        the same gang on any accelerator.
        """
        by_accelerator = memory_of(self._memory, job_type, num_gpus)
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
    def from_file(cls, path: str | Path, name: str | None = None) -> ThroughputProfile:
        """Read a profile from a file.

        Args:
            path: A .csv (see `from_csv`) or .json (see `from_gavel_json`) file.
            name: Name of the profile; the stem of the file name by default.

        Raises:
            InputError: The file cannot be read or has faults.
        """
        return cls(_name(path, name), READERS[reading.suffix_of(path, READERS)](path))

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

    def to_csv(self, target: str | Path | TextIO) -> None:
        """Write the measurements as CSV for `from_csv`; the file does not hold name and description."""
        write_csv(self.rows, target)


def _name(path: str | Path, name: str | None) -> str:
    return Path(path).stem if name is None else name
