"""What an agnostic policy leaves to chance: which of equally good allocations it is.

To an agnostic policy all accelerator types are equally fast, so its program has many optima: the types on which a job runs make no
difference, nor may the total times of some jobs. A simplex method returns a corner, in which each job runs on one or two types and
some jobs have all the time that is left over. Another optimum may be far better or far worse in real throughputs, so a corner
says little about the policy. The allocation here lies in the middle of the optima and does not depend on the solver. Total times
are divided fairly where the optimum leaves them open (`free_times`), and then split as evenly as possible over the types
(`type_shares`):

    t_i = max(need_i, min(1, θ w_i / s_i)),  θ as large as possible
    min Σ_ij s_i x_ij ln(x_ij / (t_i c_j / Σ_{k in M_i} c_k))  such that  Σ_j x_ij = t_i,  x valid

need_i is the time that the objective asks for, and M_i are the types on which job i may run.

Source: the baselines of Gavel (OSDI 2020), whose code solves these programs with an interior-point method and so returns a point in
the middle of the optima. The split is that of least relative entropy to an even one (Kullback, Information Theory and Statistics,
1959).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import SolverError
from gavel_py.optimization.certificates import Certificate, Stages, gap
from gavel_py.optimization.free_times import FreeTimes, Kinds, fairest_times
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.linear_rows import Row, entries_of
from gavel_py.optimization.time_limit import NO_LIMIT, TimeLimit, TimeLimitReached
from gavel_py.optimization.type_shares import even_shares
from gavel_py.policies import Decision, Policy
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.row_hashing import number_equal

__all__ = ["even_decision"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

ROUNDING = 1e-12

SAME = 1e-10
"""The relative change of an objective that counts as rounding."""

NOTE = "time is split over accelerator types as the solver found it: no even split keeps the objective and the rules"


def even_decision(
    policy: Policy, jobs: JobClasses, decision: Decision, source: Indices | None = None, limit: TimeLimit | None = NO_LIMIT
) -> Decision:
    """Replace the decision of an agnostic policy by an equally good one with fair total times and an even split over the types.

    Decisions of other policies, and those without a program, are returned as they are.

    Args:
        policy: The policy that made the decision.
        jobs: The job classes as the policy sees them.
        decision: The decision, with its certificate.
        source: (K',) the accelerator type of each column, where types have several columns.
        limit: When to stop. None if the time limit has passed: the decision then need not be optimal, its total times are divided
            anew only where this takes no program, and its objective may get better.

    Returns:
        The decision with the same certificate, so that it is proven again for the new time fractions. If no even split keeps the
        objective and the rules, the decision itself with a note.

    Raises:
        TimeLimitReached: The limit has passed. It carries the decision.
    """
    if not policy.is_agnostic or decision.certificate is None:
        return decision
    for free in _choices(policy, jobs, decision):
        try:
            fractions = _evened(jobs, free, decision.time_fractions, source, limit)
        except SolverError:
            continue
        except TimeLimitReached:
            raise TimeLimitReached(None, (decision.time_fractions,), (decision.certificate.scarcity,)) from None
        if free.is_certain or _is_as_good(decision.certificate, fractions, decision.time_fractions):
            return replace(decision, time_fractions=fractions)
    return replace(decision, notes=(*decision.notes, NOTE))


def _choices(policy: Policy, jobs: JobClasses, decision: Decision) -> Iterator[FreeTimes]:
    """The total times to choose from: those that the optimum leaves open, then the decision's own."""
    free = policy.leaves_free(jobs, decision)
    if not jobs.rules.switch_cost:  # where change has a cost, both more and less time may cost something
        # It is unknown what an objective with kinks or curves leaves open, but a fair division may be just as good.
        yield FreeTimes(np.minimum(jobs.floors / jobs.fastest, 1.0), np.ones(len(jobs))) if free is None else free
    rows = () if free is None else free.rows
    own = decision.time_fractions @ np.ones(len(jobs.capacities))
    same = _indistinguishable(jobs)
    mean = (np.bincount(same, jobs.counts * own) / np.bincount(same, jobs.counts))[same]
    yield FreeTimes(mean, mean, rows)
    yield FreeTimes(own, own, rows)


def _indistinguishable(jobs: JobClasses) -> Indices:
    """(G,) equal numbers for classes that differ in nothing but throughputs which the policy does not see."""
    columns = [jobs.throughputs[:, 0], jobs.num_gpus, jobs.floors, *np.packbits(jobs.runnable, axis=1).T]
    for name in jobs.reads:
        values = getattr(jobs, name)
        table = values if isinstance(values, np.ndarray) else np.unique(values, return_inverse=True)[1]
        columns += list(table.reshape(len(jobs), -1).T)
    columns += list(jobs.limit_marks)
    return number_equal(columns, len(jobs)).index


def _evened(jobs: JobClasses, free: FreeTimes, before: Floats, source: Indices | None, limit: TimeLimit | None) -> Floats:
    """Return (G, K) the time of each job on each type; before: that of the decision."""
    rules = jobs.rules
    rows = (*rules.hard_rows, *(_Held(row, max(row.most, _used(row, jobs, before))) for row in rules.soft_rows))
    kinds = Kinds(jobs if free.where is None else replace(jobs, where=free.where), (*rows, *free.rows), source)
    times = fairest_times(jobs, kinds, free, _weights(jobs), limit)
    if free.rows or free.where is not None:  # rows on total times have served their purpose
        kinds = Kinds(jobs, (*rows, *(row for row in free.rows if _depends_on_types(row, jobs))), source)
    if not rules.switch_cost:
        fractions = even_shares(kinds, kinds.sums(jobs.counts * times)).take(kinds.of, axis=0)
        fractions *= times[:, None]
        return fractions
    # Time that stays where it was costs nothing, so only the rest is split.
    stays = np.minimum(before, jobs.before)
    rest = np.maximum(0.0, times - stays @ np.ones(stays.shape[1]))
    taken = np.column_stack([kinds.sums(jobs.counts * column) for column in stays.T])
    return stays + rest[:, None] * even_shares(kinds, kinds.sums(jobs.counts * rest), taken).take(kinds.of, axis=0)


def _depends_on_types(row: Row, jobs: JobClasses) -> bool:
    """Whether a row depends on where a job runs, and not only on how long it runs."""
    costs = row.costs(jobs.rows, jobs.num_gpus)
    most, least = (np.where(jobs.runnable, costs, way * np.inf) for way in (-1, 1))
    most, least = most.max(axis=1), least.min(axis=1)
    return bool((most - least > ROUNDING * np.maximum(np.abs(most), np.abs(least))).any())


@dataclass(frozen=True, eq=False)
class _Held:
    """A soft row as a hard one that allows what a decision already uses."""

    row: Row
    most: float

    penalty: ClassVar[None] = None

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def grows(self) -> bool:
        return self.row.grows

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return self.row.split

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        return self.row.costs(rows, num_gpus)

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:
        return self.row.used(problem, time_fractions)


def _used(row: Row, jobs: JobClasses, fractions: Floats) -> float:
    places, values = entries_of(row, jobs.rows, jobs.num_gpus)
    return float(values @ (jobs.counts[:, None] * fractions).ravel()[places])


def _weights(jobs: JobClasses) -> Floats:
    """(G,) w_g; 1 if the policy does not read weights, because jobs that differ only in weight are then equal to it."""
    weights: Floats = jobs.weights if "weights" in jobs.reads else np.ones(len(jobs))
    return weights


def _is_as_good(certificate: Certificate, fractions: Floats, before: Floats, tolerance: float = 0.0) -> bool:
    """Whether every stage of a proof comes as close to its bound as before, or as it has to."""
    if isinstance(certificate, Stages):
        return all(_is_as_good(stage.certificate, fractions, before, stage.tolerance) for stage in certificate.stages)
    value, known, bound = certificate.value(fractions), certificate.value(before), certificate.bound()
    scale = certificate.scale(before)
    return value == known or gap(value, bound, scale) <= max(gap(known, bound, scale), tolerance) + SAME
