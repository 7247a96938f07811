"""Matrices of many jobs from a profile by job type, and the errors for missing throughputs.

The `gather` functions look up each distinct job (type, gang size, allowed accelerators) once. `Catalogue` finds which name or
combination of names a profile lacks, and the nearest entries that it has.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SHOWN_FAULTS, Fault, MissingThroughputError, nearest
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.measurement import PLACEMENTS, Entry

Key = TypeVar("Key", bound=Hashable)


class Unknown(NamedTuple):
    """What a profile lacks: a name, with the field it was looked up in, or an entry whose names are all known (field is empty)."""

    field: str
    value: str | Entry


class Catalogue(NamedTuple):
    """Names and entries of a profile, from which faults for missing throughputs are made."""

    profile: str
    job_types: tuple[str, ...]
    accelerators: tuple[str, ...]
    entries: Iterable[Entry]

    def unknown(self, entry: Entry) -> list[Unknown]:
        """Return the unknown names of `entry`, or the entry itself if the profile knows all its names."""
        wanted = [("job_type", entry.job_type), ("accelerator", entry.accelerator), ("placement", entry.placement)]
        if entry.partner is not None:
            wanted.append(("partner", entry.partner))
        names = [Unknown(field, name) for field, name in wanted if name not in self._known(field)]
        return names or [Unknown("", entry)]

    def fault(self, unknown: Unknown, concerning: str = "", hint: bool = True) -> Fault:
        """Return the fault of one unknown; `hint` adds the nearest known names or entries."""
        where, (field, value), close = f"throughput profile {self.profile!r}", unknown, ""
        if isinstance(value, Entry):
            if hint:
                known = ", ".join(near.setting for near in nearest_entries(self.entries, value))
                close = f"; nearest known: {known or 'none'}"
            return Fault(where, "", f"has no throughput of {value}{concerning}{close}")
        if not value:
            return Fault(where, field, f"is empty{concerning}; it says which throughputs are meant")
        close = nearest(value, self._known(field)) if hint else ""
        return Fault(where, field, f"{value!r} is not in it{concerning}{close}")

    def _known(self, field: str) -> tuple[str, ...]:
        return {"accelerator": self.accelerators, "placement": PLACEMENTS}.get(field, self.job_types)


def nearest_entries(entries: Iterable[Entry], wanted: Entry, count: int = 5) -> tuple[Entry, ...]:
    """Return the nearest entries of the same job type, compared by partner, placement, accelerator, then gang size."""

    def distance(entry: Entry) -> tuple[bool, bool, bool, float, float]:
        return (
            entry.partner != wanted.partner,
            entry.placement != wanted.placement,
            entry.accelerator != wanted.accelerator,
            abs(entry.num_gpus - wanted.num_gpus),
            entry.num_gpus,
        )

    same = (e for e in entries if e.job_type == wanted.job_type and e.partner in (None, wanted.partner))
    return tuple(sorted(same, key=distance)[:count])


def counted(job_id: str, count: int) -> str:
    """Return "job 'a'" or "job 'a' and 2 more" for `count` jobs of which `job_id` is the first."""
    return f"job {job_id!r}" + (f" and {count - 1:,} more" if count > 1 else "")


def may_use(allowed_accelerators: Collection[str] | None, accelerator: str) -> bool:
    """Return whether a job may run on this accelerator; None allows all accelerators."""
    return allowed_accelerators is None or accelerator in allowed_accelerators


def speed_of(speeds: Mapping[Entry, float], entry: Entry) -> float | None:
    """Return the speed of an entry in steps/s, or None if it is unknown.

    An unmeasured fraction of a GPU is as fast as a whole GPU, since a job requests the fraction that it can use.
    """
    speed = speeds.get(entry)
    return speeds.get(entry._replace(num_gpus=1)) if speed is None and entry.num_gpus < 1 else speed


def _distinct(keys: Iterable[Key]) -> tuple[list[Key], NDArray[np.intp]]:
    """Return the distinct keys in order of first occurrence, and for each key its index among them."""
    numbers: dict[Key, int] = {}
    rows = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)
    return list(numbers), rows


def gather(
    speeds: Mapping[Entry, float], catalogue: Catalogue, jobs: Sequence[Job], accelerators: Sequence[str]
) -> NDArray[np.float64]:
    """Return (N, K) steps/s of the jobs running alone and consolidated; see `ThroughputProfile.matrix`."""
    distinct, rows = _distinct((job.job_type, job.num_gpus, job.allowed_accelerators) for job in jobs)
    table = np.zeros((len(distinct), len(accelerators)))
    missing: list[tuple[int, Entry]] = []
    for row, (job_type, num_gpus, allowed) in enumerate(distinct):
        for column, accelerator in enumerate(accelerators):
            entry = Entry(job_type, num_gpus, accelerator)
            speed = speed_of(speeds, entry)
            if speed is not None:
                table[row, column] = speed
            elif may_use(allowed, accelerator):
                missing.append((row, entry))
    if missing:
        raise _error(catalogue, jobs, rows, missing)
    return table[rows]


def gather_spread(speeds: Mapping[Entry, float], jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
    """Return (N, K) steps/s of the jobs running alone and spread, NaN where unmeasured."""
    distinct, rows = _distinct((job.job_type, job.num_gpus) for job in jobs)
    table = [[speeds.get(Entry(*key, name, "spread"), np.nan) for name in accelerators] for key in distinct]
    return np.array(table, dtype=float).reshape(len(distinct), len(accelerators))[rows]


def memory_of(known: Mapping[tuple[str, float], Mapping[str, float]], job_type: str, num_gpus: float) -> Mapping[str, float]:
    """Return {accelerator: GB per GPU} of a gang; a fraction of a GPU uses the figure of a whole GPU where it was not measured."""
    own = known.get((job_type, num_gpus), {})
    return {**known.get((job_type, 1), {}), **own} if num_gpus < 1 else own


def gather_memory(
    known: Mapping[tuple[str, float], Mapping[str, float]], jobs: Sequence[Job], accelerators: Sequence[str]
) -> NDArray[np.float64]:
    """Return (N, K) GB of GPU memory that each job uses per GPU, NaN where unknown; see `ThroughputProfile.gpu_memory_gb`."""
    distinct, rows = _distinct((job.job_type, job.num_gpus) for job in jobs)
    table = np.full((len(distinct), len(accelerators)), np.nan)
    for row, key in enumerate(distinct):
        sizes = memory_of(known, *key)
        largest = max(sizes.values(), default=np.nan)
        table[row] = [sizes.get(accelerator, largest) for accelerator in accelerators]
    return table[rows]


def gather_pairs(speeds: Mapping[Entry, float], jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
    """Return (Q, Q, K) steps/s of job q while it shares all its GPUs with job r, consolidated; NaN where unmeasured."""
    table = [
        [
            [speeds.get(Entry(job.job_type, job.num_gpus, name, partner=other.job_type), np.nan) for name in accelerators]
            if other.num_gpus == job.num_gpus
            else [np.nan] * len(accelerators)
            for other in jobs
        ]
        for job in jobs
    ]
    return np.array(table, dtype=float).reshape(len(jobs), len(jobs), len(accelerators))


def _error(
    catalogue: Catalogue, jobs: Sequence[Job], rows: NDArray[np.intp], missing: Sequence[tuple[int, Entry]]
) -> MissingThroughputError:
    """Return an error with one fault per unknown, which names the first job concerned and the number of jobs."""
    rows_of: dict[Unknown, set[int]] = {}
    for row, entry in missing:
        for unknown in catalogue.unknown(entry):
            rows_of.setdefault(unknown, set()).add(row)
    _, firsts, counts = np.unique(rows, return_index=True, return_counts=True)
    faults = []
    for number, (unknown, concerned) in enumerate(rows_of.items()):
        members = list(concerned)
        concerning = ", needed by " + counted(jobs[firsts[members].min()].job_id, counts[members].sum())
        # The nearest entries are costly to find, and only the first faults are shown.
        faults.append(catalogue.fault(unknown, concerning, hint=number < SHOWN_FAULTS))
    return MissingThroughputError(*faults)
