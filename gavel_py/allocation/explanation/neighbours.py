"""Comparisons of a job: with holders of GPUs that it could use, with a cluster of one more GPU, and with jobs that share its GPUs.

`holders_of` returns the competing jobs. `one_more_of_each` solves the problem with one more GPU of each type and unchanged
normalisers. `partners_of` returns the jobs that share GPUs with a job, and `together` why two given jobs do or do not share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gavel_py.allocation.explanation.bindings import closed_by, duals_of_job, is_certain
from gavel_py.allocation.explanation.duals import net_gains
from gavel_py.allocation.explanation.records import Holder, OneMoreGpu, Others, Partner, Together
from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import GavelError
from gavel_py.problem.arrays import Floats, Mask, plain_size
from gavel_py.problem.pair_throughputs import PairSpeeds
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import CLEAR, INTERIOR_TOLERANCE

MAX_NAMED = 5
"""Number of holders that are listed by name."""


def holders_of(problem: AllocationProblem, fractions: Floats, i: int, relevant: Mask) -> tuple[tuple[Holder, ...], Others]:
    """Return the jobs other than i that hold the most relevant GPUs, and the sum over all further ones.

    fractions: (N, K); relevant: (N, K) where a job's time is of use to job i.
    """
    held = np.where(relevant, problem.num_gpus[:, None] * fractions, 0.0)
    held[i] = 0.0
    totals = held.sum(axis=1)
    holders = np.flatnonzero(totals > INTERIOR_TOLERANCE)
    order = holders[np.argsort(-totals[holders], kind="stable")]
    types = np.flatnonzero(relevant.any(axis=0)).tolist()
    named = tuple(Holder(problem.job_ids[k], _by_type(problem, types, held[k])) for k in order[:MAX_NAMED].tolist())
    rest = held.sum(axis=0) - held[order[:MAX_NAMED]].sum(axis=0)
    return named, Others(max(0, len(order) - MAX_NAMED), _by_type(problem, types, np.maximum(0.0, rest)))


def _by_type(problem: AllocationProblem, types: list[int], gpus: Floats) -> dict[str, float]:
    return {problem.accelerator_types[j]: float(gpus[j]) for j in types}


def one_more_of_each(problem: AllocationProblem, now: Allocation, solver: Solver, i: int) -> Iterator[OneMoreGpu]:
    """Yield the change for job i and the objective with one more GPU of each type, normalisers unchanged."""
    for j, name in enumerate(problem.accelerator_types):
        closed, more = _closed(problem, now, i, j), problem.capacities + (np.arange(len(problem.capacities)) == j)
        try:
            then = solver.solve(problem.with_capacities(more))
        except GavelError as error:
            yield OneMoreGpu(name, None, None, None, None, certain=False, closed=closed, failed=str(error))
            continue
        before, after = now.objective_value, then.objective_value
        yield OneMoreGpu(
            accelerator=name,
            throughput=float(then.throughputs[i]),
            throughput_change=float(then.throughputs[i] - now.throughputs[i]),
            objective=after,
            objective_change=None if before is None or after is None else after - before,
            certain=is_certain(then, i),
            closed=closed,
        )


def _closed(problem: AllocationProblem, now: Allocation, i: int, j: int) -> str:
    """Return why job i could not run on type j even with one more GPU of it; empty if it can run there."""
    assert now.evidence is not None  # noqa: S101
    size = plain_size(problem.num_gpus[i])
    gang = f"its gang of {size}" if size >= 1 else f"its {size:g} of a GPU"
    if now.evidence.base.runnable[i, j]:
        return ""
    if problem.runnable[i, j]:
        return f"{closed_by(now.evidence, i).get(j, 'a constraint')} keeps it off"
    if problem.throughputs[i, j] == 0:
        return "it cannot run there"
    if problem.capacities[j] < size <= problem.capacities[j] + 1:
        return f"{gang} does not fit there now, and numbers of GPUs do not show whether nodes would then have room for it"
    return f"{gang} cannot be placed there" if size > problem.capacities[j] else "it may not run there, or no nodes or GPUs hold it"


def partners_of(allocation: Allocation, i: int) -> tuple[Partner, ...]:
    """Return the jobs that share GPUs with job i, in descending order of shared time."""
    pairs = allocation.pairs
    if pairs is None:
        return ()
    own = np.flatnonzero((pairs.first == i) | (pairs.second == i))
    own = own[np.argsort(-pairs.times[own], kind="stable")]
    found = pairs.at(own)
    others = np.where(found.first == i, found.second, found.first).tolist()
    rows = zip(others, found.types.tolist(), found.times.tolist(), found.gains.tolist(), strict=True)
    return tuple(Partner(allocation.job_ids[k], allocation.accelerator_types[j], time, gain) for k, j, time, gain in rows)


def held_gpus(allocation: Allocation) -> Floats:
    """Return (N, K) the time of each job on each type; on shared GPUs it counts half, on n GPUs of an elastic job n times."""
    times = allocation.time_fractions
    if allocation.counts is not None:
        elastic, held = allocation.counts.by_job(times.shape)
        return times - elastic + held
    return times if allocation.pairs is None else times - allocation.pairs.by_job(*times.shape) / 2


def together(problem: AllocationProblem, allocation: Allocation, i: int, k: int) -> Iterator[Together]:
    """Yield whether jobs i and k share GPUs, and if not, why: once for all types, or for each type."""
    pairs = problem.pairs
    assert pairs is not None  # noqa: S101
    one, other = problem.job_ids[i], problem.job_ids[k]
    out = next((job for job in (one, other) if job in allocation.excluded), None)
    gangs = [plain_size(size) for size in problem.num_gpus[[i, k]].tolist()]
    if out is not None:
        yield Together(None, "excluded", None, None, f"{out} gets no time: {allocation.excluded[out]}")
    elif min(gangs) < 1:
        text = f"pairs are of whole GPUs, and {one if gangs[0] < 1 else other} asks for {min(gangs):g} of one"
        yield Together(None, "gangs", None, None, text)
    elif gangs[0] != gangs[1]:
        size = "1 GPU" if gangs[0] == 1 else f"{gangs[0]} GPUs"
        text = f"its gang has {size} and that of {other} {gangs[1]}, and only equal gangs share"
        yield Together(None, "gangs", None, None, text)
    elif min(pairs.kinds[[i, k]]) < 0:
        yield Together(None, "unknown", None, None, "nothing is known of how fast the two are beside other jobs")
    else:
        both = _Pair(problem, allocation, pairs, i, k)
        for j, name in enumerate(problem.accelerator_types):
            kind, gain, price, text = both.on_type(j)
            yield Together(name, kind, gain, price, f"{name}: {text}")


@dataclass(frozen=True, eq=False)
class _Pair:
    """Jobs i and k, with gangs of the same size and known pair throughputs."""

    problem: AllocationProblem
    allocation: Allocation
    pairs: PairSpeeds
    i: int
    k: int

    def on_type(self, j: int) -> tuple[str, float | None, float | None, str]:
        """Return kind, gain, price and text of `Together` for one accelerator type: those of the first case that applies."""
        pairs, (a, b) = self.pairs, self.pairs.kinds[[self.i, self.k]].tolist()
        evidence = self.allocation.evidence
        runnable = (self.problem if evidence is None else evidence.base).runnable
        unable = [self.problem.job_ids[row] for row in (self.i, self.k) if not runnable[row, j]]
        if unable:
            return "place", None, None, f"{' and '.join(unable)} cannot run there"
        if not pairs.divide_alike[a, b]:
            return "place", None, None, "they need different numbers of GPUs on each node"
        if pairs.fits is not None and not pairs.fits[a, b, j]:
            return "memory", None, None, "together they take more memory than a GPU there has"
        if min(pairs.speeds[a, b, j], pairs.speeds[b, a, j]) <= 0:
            text = "no throughput of the two together was measured, or one of them cannot run beside the other"
            return "unmeasured", None, None, text
        gain = float(pairs.gains[a, b, j])
        times = f"{gain:.3g} times what one does alone"
        if not pairs.useful[a, b, j]:
            reason = "in turns they do as much" if gain <= 1 else f"{pairs.min_gain:g} is the least gain that was asked for"
            return "no gain", gain, None, f"together they do {times}, and {reason}"
        with_other, with_class = self._shared_times(j)
        if with_other is not None:
            return "shares", gain, None, f"they share for {with_other:.1%} of the time, and do {times}"
        if with_class is not None:
            others = f"other jobs of the kind of {self.problem.job_ids[self.k]}"
            return "others", gain, None, f"it shares for {with_class:.1%} of the time with {others}, which is just as good"
        loss = self._loss(a, b, j)
        if loss is None:
            return "price", gain, None, f"they would gain ({times}), and the objective asks for something else"
        if loss <= 0:
            return "as good", gain, 0.0, f"they would gain ({times}), and the objective gains nothing from it"
        text = f"they would gain ({times}), and their time and GPUs are worth more otherwise: "
        return "price", gain, loss, text + f"the objective would get worse by {loss:.4g} per unit of time, at least"

    def _shared_times(self, j: int) -> tuple[float | None, float | None]:
        """Return the time for which job i shares GPUs of type j with job k, and with its pair class; None if it does not."""
        found, classes = self.allocation.pairs, self.pairs.kinds
        assert found is not None  # noqa: S101
        here = found.types == j
        exact = here & (found.first == min(self.i, self.k)) & (found.second == max(self.i, self.k))
        partners = np.where(found.first == self.i, found.second, found.first)
        similar = here & ((found.first == self.i) | (found.second == self.i)) & (classes[partners] == classes[self.k])
        with_other, with_class = (float(found.times[rows].sum()) if rows.any() else None for rows in (exact, similar))
        return with_other, with_class

    def _loss(self, a: int, b: int, j: int) -> float | None:
        """Return by how much the objective gets worse, at the dual prices, per unit of time in the columns of pair classes a and b.

        None if the proof does not determine it.
        """
        evidence = self.allocation.evidence
        if evidence is None or evidence.certificate is None:
            return None
        duals, fractions = duals_of_job(self.allocation, evidence.certificate, self.i)
        gains = net_gains(duals, fractions) if duals.is_main else None
        columns = None if gains is None else evidence.columns.columns_for(a, b, j)
        if gains is None or columns is None:
            return None
        rows = duals.jobs.index[np.searchsorted(duals.jobs.jobs, [self.i, self.k])]
        loss = -float(gains[rows, columns].sum())
        return loss if loss > CLEAR * float(np.abs(gains[rows]).max()) else 0.0
