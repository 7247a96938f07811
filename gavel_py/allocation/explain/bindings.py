"""Bindings: why a job has what it has, and no more, by the proof, by the order in which jobs are served, or by a formula.

With a proof, a job is bound by the rows that have a price (`bindings_of`) and by those of its own that just hold. Under an ordered
policy it is bound by what earlier jobs had left when it was served (`order_bindings`), and in both cases by constraints that close
types to it (`place_bindings`). `Types` maps the columns and rows of a proof to accelerator types, in the user's words, where
some types have several columns. `reasons_of` is all of it together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gavel_py.allocation.explain.duals import JUST, Duals, could_use, duals_of, is_all, time_binding
from gavel_py.allocation.explain.records import Binding
from gavel_py.allocation.result import Allocation
from gavel_py.optimization.checking.certificates import Certificate, Evidence, Prices
from gavel_py.optimization.checking.shadow_prices import limit_prices
from gavel_py.optimization.formulation.colocation import Balance, SelfPairingCut
from gavel_py.optimization.formulation.linear_rows import Row, Rules
from gavel_py.optimization.job_classes import JobClasses, separate_jobs
from gavel_py.policies import OrderedPolicy, Policy
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem

SOME = 1e-9
"""A part of a job's time below this is not taken."""


@dataclass(frozen=True, eq=False)
class ServiceOrder:
    """The turn of one job among those that can run.

    at: its row; fractions: (G, K) what they have; places: (G,) their places in the order, from 0.
    """

    policy: OrderedPolicy
    jobs: JobClasses
    at: int
    fractions: Floats
    places: Indices

    @property
    def before(self) -> Mask:
        """(G,) the jobs served before it."""
        earlier: Mask = self.places < self.places[self.at]
        return earlier

    @property
    def useful(self) -> Mask:
        """(K,) the types that could make it faster, as the policy sees it."""
        return could_use(self.jobs.throughputs[self.at], self.jobs.runnable[self.at], self.fractions[self.at])

    @property
    def held(self) -> Floats:
        """(K,) GPUs that those before it hold."""
        gpus: Floats = np.where(self.before, self.jobs.num_gpus, 0.0) @ self.fractions
        return gpus

    @property
    def gone(self) -> Mask:
        """(K,) the types that it could use, and of which too little was left."""
        return self.useful & self._short((self.jobs.capacities - self.held) / self.jobs.num_gpus[self.at])

    @property
    def used_up(self) -> Mask:
        """(R,) the upper limits of which too little was left for it on a type that it could use."""
        costs, most = self.jobs.limit_tables
        left = most - np.einsum("rgk,gk->r", costs[:, self.before], self.fractions[self.before])
        own = np.where(self.useful, costs[:, self.at], 0.0).max(axis=1, initial=0.0)
        parts = np.divide(left, own, out=np.ones_like(left), where=own > 0)
        used_up: Mask = (most >= 0) & (own > 0) & self._short(parts)
        return used_up

    @property
    def blocker(self) -> str | None:
        """The first job that did not fit and that nobody may pass, if it came before this one."""
        waiting = np.flatnonzero(self.before & ~is_all(self.fractions))
        if self.policy.backfill or not len(waiting):
            return None
        return self.jobs.example(int(waiting[self.places[waiting].argmin()]))

    def _short(self, parts: Floats) -> Mask:
        """Where the part of its time that it could have is too little to be taken."""
        short: Mask = parts <= SOME if self.policy.fractional else parts < 1 - SOME
        return short


def service_order_of(policy: OrderedPolicy, problem: AllocationProblem, rules: Rules, fractions: Floats, i: int) -> ServiceOrder:
    """Return the turn of job i, given (N, K) the fractions of an allocation under this policy."""
    jobs = policy.view(separate_jobs(problem, policy.name, policy.reads, rules))
    shown, order = fractions[jobs.jobs], policy.serve(jobs)[1]
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return ServiceOrder(policy, jobs, int(np.searchsorted(jobs.jobs, i)), shown, places)


def order_bindings(turn: ServiceOrder) -> Iterator[Binding]:
    """Yield why the job has no more than it has."""
    time = time_binding(turn.jobs, turn.at, turn.fractions[turn.at], turn.jobs.accelerator_types)
    if time is not None:
        yield time
    if not turn.useful.any():
        return
    place = f"it is number {turn.places[turn.at] + 1} of {len(turn.jobs)} in the order"
    yield Binding("order", turn.policy.name, None, place)
    if turn.blocker is not None:
        text = f"{turn.blocker} comes before it and does not fit, and nobody passes without `backfill`"
        yield Binding("order", turn.blocker, None, text)
    for r in np.flatnonzero(turn.used_up).tolist():
        name = turn.jobs.rules.hard_rows[r].name
        yield Binding("limit", name, None, f"{name} was used up by jobs before it")
    yield from (_gone(turn, j) for j in np.flatnonzero(turn.gone).tolist())


def _gone(turn: ServiceOrder, j: int) -> Binding:
    name, gang = turn.jobs.accelerator_types[j], turn.jobs.num_gpus[turn.at]
    count = int((turn.before & (turn.fractions[:, j] > SOME)).sum())
    jobs = "1 job" if count == 1 else f"{count} jobs"
    text = f"{name} was taken: {jobs} before it had {turn.held[j]:.4g} of {turn.jobs.capacities[j]:g} GPUs"
    return Binding("gpus", name, None, text + (f", and its gang needs {gang:.0f}" if gang > 1 else ""))


def closed_by(evidence: Evidence, i: int) -> dict[int, str]:
    """Return {column: the constraints, in the user's words} of the types on which job i could run but for these."""
    before = evidence.rules.unplaced
    if before is None:
        return {}
    closed: dict[int, list[str]] = {}
    for place in (place for asked in evidence.rules.asked for place in asked.places):
        for row in np.flatnonzero(place.rows == i).tolist():
            for j in np.flatnonzero(~place.allowed[row] & before.runnable[i]).tolist():
                closed.setdefault(j, []).append(place.name_of(i))
    return {j: " and ".join(dict.fromkeys(names)) for j, names in sorted(closed.items())}


def place_bindings(evidence: Evidence, times: Floats, i: int) -> Iterator[Binding]:
    """Yield the constraints that keep job i off types which could make it faster."""
    before = evidence.rules.unplaced
    if before is None:
        return
    useful = could_use(before.throughputs[i], before.runnable[i], times)
    for j, name in closed_by(evidence, i).items():
        if useful[j]:
            yield Binding("place", name, None, f"{name} keeps it off {before.accelerator_types[j]}")


@dataclass(frozen=True, eq=False)
class Types:
    """names, gpus: of the K types; source: (K',) the type of each column; joint: {type: the row of `Rules.hard_rows` for its GPUs};
    partners: the rows that say of jobs that share GPUs that partners have each other.
    """

    names: tuple[str, ...]
    gpus: Floats
    source: Indices
    joint: Mapping[int, int]
    partners: frozenset[int]

    def any_of(self, columns: Mask) -> Mask:
        """Return (..., K) whether that is so in any column of each type, from (..., K')."""
        found = np.zeros((*columns.shape[:-1], len(self.names)), dtype=bool)
        for column, j in enumerate(self.source.tolist()):
            found[..., j] |= columns[..., column]
        return found

    def scarce(self, prices: Prices) -> Mask:
        """Return (K,) the types whose GPUs have a price."""
        scarce = self.any_of(prices.gpus > 0)
        for j, row in self.joint.items():
            scarce[j] |= row < len(prices.limits) and prices.limits[row] > 0
        return scarce

    def is_limit(self, row: int) -> bool:
        """Return whether a row is one of the user's, and says nothing of types or partners alone."""
        return row not in self.partners and row not in self.joint.values()


def types_of(evidence: Evidence) -> Types:
    """Return what the columns of a proof are about."""
    asked, kinds = evidence.asked, evidence.kinds
    rows = () if kinds is None else evidence.rules.hard_rows
    partners = frozenset(r for r, row in enumerate(rows) if isinstance(row, Balance | SelfPairingCut))
    source = np.arange(len(asked.capacities)) if kinds is None else kinds.source
    return Types(asked.accelerator_types, asked.capacities, source, {} if kinds is None else kinds.joint, partners)


def bindings_of(duals: Duals, types: Types, allocation: Allocation, evidence: Evidence, i: int, times: Floats) -> Iterator[Binding]:
    """Yield what binds job i of an allocation with a proof; times: (K',) its time in all columns."""
    times = times / duals.kept
    shadow_prices = allocation.shadow_prices if duals.told else None
    worths = limit_prices(evidence.certificate, evidence.rules) if duals.told else None
    yield from _level(duals)
    yield from _floors(duals, float(allocation.throughputs[i]), i)
    yield from (_limit(duals, r, worths) for r in scarce_limits(duals, types))
    yield from (_type(types, j, shadow_prices) for j in np.flatnonzero(scarce_types(duals, types, times)).tolist())
    yield from _partners(duals, types, times)
    yield from _time(duals, types, times)
    yield from _discount(duals)


def scarce_types(duals: Duals, types: Types, times: Floats) -> Mask:
    """Return (K,) the types that have a price and could make the job faster."""
    useful = could_use(duals.jobs.throughputs[duals.at], duals.jobs.runnable[duals.at], times)
    return types.any_of(useful) & types.scarce(duals.prices)


def scarce_limits(duals: Duals, types: Types) -> list[int]:
    """Return the limits that have a price and in which the job counts, by their place in `Rules.hard_rows`."""
    return [r for r in np.flatnonzero(duals.prices.limits).tolist() if types.is_limit(r) and _costs(duals, r).any()]


def _costs(duals: Duals, r: int) -> Floats:
    """(K,) what the job's time counts in a limit where it can run."""
    jobs, one = duals.jobs, slice(duals.at, duals.at + 1)
    return np.where(jobs.runnable[duals.at], jobs.rules.hard_rows[r].costs(jobs.rows[one], jobs.num_gpus[one])[0], 0.0)


def _level(duals: Duals) -> Iterator[Binding]:
    if duals.level is not None:
        which = f", {duals.stage}" if duals.stage else ""
        text = f"it has just what the level asks for ({duals.level:.4g}{which}), and no allocation reaches a better one"
        yield Binding("level", duals.stage or "level", None, text)


def _floors(duals: Duals, throughput: float, i: int) -> Iterator[Binding]:
    """The throughputs that rules promise the job, if it has no more."""
    for floor in duals.jobs.rules.floors:
        least = float(floor.throughputs[i])
        if least > 0 and throughput <= least * (1 + JUST):
            name, missed = floor.name_of(i), 1 - throughput / least
            just = "it has just that much" if missed <= JUST else f"soft, and missed by {missed:.2%}"
            yield Binding("floor", name, None, f"{name}: {just}")


def _limit(duals: Duals, r: int, worths: Floats | None) -> Binding:
    name = duals.jobs.rules.hard_rows[r].name
    price = None if worths is None or r >= len(worths) else float(worths[r])
    text = f"{name} is just met, at the cost of others" if _costs(duals, r).min() < 0 else f"{name} is used up"
    worth = "" if price is None else f"; each unit less strict is worth up to {price:.4g} to the objective"
    return Binding("limit", name, price, text + worth)


def _type(types: Types, j: int, shadow_prices: Floats | None) -> Binding:
    name, gpus = types.names[j], float(types.gpus[j])
    price = None if shadow_prices is None else float(shadow_prices[j])
    text = f"{name} is scarce: all of it is needed ({gpus:g} {'GPU' if gpus == 1 else 'GPUs'})"
    if price is None:
        return Binding("gpus", name, None, text)
    gain = f"one more is worth up to {price:.4g} to the objective" if price > 0 else "one more alone gains nothing"
    return Binding("gpus", name, price, f"{text}; {gain}")


def _partners(duals: Duals, types: Types, times: Floats) -> Iterator[Binding]:
    """That a job that waits would share, but for its partners: rows with a price in which its own time counts."""
    rows = [] if is_all(times) else [r for r in types.partners if duals.prices.limits[r] > 0 and _costs(duals, r).max() > 0]
    if rows:
        text = "it would share GPUs for longer, and the time of those who could be its partners is worth more elsewhere"
        yield Binding("partners", "partners", None, text)


def _time(duals: Duals, types: Types, times: Floats) -> Iterator[Binding]:
    """That it runs all of its time: from its slack, since a price would not be unique where its types are full too."""
    time = time_binding(duals.jobs, duals.at, times, [types.names[j] for j in types.source.tolist()])
    if time is not None:
        yield time


def _discount(duals: Duals) -> Iterator[Binding]:
    if duals.kept < 1:
        text = f"it keeps {duals.kept:.1%} of its time, so that nobody gains by stating wrong throughputs"
        yield Binding("discount", "discount", None, text)


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why a job has what it has.

    contested: (N, K) where a job's time is what this one could use; certain: whether it has the same throughput in every allocation
    that is as good; equal_jobs: other jobs that the policy cannot tell apart from it.
    """

    bindings: tuple[Binding, ...]
    contested: Mask
    certain: bool = True
    equal_jobs: int = 0


def reasons_of(policy: Policy, allocation: Allocation, evidence: Evidence, i: int) -> Reasons:
    """Return why job i of an allocation has what it has."""
    nothing = np.zeros(evidence.asked.runnable.shape, dtype=bool)
    if allocation.job_ids[i] in allocation.excluded:
        return Reasons((), nothing)
    if evidence.certificate is not None:
        return _by_proof(allocation, evidence, evidence.certificate, i)
    if isinstance(policy, OrderedPolicy):
        return _by_order(policy, allocation, evidence, i)
    text = f"{policy.name} states by a formula what each job gets, whatever else could be done"
    return Reasons((Binding("formula", policy.name, None, text),), nothing)


def is_certain(allocation: Allocation, evidence: Evidence, i: int) -> bool:
    """Return whether job i has the same throughput in every allocation that is as good as this one."""
    is_out = allocation.job_ids[i] in allocation.excluded
    return is_out or evidence.certificate is None or duals_of_job(allocation, evidence.certificate, i)[0].certain


def duals_of_job(allocation: Allocation, certificate: Certificate, i: int) -> tuple[Duals, Floats]:
    """Return what holds job i where it is, and (G, K') the time of all classes in the columns of the proof."""
    jobs, times = certificate.jobs, None if allocation.evidence is None else allocation.evidence.times
    at = int(jobs.index[np.searchsorted(jobs.jobs, i)])
    by_class = allocation.by_column.time_fractions[jobs.rows] if times is None else times.fractions
    return duals_of(certificate, by_class, at), by_class


def _by_proof(allocation: Allocation, evidence: Evidence, certificate: Certificate, i: int) -> Reasons:
    duals, by_class = duals_of_job(allocation, certificate, i)
    types, times = types_of(evidence), by_class[duals.at]
    rows = [duals.jobs.rules.hard_rows[r] for r in scarce_limits(duals, types)]
    contested = _contested(evidence.asked, types, scarce_types(duals, types, times / duals.kept), rows)
    # Where a job may run is said of types where jobs share, since all of their columns are alike in that.
    placed = allocation.time_fractions[i] if evidence.times is not None else times
    bindings = (*bindings_of(duals, types, allocation, evidence, i, times), *place_bindings(evidence, placed, i))
    return Reasons(bindings, contested, duals.certain, int(duals.jobs.counts[duals.at]) - 1)


def _by_order(policy: OrderedPolicy, allocation: Allocation, evidence: Evidence, i: int) -> Reasons:
    turn = service_order_of(policy, evidence.problem, evidence.rules, allocation.time_fractions, i)
    rows = [turn.jobs.rules.hard_rows[r] for r in np.flatnonzero(turn.used_up)]
    contested = _contested(evidence.asked, types_of(evidence), turn.gone, rows)
    before = np.zeros(evidence.problem.num_jobs, dtype=bool)
    before[turn.jobs.jobs] = turn.before
    bindings = (*order_bindings(turn), *place_bindings(evidence, allocation.time_fractions[i], i))
    return Reasons(bindings, contested & before[:, None])


def _contested(problem: AllocationProblem, types: Types, scarce: Mask, limits: Iterable[Row]) -> Mask:
    """(N, K) the time of all jobs on scarce types, and of those who count in limits that are used up."""
    everyone = np.arange(problem.num_jobs)
    contested = np.repeat(scarce[None], problem.num_jobs, axis=0)
    for row in limits:
        contested |= types.any_of(row.costs(everyone, problem.num_gpus) > 0)
    return contested
