"""Who shares GPUs with whom in a round, two by two, before it is decided who runs at all."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.scheduling.colocation.groups import ColocationGroup, ColocationGroups, ColocationPromises
from gavel_py.scheduling.mechanism.demand import RoundDemand, hysteresis_of, rounded
from gavel_py.scheduling.placement.gangs import PlacementPreference


def matched(demand: RoundDemand, companies: ColocationPromises, owed: Floats, partners: Indices) -> ColocationGroups:
    """Return who goes with whom this round.

    demand: of all jobs, what they are owed on each type in whatever company; owed: (E,) A_i(b,j), the part of it that is owed
    in the company of each promise; partners: (N,) rows of those with whom jobs share now, -1 for none.

    Each job is to be where it is owed most: alone, or with partners of one kind, and what it has now counts for h rounds more
    (`hysteresis_of`). The job that is owed most picks first, and its partner is who is owed most with a job of its kind, or
    else who is with it now; nobody is picked who is owed more elsewhere.
    """
    claims = rounded(owed + companies.fractions)
    together_now = _together_now(demand, companies, partners)
    kept_for = _kept_for(demand, companies, companies.fractions)
    scores = claims + kept_for * together_now
    promised = companies.summed(companies.fractions, demand.fractions.shape)
    deficits = demand.deficits - companies.summed(owed, demand.fractions.shape)
    fractions = np.maximum(0.0, demand.fractions - promised)
    pairs = _Matching(companies, scores, _alone(demand, deficits, fractions, partners), partners).pairs(_may_pair(demand))
    alone = replace(demand, deficits=deficits, fractions=fractions)
    return _with_groups(alone, companies, claims, pairs)


def _together_now(demand: RoundDemand, companies: ColocationPromises, partners: Indices) -> Mask:
    """(E,) the promises that are being kept now."""
    there = partners[companies.rows]
    same: Mask = (
        (there >= 0) & (companies.kinds[there] == companies.partners) & (demand.running_on[companies.rows] == companies.types)
    )
    return same


def _kept_for(demand: RoundDemand, companies: ColocationPromises, fractions: Floats) -> Floats:
    return hysteresis_of(fractions, demand.num_gpus[companies.rows], demand.restart_rounds[companies.rows])


def _alone(demand: RoundDemand, deficits: Floats, fractions: Floats, partners: Indices) -> Floats:
    """(N,) the rounds that each job is owed without company on the type where it is owed most."""
    now = demand.running & (partners < 0)[:, None]
    kept_for = hysteresis_of(fractions, demand.num_gpus[:, None], demand.restart_rounds[:, None])
    owed = np.where(demand.runnable & (fractions > 0), rounded(deficits + fractions) + kept_for * now, -np.inf)
    most: Floats = owed.max(axis=1, initial=-np.inf)
    return most


def _may_pair(demand: RoundDemand) -> Mask:
    """(N,) the jobs of which it is still open who is with them."""
    may: Mask = demand.runnable.any(axis=1) & ~demand.locked
    return may


class _Matching:
    """Picks partners. scores: (E,) of promises; alone: (N,) what each job is owed without company; partners: (N,) of now."""

    def __init__(self, companies: ColocationPromises, scores: Floats, alone: Floats, partners: Indices) -> None:
        self._companies = companies
        self._scores: list[float] = scores.tolist()
        self._alone: list[float] = alone.tolist()
        self._partners: list[int] = partners.tolist()
        self._order = np.argsort(-scores, kind="stable").tolist()
        self._rows: list[int] = companies.rows.tolist()
        kinds = companies.kinds[companies.rows].tolist()
        self._own = list(zip(kinds, companies.partners.tolist(), companies.types.tolist(), strict=True))
        # The promises of jobs of one kind with partners of another on one type, who is owed most first.
        self._sides: dict[tuple[int, int, int], deque[int]] = {}
        for place in self._order:
            self._sides.setdefault(self._own[place], deque()).append(place)

    def pairs(self, may_pair: Mask) -> list[tuple[int, int]]:
        """Return pairs of jobs, each job at most once."""
        free = may_pair.tolist()
        found = []
        for place in self._order:
            job = self._rows[place]
            if not free[job]:
                continue
            if self._scores[place] <= 0:
                break
            partner = self._partner(place, free) if self._scores[place] > self._alone[job] else None
            if partner is not None:
                free[job] = free[partner] = False
                found.append((job, partner))
        return found

    def _partner(self, place: int, free: list[bool]) -> int | None:
        job, (own, other, column) = self._rows[place], self._own[place]
        now = self._partners[job]
        there = self._companies.place_of.get((now, own, column)) if now >= 0 else None
        if there is not None and self._willing(there, job, free) and self._own[there][0] == other:
            return now
        side = self._sides.get((other, own, column), deque())
        while side and not free[self._rows[side[0]]]:
            side.popleft()
        return next((self._rows[each] for each in side if self._willing(each, job, free)), None)

    def _willing(self, place: int, job: int, free: list[bool]) -> bool:
        partner = self._rows[place]
        return partner != job and free[partner] and bool(self._scores[place] > self._alone[partner])


def _with_groups(
    demand: RoundDemand, companies: ColocationPromises, claims: Floats, pairs: list[tuple[int, int]]
) -> ColocationGroups:
    """Put what pairs are owed into the rows of their leaders: of the two who runs now, the one that stands first."""
    running = demand.running_on.tolist()
    ordered = [(a, b) if (running[a] < 0, a) < (running[b] < 0, b) else (b, a) for a, b in pairs]
    leaders, followers = np.array(ordered, dtype=np.int64).reshape(-1, 2).T
    deficits, fractions, runnable = demand.deficits.copy(), demand.fractions.copy(), demand.runnable.copy()
    runnable[leaders] &= runnable[followers]
    for a, b in ordered:
        deficits[a], fractions[a], open_to = _of_pair(companies, claims, a, b, deficits.shape[1])
        runnable[a] &= open_to
    deficits[followers] = fractions[followers] = 0.0
    runnable[followers] = False
    restarts, received, kinds = demand.restart_rounds.copy(), demand.received.copy(), demand.kinds.copy()
    on, new, promised = demand.running_on.copy(), demand.new.copy(), demand.promised.copy()
    restarts[leaders] = np.maximum(restarts[leaders], restarts[followers])
    received[leaders] = (received[leaders] + received[followers]) / 2
    new[leaders] &= new[followers]
    promised[leaders] = np.minimum(promised[leaders], promised[followers])
    kinds[leaders] = np.where(
        kinds[leaders] == PlacementPreference.APART, PlacementPreference.TOGETHER, kinds[leaders]
    )  # how fast pairs are spread nobody knows
    on[followers] = -1
    joint = replace(
        demand,
        deficits=deficits,
        fractions=fractions,
        runnable=runnable,
        running_on=on,
        restart_rounds=restarts,
        received=received,
        new=new,
        promised=promised,
        kinds=kinds,
    )
    return ColocationGroups(tuple(ColocationGroup(pair, pair[0] if running[pair[0]] >= 0 else -1) for pair in ordered), joint)


def _of_pair(companies: ColocationPromises, claims: Floats, a: int, b: int, num_types: int) -> tuple[Floats, Floats, Mask]:
    """(K,) what a pair is owed from before, (K,) what it is promised, the mean of both, and (K,) where it is promised anything."""
    deficits, fractions, open_to = np.zeros(num_types), np.zeros(num_types), np.zeros(num_types, dtype=bool)
    kinds = companies.kinds[[a, b]].tolist()
    for j in range(num_types):
        keys = (a, kinds[1], j), (b, kinds[0], j)
        sides = [companies.place_of[key] for key in keys if key in companies.place_of]
        if len(sides) == len(keys):
            fractions[j] = companies.fractions[sides].mean()
            deficits[j] = claims[sides].mean() - fractions[j]
            open_to[j] = True
    return deficits, fractions, open_to
