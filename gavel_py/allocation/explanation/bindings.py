"""Bindings: the rows that keep a job from a higher throughput, according to the proof, the service order or a formula.

`reasons_of` returns them. If the policy solves a program, a job is bound by rows with a dual price, by its own time and by lower
bounds (`_ProofBindings`). Under an ordered policy it is bound by the GPUs and limits that earlier jobs left over (`ServiceOrder`).
In both cases it may be bound by constraints that rule out types (`place_bindings`). `count_bindings` explains why an elastic job
has no more GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gavel_py.allocation.accounting import is_rounding
from gavel_py.allocation.explanation.duals import Duals, could_use, duals_of, is_all, time_bindings
from gavel_py.allocation.explanation.records import Binding
from gavel_py.allocation.result import Allocation
from gavel_py.optimization.checking.certificates import Certificate, Evidence
from gavel_py.optimization.formulation.colocation import Balance, SelfPairingCut
from gavel_py.optimization.formulation.columns import Columns
from gavel_py.optimization.formulation.linear_rows import Row, Rules
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.optimization.solving.levels import limit_prices
from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem
from gavel_py.problem.tolerances import INPUT_ROUNDING, PROOF_TOLERANCE, SOLVER_TOLERANCE


@dataclass(frozen=True, eq=False)
class ServiceOrder:
    """The place of one job in the order in which an ordered policy serves the G jobs that can run.

    at: the job's row; fractions: (G, K) of all jobs; places: (G,) their places in the order, from 0.
    """

    policy: OrderedPolicy
    jobs: JobClasses
    at: int
    fractions: Floats
    places: Indices

    @cached_property
    def before(self) -> Mask:
        """(G,) the jobs served before this one."""
        earlier: Mask = self.places < self.places[self.at]
        return earlier

    @cached_property
    def useful(self) -> Mask:
        """(K,) the types that could make the job faster, at the throughputs that the policy sees."""
        return could_use(self.jobs.throughputs[self.at], self.jobs.runnable[self.at], self.fractions[self.at])

    @cached_property
    def held(self) -> Floats:
        """(K,) GPUs held by jobs served before."""
        return np.where(self.before, self.jobs.num_gpus, 0.0) @ self.fractions

    @cached_property
    def exhausted_types(self) -> Mask:
        """(K,) the useful types with too few GPUs left for the job."""
        return self.useful & self._is_too_little((self.jobs.capacities - self.held) / self.jobs.num_gpus[self.at])

    @cached_property
    def exhausted_limits(self) -> Mask:
        """(R,) the upper limits with too little left for the job on a useful type."""
        costs, upper = self.jobs.limit_tables
        left = upper - np.einsum("rgk,gk->r", costs[:, self.before], self.fractions[self.before])
        own = np.where(self.useful, costs[:, self.at], 0.0).max(axis=1, initial=0.0)
        parts = np.divide(left, own, out=np.ones_like(left), where=own > 0)
        exhausted: Mask = (upper >= 0) & (own > 0) & self._is_too_little(parts)
        return exhausted

    def _is_too_little(self, parts: Floats) -> Mask:
        """Return whether the available part of its time is too little for the job to start."""
        return parts <= SOLVER_TOLERANCE if self.policy.fractional else parts < 1 - SOLVER_TOLERANCE

    def bindings(self) -> Iterator[Binding]:
        """Yield the reasons why the job gets no more time or no faster type."""
        names = self.jobs.accelerator_types
        yield from time_bindings(self.jobs, self.at, self.fractions[self.at], names)
        if not self.useful.any():
            return
        place = f"it is number {self.places[self.at] + 1} of {len(self.jobs)} in the order"
        yield Binding("order", self.policy.name, None, place)
        waiting = np.flatnonzero(self.before & ~is_all(self.fractions))
        if len(waiting) and not self.policy.backfill:
            blocker = self.jobs.example(int(waiting[self.places[waiting].argmin()]))
            text = f"{blocker} comes before it and does not fit, and without `backfill` no job passes it"
            yield Binding("order", blocker, None, text)
        for name in (self.jobs.rules.hard_rows[r].name for r in np.flatnonzero(self.exhausted_limits).tolist()):
            yield Binding("limit", name, None, f"{name} was used up by jobs before it")
        gang = self.jobs.num_gpus[self.at]
        for j in np.flatnonzero(self.exhausted_types).tolist():
            count = int((self.before & (self.fractions[:, j] > SOLVER_TOLERANCE)).sum())
            jobs = "1 job" if count == 1 else f"{count} jobs"
            text = f"{names[j]} was taken: {jobs} before it had {self.held[j]:.4g} of {self.jobs.capacities[j]:g} GPUs"
            yield Binding("gpus", names[j], None, text + (f", and its gang needs {gang:.0f}" if gang > 1 else ""))


def service_order_of(policy: OrderedPolicy, problem: AllocationProblem, rules: Rules, fractions: Floats, i: int) -> ServiceOrder:
    """Return the place of job i in the service order; fractions: (N, K) of an allocation under this policy."""
    jobs = policy.view(separate_jobs(problem, policy.name, policy.reads, rules))
    order = policy.serve(jobs)[1]
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return ServiceOrder(policy, jobs, int(np.searchsorted(jobs.jobs, i)), fractions[jobs.jobs], places)


def closed_by(evidence: Evidence, i: int) -> dict[int, str]:
    """Return {type: the constraints that rule it out} of the types on which job i could otherwise run."""
    before = evidence.rules.unplaced
    if before is None:
        return {}
    closed: dict[int, list[str]] = {}
    for place in (place for asked in evidence.rules.constraints for place in asked.places):
        for row in np.flatnonzero(place.rows == i).tolist():
            for j in np.flatnonzero(~place.allowed[row] & before.runnable[i]).tolist():
                closed.setdefault(j, []).append(place.name_of(i))
    return {j: " and ".join(dict.fromkeys(names)) for j, names in sorted(closed.items())}


def place_bindings(evidence: Evidence, times: Floats, i: int) -> Iterator[Binding]:
    """Yield the constraints that rule out types which could make job i faster; times: (K,) its time fractions."""
    before = evidence.rules.unplaced
    if before is None:
        return
    useful = could_use(before.throughputs[i], before.runnable[i], times)
    for j, name in closed_by(evidence, i).items():
        if useful[j]:
            yield Binding("place", name, None, f"{name} keeps it off {before.accelerator_types[j]}")


def any_column(columns: Columns, mask: Mask) -> Mask:
    """Return (..., K) whether any column of a type is set in a (..., K') mask."""
    found = np.zeros((*mask.shape[:-1], len(columns.base.capacities)), dtype=bool)
    for column, j in enumerate(columns.source.tolist()):
        found[..., j] |= mask[..., column]
    return found


@dataclass(frozen=True, eq=False)
class _ProofBindings:
    """The rows that bind job i, according to the dual prices of one stage of the proof.

    times: (K',) the job's time in all columns before a discount.
    """

    duals: Duals
    allocation: Allocation
    evidence: Evidence
    i: int
    times: Floats

    def bindings(self) -> Iterator[Binding]:
        """Yield one binding for each test of the proof that the job meets."""
        duals = self.duals
        if duals.level is not None:
            which = f", {duals.stage}" if duals.stage else ""
            text = f"it has just what the level asks for ({duals.level:.4g}{which}), and no allocation reaches a better one"
            yield Binding("level", duals.stage or "level", None, text)
        yield from self._floors()
        yield from self._limits()
        yield from self._types()
        scarce_partners = [r for r in self.partner_rows if duals.prices.limits[r] > 0 and self._costs(r).max() > 0]
        if scarce_partners and not is_all(self.times):
            text = "it would share GPUs for longer, but the time of its possible partners is worth more elsewhere"
            yield Binding("partners", "partners", None, text)
        # Time binds by its slack rather than by its price, which is not unique where the types of the job are full too.
        names = self.allocation.accelerator_types
        yield from time_bindings(duals.jobs, duals.at, self.times, [names[j] for j in self.evidence.columns.source.tolist()])
        if duals.kept_part < 1:
            text = f"it keeps {duals.kept_part:.1%} of its time, so that no job gains by stating wrong throughputs"
            yield Binding("discount", "discount", None, text)

    @cached_property
    def scarce_types(self) -> Mask:
        """(K,) the types that have a price and could make the job faster."""
        jobs, at, prices, columns = self.duals.jobs, self.duals.at, self.duals.prices, self.evidence.columns
        useful = could_use(jobs.throughputs[at], jobs.runnable[at], self.times)
        scarce = any_column(columns, prices.gpus > 0)
        for j, row in (jobs.columns or columns).joint.items():
            scarce[j] |= row < len(prices.limits) and prices.limits[row] > 0
        return any_column(columns, useful) & scarce

    @cached_property
    def partner_rows(self) -> frozenset[int]:
        """The rows of `Rules.hard_rows` that balance the time of partners or rule out self-pairing."""
        rows = self.duals.jobs.rules.hard_rows
        return frozenset(r for r, row in enumerate(rows) if isinstance(row, Balance | SelfPairingCut))

    @cached_property
    def scarce_limits(self) -> list[int]:
        """The user's limits with a price in which the job's time counts, as indices of `Rules.hard_rows`."""
        own = self.partner_rows.union((self.duals.jobs.columns or self.evidence.columns).joint.values())
        return [r for r in np.flatnonzero(self.duals.prices.limits).tolist() if r not in own and self._costs(r).any()]

    def _costs(self, r: int) -> Floats:
        """(K',) the coefficients of the job's time in a row, 0 where it cannot run."""
        jobs, at = self.duals.jobs, self.duals.at
        one = slice(at, at + 1)
        return np.where(jobs.runnable[at], jobs.rules.hard_rows[r].costs(jobs.rows[one], jobs.num_gpus[one])[0], 0.0)

    def _floors(self) -> Iterator[Binding]:
        """Yield the lower bounds on throughput that the job does not exceed."""
        throughput = float(self.allocation.throughputs[self.i])
        for floor in self.duals.jobs.rules.floors:
            least = float(floor.throughputs[self.i])
            if least > 0 and throughput <= least * (1 + PROOF_TOLERANCE):
                name, missed = floor.name_of(self.i), 1 - throughput / least
                just = "it has just that much" if missed <= PROOF_TOLERANCE else f"soft, and missed by {missed:.2%}"
                yield Binding("floor", name, None, f"{name}: {just}")

    def _limits(self) -> Iterator[Binding]:
        prices = limit_prices(self.evidence.certificate, self.duals.jobs.rules) if self.duals.is_main else None
        for r in self.scarce_limits:
            name = self.duals.jobs.rules.hard_rows[r].name
            price = None if prices is None or r >= len(prices) else float(prices[r])
            text = f"{name} is just met, at the cost of others" if self._costs(r).min() < 0 else f"{name} is used up"
            worth = "" if price is None else f"; each unit less strict is worth {self._worth(price) or 'nothing'}"
            yield Binding("limit", name, price, text + worth)

    def _types(self) -> Iterator[Binding]:
        prices = self.allocation.shadow_prices if self.duals.is_main else None
        for j in np.flatnonzero(self.scarce_types).tolist():
            name, gpus = self.allocation.accelerator_types[j], float(self.evidence.base.capacities[j])
            text = f"{name} is scarce: all of it is needed ({gpus:g} {'GPU' if gpus == 1 else 'GPUs'})"
            if prices is None:
                yield Binding("gpus", name, None, text)
                continue
            price = float(prices[j])
            worth = self._worth(price)
            yield Binding(
                "gpus", name, price, f"{text}; {f'one more is worth {worth}' if worth else 'one more alone gains nothing'}"
            )

    def _worth(self, price: float) -> str:
        """Return a price as text, "" for one that is rounding beside the objective."""
        return "" if is_rounding(price, self.allocation.objective_value) else f"up to {price:.4g} to the objective"


@dataclass(frozen=True, eq=False)
class Reasons:
    """The bindings of a job.

    contested: (N, K) where the time of other jobs uses resources that the job lacks; certain: whether the job has the same
    throughput in every optimal allocation; equal_jobs: number of other jobs in its class.
    """

    bindings: tuple[Binding, ...]
    contested: Mask
    certain: bool = True
    equal_jobs: int = 0


def reasons_of(policy: Policy, allocation: Allocation, evidence: Evidence, i: int) -> Reasons:
    """Return what binds job i of an allocation."""
    nothing = np.zeros(evidence.base.runnable.shape, dtype=bool)
    if allocation.job_ids[i] in allocation.excluded:
        return Reasons((), nothing)
    if evidence.certificate is not None:
        return _by_proof(allocation, evidence, evidence.certificate, i)
    if isinstance(policy, OrderedPolicy):
        return _by_order(policy, allocation, evidence, i)
    text = f"{policy.name} states by a formula what each job gets, whatever else could be done"
    return Reasons((Binding("formula", policy.name, None, text),), nothing)


def is_certain(allocation: Allocation, i: int) -> bool:
    """Return whether job i has the same throughput in every allocation with the same objective."""
    certificate = None if allocation.evidence is None else allocation.evidence.certificate
    is_excluded = allocation.job_ids[i] in allocation.excluded
    return is_excluded or certificate is None or duals_of_job(allocation, certificate, i)[0].certain


def duals_of_job(allocation: Allocation, certificate: Certificate, i: int) -> tuple[Duals, Floats]:
    """Return the duals that bind job i, and (G, K') the time of all classes in the columns of the proof."""
    jobs, times = certificate.jobs, None if allocation.evidence is None else allocation.evidence.times
    at = int(jobs.index[np.searchsorted(jobs.jobs, i)])
    by_class = allocation.by_column.time_fractions[jobs.rows] if times is None else times.fractions
    return duals_of(certificate, by_class, at), by_class


def _by_proof(allocation: Allocation, evidence: Evidence, certificate: Certificate, i: int) -> Reasons:
    duals, by_class = duals_of_job(allocation, certificate, i)
    times = by_class[duals.at]
    found = _ProofBindings(duals, allocation, evidence, i, times / duals.kept_part)
    rows = [duals.jobs.rules.hard_rows[r] for r in found.scarce_limits]
    contested = _contested(evidence, found.scarce_types, rows)
    # With co-location, constraints on types apply to all columns of a type alike, so time is summed by type.
    by_type = allocation.time_fractions[i] if evidence.times is not None else times
    bindings = (*found.bindings(), *place_bindings(evidence, by_type, i))
    return Reasons(bindings, contested, duals.certain, int(duals.jobs.counts[duals.at]) - 1)


def _by_order(policy: OrderedPolicy, allocation: Allocation, evidence: Evidence, i: int) -> Reasons:
    order = service_order_of(policy, evidence.problem, evidence.rules, allocation.time_fractions, i)
    rows = [order.jobs.rules.hard_rows[r] for r in np.flatnonzero(order.exhausted_limits)]
    contested = _contested(evidence, order.exhausted_types, rows)
    before = np.zeros(evidence.problem.num_jobs, dtype=bool)
    before[order.jobs.jobs] = order.before
    bindings = (*order.bindings(), *place_bindings(evidence, allocation.time_fractions[i], i))
    return Reasons(bindings, contested & before[:, None])


def _contested(evidence: Evidence, scarce: Mask, limits: Iterable[Row]) -> Mask:
    """(N, K) the time of all jobs on scarce types, and where it counts in limits that are used up."""
    problem = evidence.base
    all_jobs = np.arange(problem.num_jobs)
    contested = np.repeat(scarce[None], problem.num_jobs, axis=0)
    for row in limits:
        contested |= any_column(evidence.columns, row.costs(all_jobs, problem.num_gpus) > 0)
    return contested


def count_bindings(problem: AllocationProblem, allocation: Allocation, i: int) -> Iterator[Binding]:
    """Yield for each type on which an elastic job has time why it has no more GPUs there; nothing for a fixed gang."""
    if allocation.counts is None or problem.counts is None or problem.counts.kinds[i] < 0:
        return
    held: dict[int, list[int]] = {}
    for j, count, time in allocation.counts.of(i):
        if time > SOLVER_TOLERANCE:
            held.setdefault(j, []).append(count)
    for j, counts in held.items():
        name, offered = allocation.accelerator_types[j], problem.counts.offered(i, j)
        price = None if allocation.shadow_prices is None else float(allocation.shadow_prices[j])
        yield Binding("count", name, None, f"on {' or '.join(map(str, counts))} {name}: {_more(name, offered, counts, price)}")


def _more(name: str, offered: dict[int, float], counts: list[int], price: float | None) -> str:
    """Return what the next faster number of GPUs adds to the smallest one, and why the job does not have it all of the time."""
    count = counts[0]
    speed = offered[count]
    faster = [n for n in offered if n > count and offered[n] > speed * (1 + INPUT_ROUNDING)]
    if not faster:
        slower = [n for n in offered if n > count]
        return f"{slower[0]} would not be faster" if slower else f"no larger number of GPUs is offered on {name}"
    more = faster[0]
    factor = "twice" if more == 2 * count else f"{more / count:.3g} times"
    gain = f"{100 * (offered[more] / speed - 1):.3g} % to its speed there for {factor} the GPUs"
    if more in counts:
        return f"{more} GPUs add {gain}, which others need for a part of the time"
    return f"{more} GPUs would add {gain}{'' if price == 0 else ', which are worth more to others'}"
