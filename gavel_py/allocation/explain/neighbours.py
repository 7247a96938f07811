"""A job beside others and beside another cluster: jobs that hold GPUs it could use, jobs it shares GPUs with, and one GPU more.

`holders_of`: the jobs that it competes with; `one_more_of_each`: the problem solved again with one more GPU of each type, with the
normalisers as they are; `partners_of` and `together`: with which jobs it shares GPUs, and why two given jobs do or do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gavel_py.allocation.explain.bindings import closed_by, duals_of_job, is_certain
from gavel_py.allocation.explain.duals import net_gains
from gavel_py.allocation.explain.records import Holder, OneMoreGpu, Others, Partner, Together
from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import GavelError
from gavel_py.optimization.formulation.colocation import PairColumns
from gavel_py.problem.arrays import Floats, Mask, plain_size
from gavel_py.problem.pair_throughputs import PairSpeeds
from gavel_py.problem.problem import AllocationProblem

MOST_NAMED = 5
"""Holders that are told by name."""

SOME = 1e-5
"""A holding below this, in GPUs, does not make a job one of the holders."""


def holders_of(problem: AllocationProblem, fractions: Floats, i: int, relevant: Mask) -> tuple[tuple[Holder, ...], Others]:
    """Return the jobs besides i that hold the most GPUs where it matters, and all others together.

    fractions: (N, K); relevant: (N, K) where a job's time is what job i could use.
    """
    held = np.where(relevant, problem.num_gpus[:, None] * fractions, 0.0)
    held[i] = 0.0
    totals = held.sum(axis=1)
    there = np.flatnonzero(totals > SOME)
    order = there[np.argsort(-totals[there], kind="stable")]
    types = np.flatnonzero(relevant.any(axis=0)).tolist()
    named = tuple(Holder(problem.job_ids[k], _by_type(problem, types, held[k])) for k in order[:MOST_NAMED].tolist())
    rest = held.sum(axis=0) - held[order[:MOST_NAMED]].sum(axis=0)
    return named, Others(max(0, len(order) - MOST_NAMED), _by_type(problem, types, np.maximum(0.0, rest)))


def _by_type(problem: AllocationProblem, types: list[int], gpus: Floats) -> dict[str, float]:
    return {problem.accelerator_types[j]: float(gpus[j]) for j in types}


def one_more_of_each(problem: AllocationProblem, now: Allocation, solver: Solver, i: int) -> Iterator[OneMoreGpu]:
    """Yield what job i and the objective would get with one more GPU of each type, normalisers as they are."""
    for j, name in enumerate(problem.accelerator_types):
        closed = _closed(problem, now, i, j)
        try:
            then = solver.solve(problem.with_capacities(problem.capacities + (np.arange(len(problem.capacities)) == j)))
        except GavelError as error:
            yield OneMoreGpu(name, None, None, None, None, certain=False, closed=closed, failed=str(error))
        else:
            yield _compared(now, then, i, name, closed)


def _compared(now: Allocation, then: Allocation, i: int, name: str, closed: str) -> OneMoreGpu:
    before, after = now.objective_value, then.objective_value
    assert then.evidence is not None  # noqa: S101
    return OneMoreGpu(
        accelerator=name,
        throughput=float(then.throughputs[i]),
        throughput_change=float(then.throughputs[i] - now.throughputs[i]),
        objective=after,
        objective_change=None if before is None or after is None else after - before,
        certain=is_certain(then, then.evidence, i),
        closed=closed,
    )


def _closed(problem: AllocationProblem, now: Allocation, i: int, j: int) -> str:
    """Why job i cannot run on type j, with one GPU more of it either; empty where it can."""
    assert now.evidence is not None  # noqa: S101
    size = plain_size(problem.num_gpus[i])
    gang = f"its gang of {size}" if size >= 1 else f"its {size:g} of a GPU"
    if now.evidence.asked.runnable[i, j]:
        return ""
    if problem.runnable[i, j]:
        return f"{closed_by(now.evidence, i).get(j, 'a constraint')} keeps it off"
    if problem.throughputs[i, j] == 0:
        return "it cannot run there"
    if problem.capacities[j] < size <= problem.capacities[j] + 1:
        return f"{gang} does not fit there now, and whether nodes would hold it then, a count does not tell"
    return f"{gang} cannot be placed there" if size > problem.capacities[j] else "it may not run there, or no nodes or GPUs hold it"


SMALL = 1e-7
"""Of what the dearest columns of both lose: less is nothing."""


def partners_of(allocation: Allocation, i: int) -> tuple[Partner, ...]:
    """Return who shares GPUs with job i, the longest first."""
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
    """Return (N, K) the time of each job on each type, of which it counts half while it shares its GPUs."""
    times = allocation.time_fractions
    return times if allocation.pairs is None else times - allocation.pairs.by_job(*times.shape) / 2


def together(problem: AllocationProblem, allocation: Allocation, i: int, k: int) -> Iterator[Together]:
    """Yield whether jobs i and k share GPUs, and if not, why, type by type."""
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
        both = _Both(problem, allocation, pairs, i, k)
        yield from (both.on(j) for j in range(len(problem.capacities)))


@dataclass(frozen=True, eq=False)
class _Both:
    """Two jobs of equal gangs whose kinds are known."""

    problem: AllocationProblem
    allocation: Allocation
    pairs: PairSpeeds
    i: int
    k: int

    def on(self, j: int) -> Together:
        """What there is to say of one type."""
        name, kinds = self.problem.accelerator_types[j], self.pairs.kinds[[self.i, self.k]].tolist()
        able = [bool(self._asked.runnable[row, j]) for row in (self.i, self.k)]
        speeds = self.pairs.speeds[kinds[0], kinds[1], j], self.pairs.speeds[kinds[1], kinds[0], j]
        if not all(able):
            stays = " and ".join(self.problem.job_ids[row] for row, can in zip((self.i, self.k), able, strict=True) if not can)
            return Together(name, "place", None, None, f"{name}: {stays} cannot run there")
        if self.pairs.fits is not None and not self.pairs.fits[kinds[0], kinds[1], j]:
            return Together(name, "memory", None, None, f"{name}: together they take more memory than a GPU there has")
        if min(speeds) <= 0:
            text = f"{name}: no throughput of the two together was measured, or one of them cannot run beside the other"
            return Together(name, "unmeasured", None, None, text)
        gain = float(self.pairs.gains[kinds[0], kinds[1], j])
        if not self.pairs.useful[kinds[0], kinds[1], j]:
            least = self.pairs.min_gain
            asked = "and in turns they do as much" if gain <= 1 else f"and {least:g} is the least gain that was asked for"
            return Together(name, "no gain", gain, None, f"{name}: together they do {gain:.3g} times what one does alone, {asked}")
        return self._by_time(name, j, gain)

    def _by_time(self, name: str, j: int, gain: float) -> Together:
        """What the allocation says of a pair that could share and gain by it."""
        pairs = self.allocation.pairs
        assert pairs is not None  # noqa: S101
        here = (pairs.first == min(self.i, self.k)) & (pairs.second == max(self.i, self.k)) & (pairs.types == j)
        if here.any():
            time = float(pairs.times[here].sum())
            text = f"{name}: they share for {time:.1%} of the time, and do {gain:.3g} times what one does alone"
            return Together(name, "shares", gain, None, text)
        other, kinds = self.problem.job_ids[self.k], self.pairs.kinds
        partners = np.where(pairs.first == self.i, pairs.second, pairs.first)
        own = ((pairs.first == self.i) | (pairs.second == self.i)) & (pairs.types == j) & (kinds[partners] == kinds[self.k])
        if own.any():
            time = float(pairs.times[own].sum())
            text = f"{name}: it shares for {time:.1%} of the time with other jobs of the kind of {other}, which is just as good"
            return Together(name, "others", gain, None, text)
        return self._by_price(name, j, gain)

    def _by_price(self, name: str, j: int, gain: float) -> Together:
        """What the proof says of a pair that could gain by sharing, and does not."""
        loss = self._loss(j)
        if loss is None:
            text = f"{name}: they would gain ({gain:.3g} times what one does alone), and the objective asks for something else"
            return Together(name, "price", gain, None, text)
        if loss <= 0:
            text = f"{name}: they would gain ({gain:.3g} times what one does alone), and the objective gains nothing from it"
            return Together(name, "as good", gain, 0.0, text)
        text = (
            f"{name}: they would gain ({gain:.3g} times what one does alone), and their time and GPUs are worth more otherwise: "
            f"the objective would get worse by {loss:.4g} per unit of time, at least"
        )
        return Together(name, "price", gain, loss, text)

    def _loss(self, j: int) -> float | None:
        """By how much the objective gets worse, at the prices of the proof, per unit of time for which they share."""
        evidence = self.allocation.evidence
        if evidence is None or evidence.certificate is None or not isinstance(evidence.kinds, PairColumns):
            return None
        duals, fractions = duals_of_job(self.allocation, evidence.certificate, self.i)
        gains = net_gains(duals, fractions) if duals.told else None
        if gains is None:
            return None
        jobs, kinds = duals.jobs, self.pairs.kinds[[self.i, self.k]].tolist()
        at = jobs.index[np.searchsorted(jobs.jobs, [self.i, self.k])]
        columns = evidence.kinds.columns_for(kinds[0], kinds[1], j)
        loss = -float(gains[at, columns].sum())
        return loss if loss > SMALL * float(np.abs(gains[at]).max()) else 0.0

    @property
    def _asked(self) -> AllocationProblem:
        evidence = self.allocation.evidence
        return self.problem if evidence is None else evidence.asked
