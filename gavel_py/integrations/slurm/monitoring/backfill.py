"""What Slurm's own scheduler would have done: a model of its backfill, without priorities, limits and reservations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask

MOST_TESTED = 100
"""Waiting jobs that are considered at a time, as by default in Slurm (bf_max_job_test)."""


class BackfilledJob(NamedTuple):
    """A job: when it arrives, its GPUs on each of some nodes, its time limit, and {GPU type that it may use: its run time}."""

    arrival_seconds: float
    nodes: int
    gpus: int
    limit_seconds: float
    seconds: Mapping[str, float]


class _Timeline:
    """The GPUs that are free on each node from now on, if jobs run until their time limits."""

    def __init__(self, now: float, gpus: Indices, held: Sequence[tuple[float, Indices, int]]) -> None:
        self._times = np.unique([now, *(end for end, _, _ in held)])
        self.free = np.repeat(gpus[:, None], len(self._times), axis=1)
        for end, places, each in held:
            self.free[places, : np.searchsorted(self._times, end)] -= each

    def reserve(self, able: Mask, job: BackfilledJob) -> tuple[float, Indices] | None:
        """Reserve the earliest time at which a job fits, on the first nodes; return it and the nodes, None if it fits nowhere."""
        times, count = self._times, len(self._times)
        full = np.where((self.free >= job.gpus) & able[:, None], count, np.arange(count))
        full_from = np.append(times, np.inf)[np.minimum.accumulate(full[:, ::-1], axis=1)[:, ::-1]]
        fits = full_from >= times + job.limit_seconds
        if not (enough := fits.sum(axis=0) >= job.nodes).any():
            return None
        first = int(enough.argmax())
        begin, places = float(times[first]), np.flatnonzero(fits[:, first])[: job.nodes]
        last = int(np.searchsorted(times, end := begin + job.limit_seconds))
        if last == count or times[last] != end:
            self._times = np.insert(times, last, end)
            self.free = np.insert(self.free, last, self.free[:, last - 1], axis=1)
        self.free[places, first:last] -= job.gpus
        return begin, places


def backfilled(jobs: Sequence[BackfilledJob], nodes: Sequence[tuple[str, int]]) -> Floats:
    """Return (N,) when jobs end if each, in the order of arrival, reserves the earliest time at which it fits until its time limit.

    A job that never fits ends at NaN.

    Args:
        jobs: (N,) the jobs.
        nodes: (GPU type, GPUs) of each node; jobs take the first ones that are free.
    """
    types, gpus = np.array([name for name, _ in nodes]), np.array([count for _, count in nodes], dtype=np.int64)
    ends, events = np.full(len(jobs), np.nan), [job.arrival_seconds for job in jobs]
    heapify(events)
    arriving = sorted(range(len(jobs)), key=lambda i: jobs[i].arrival_seconds)[::-1]
    waiting, running = list[int](), dict[int, tuple[float, Indices, int]]()
    while events:
        now = heappop(events)
        while arriving and jobs[arriving[-1]].arrival_seconds <= now:
            waiting.append(arriving.pop())
        if events and events[0] <= now:
            continue
        running = {i: each for i, each in running.items() if ends[i] > now}
        timeline = _Timeline(now, gpus, list(running.values()))
        for i in waiting[:MOST_TESTED]:
            if not timeline.free[:, 0].any():
                break
            job = jobs[i]
            found = timeline.reserve(np.isin(types, list(job.seconds)), job)
            if found is not None and found[0] <= now:
                seconds = max(job.seconds[types[place]] for place in found[1])
                ends[i] = now + seconds
                running[i] = now + max(seconds, job.limit_seconds), found[1], job.gpus
                heappush(events, now + seconds)
        waiting = [i for i in waiting if i not in running]
    return ends
