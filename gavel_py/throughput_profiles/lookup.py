"""From a profile by job type to the rows of many jobs, and what to say when a throughput is missing.

`gather` and its siblings look up each kind of job once. `Catalogue` says what exactly is not known, and what comes nearest to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SHOWN_FAULTS, Fault, MissingThroughputError, nearest
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.measurement import PLACEMENTS, Entry


class Subject(NamedTuple):
    """One thing that a profile does not know: a name (`field` says of what), or a combination of known names."""

    field: str
    value: str | Entry


class Catalogue(NamedTuple):
    """What a profile knows."""

    profile: str
    job_types: tuple[str, ...]
    accelerators: tuple[str, ...]
    entries: Iterable[Entry]

    def unknown(self, entry: Entry) -> list[Subject]:
        """Return the names in `entry` that the profile does not know at all, or else the entry itself."""
        wanted = [("job_type", entry.job_type), ("accelerator", entry.accelerator), ("placement", entry.placement)]
        if entry.partner is not None:
            wanted.append(("partner", entry.partner))
        names = [Subject(field, name) for field, name in wanted if name not in self._known(field)]
        return names or [Subject("", entry)]

    def fault(self, subject: Subject, concerning: str = "", hint: bool = True) -> Fault:
        """Return the fault of one unknown; `hint` adds what comes nearest."""
        where = f"throughput profile {self.profile!r}"
        if isinstance(subject.value, Entry):
            close = self._close(subject.value) if hint else ""
            return Fault(where, "", f"has no throughput of {subject.value}{concerning}{close}")
        if not subject.value:
            return Fault(where, subject.field, f"is empty{concerning}; it says which throughputs are meant")
        close = nearest(subject.value, self._known(subject.field)) if hint else ""
        return Fault(where, subject.field, f"{subject.value!r} is not in it{concerning}{close}")

    def _known(self, field: str) -> tuple[str, ...]:
        return {"accelerator": self.accelerators, "placement": PLACEMENTS}.get(field, self.job_types)

    def _close(self, entry: Entry) -> str:
        known = ", ".join(near.setting for near in nearest_entries(self.entries, entry))
        return f"; nearest known: {known or 'none'}"


def nearest_entries(entries: Iterable[Entry], wanted: Entry, count: int = 5) -> tuple[Entry, ...]:
    """Return the entries of the same job type that come nearest: same pair, placement, accelerator, then gang size."""

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
    """Return the words for `count` jobs of which `job_id` is the first."""
    return f"job {job_id!r}" + (f" and {count - 1:,} more" if count > 1 else "")


def may_use(allowed_accelerators: Collection[str] | None, accelerator: str) -> bool:
    """Say whether a job may run on this accelerator; None allows all."""
    return allowed_accelerators is None or accelerator in allowed_accelerators


class RowKey(NamedTuple):
    """All that decides a job's row."""

    job_type: str
    num_gpus: float
    allowed: tuple[str, ...] | None


def speed_of(speeds: Mapping[Entry, float], entry: Entry) -> float | None:
    """Return the speed, None where it is not known. A job with a fraction of a GPU that was not measured with it is as fast as one
    that has the GPU alone: it asks for what it can use of it.
    """
    speed = speeds.get(entry)
    return speeds.get(entry._replace(num_gpus=1)) if speed is None and entry.num_gpus < 1 else speed


def gather(
    speeds: Mapping[Entry, float], catalogue: Catalogue, jobs: Sequence[Job], accelerators: Sequence[str]
) -> NDArray[np.float64]:
    """Return (N, K) steps/s of the jobs running alone and consolidated; see `ThroughputProfile.matrix`."""
    numbers: dict[RowKey, int] = {}
    rows = np.array([numbers.setdefault(_kind(job), len(numbers)) for job in jobs], dtype=np.intp)
    kinds = list(numbers)
    table = np.zeros((len(kinds), len(accelerators)))
    missing: list[tuple[int, Entry]] = []
    for row, kind in enumerate(kinds):
        for column, accelerator in enumerate(accelerators):
            entry = Entry(kind.job_type, kind.num_gpus, accelerator)
            speed = speed_of(speeds, entry)
            if speed is not None:
                table[row, column] = speed
            elif may_use(kind.allowed, accelerator):
                missing.append((row, entry))
    if missing:
        raise _error(catalogue, jobs, rows, missing)
    return table[rows]


def gather_spread(speeds: Mapping[Entry, float], jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
    """Return (N, K) steps/s of the jobs running alone and spread, NaN where that was not measured."""
    numbers: dict[tuple[str, float], int] = {}
    rows = [numbers.setdefault((job.job_type, job.num_gpus), len(numbers)) for job in jobs]
    table = [[speeds.get(Entry(*kind, name, "spread"), np.nan) for name in accelerators] for kind in numbers]
    return np.array(table, dtype=float).reshape(len(numbers), len(accelerators))[rows]


def memory_of(known: Mapping[tuple[str, float], Mapping[str, float]], kind: tuple[str, float]) -> Mapping[str, float]:
    """Return what is known of a job type and gang size by accelerator; for a fraction of a GPU, or else of one GPU."""
    own = known.get(kind, {})
    return {**known.get((kind[0], 1), {}), **own} if kind[1] < 1 else own


def gather_memory(
    known: Mapping[tuple[str, float], Mapping[str, float]], jobs: Sequence[Job], accelerators: Sequence[str]
) -> NDArray[np.float64]:
    """Return (N, K) GB that each job takes of each of its GPUs, NaN where nobody knows; see `ThroughputProfile.gpu_memory_gb`."""
    numbers: dict[tuple[str, float], int] = {}
    rows = [numbers.setdefault((job.job_type, job.num_gpus), len(numbers)) for job in jobs]
    table = np.full((len(numbers), len(accelerators)), np.nan)
    for row, kind in enumerate(numbers):
        sizes = memory_of(known, kind)
        most = max(sizes.values(), default=np.nan)
        table[row] = [sizes.get(accelerator, most) for accelerator in accelerators]
    return table[rows]


def gather_pairs(speeds: Mapping[Entry, float], jobs: Sequence[Job], accelerators: Sequence[str]) -> NDArray[np.float64]:
    """Return (Q, Q, K) steps/s of each job sharing all its GPUs with each other, consolidated, NaN where that was not measured."""
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


def _kind(job: Job) -> RowKey:
    return RowKey(job.job_type, job.num_gpus, job.allowed_accelerators)


def _error(
    catalogue: Catalogue, jobs: Sequence[Job], rows: NDArray[np.intp], missing: Sequence[tuple[int, Entry]]
) -> MissingThroughputError:
    """Name each unknown once, with the first job and the number of jobs that it concerns."""
    concerned: dict[Subject, set[int]] = {}
    for row, entry in missing:
        for subject in catalogue.unknown(entry):
            concerned.setdefault(subject, set()).add(row)
    _, firsts, counts = np.unique(rows, return_index=True, return_counts=True)
    faults = []
    for number, (subject, kinds) in enumerate(concerned.items()):
        members = list(kinds)
        concerning = ", needed by " + counted(jobs[firsts[members].min()].job_id, counts[members].sum())
        # What comes nearest is costly to find and is not shown beyond the first faults.
        faults.append(catalogue.fault(subject, concerning, hint=number < SHOWN_FAULTS))
    return MissingThroughputError(*faults)
