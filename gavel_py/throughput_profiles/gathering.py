"""From a profile by job type to the rows of many jobs: each kind of job is looked up once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SHOWN_FAULTS, MissingThroughputError
from gavel_py.problem.job import Job
from gavel_py.throughput_profiles.measurement import Entry
from gavel_py.throughput_profiles.missing import Catalogue, Subject, counted, may_use

__all__ = ["gather", "gather_memory", "gather_pairs", "gather_spread", "memory_of", "speed_of"]


class Kind(NamedTuple):
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
    numbers: dict[Kind, int] = {}
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


def _kind(job: Job) -> Kind:
    return Kind(job.job_type, job.num_gpus, job.allowed_accelerators)


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
