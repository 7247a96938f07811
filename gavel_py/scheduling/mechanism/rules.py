"""The rules that select the jobs of a round: `choose_jobs`, the default, by deficits; `choose_by_priority`, Gavel's published rule.

`resolve_mechanism` finds the rule of a name. `select_in_order` selects jobs greedily in a given order, without a loop over jobs.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, UnknownNameError, nearest
from gavel_py.io.plugins import Plugins
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.scheduling.mechanism.demand import (
    HYSTERESIS_ROUNDS,
    URGENT_ROUNDS,
    GangSelection,
    Mechanism,
    RoundDemand,
    SizingMechanism,
    TypeSelection,
    is_sizing,
    rounded,
    scores_of,
)
from gavel_py.scheduling.mechanism.elastic import choose_by_goodput, choose_promised
from gavel_py.scheduling.mechanism.local_search import MAX_STEPS, changed_and_exchanged, improve
from gavel_py.scheduling.mechanism.tenants import TenantClaims

NAMES = ("deficit", "priority", "direct")

SIZING = ("deficit", "direct")
"""The built-in mechanisms that choose the numbers of GPUs of elastic jobs."""

PLUGINS = Plugins("gavel_py.mechanisms", "mechanism", "mechanisms", "function", NAMES, inspect.isfunction)


def select_in_order(selection: TypeSelection, eligible: NDArray[np.bool_], *keys: NDArray[Any]) -> None:
    """Select waiting jobs on eligible pairs of job and type in the order of the keys, skipping gangs that do not fit.

    All pairs before the first gang that does not fit are selected at once. Its type is then closed to gangs of its size and above,
    so that a few passes are enough.

    Args:
        selection: The jobs selected so far; it is extended.
        eligible: (N, K) the pairs that may be selected.
        keys: (N, K) each; smallest first, the first key takes precedence. Ties go to the first job.
    """
    fitting = selection.num_gpus[:, None] <= np.array(selection.free)
    pairs = np.flatnonzero(eligible & fitting & (selection.columns < 0)[:, None])
    order = np.lexsort([key.take(pairs) for key in reversed(keys)])
    rows, columns = np.divmod(pairs[order], eligible.shape[1])
    while rows.size:
        selected = _until_one_does_not_fit(selection, rows, columns)
        selection.select(rows[selected], columns[selected])
        left = (selection.columns[rows] < 0) & (selection.num_gpus[rows] <= np.array(selection.free)[columns])
        rows, columns = rows[left], columns[left]


def _until_one_does_not_fit(selection: TypeSelection, rows: Indices, columns: Indices) -> Indices:
    """Return the positions in a list of pairs of the jobs that fit, before the first gang that does not fit."""
    first = np.flatnonzero(_first_of_job(rows, len(selection.columns)))
    sizes, types = selection.num_gpus[rows[first]], columns[first]
    fits = np.ones(len(first), dtype=bool)
    for column, free in enumerate(selection.free):
        of_type = types == column
        fits[of_type] = np.cumsum(sizes[of_type]) <= free
    return first if fits.all() else first[: int(fits.argmin())]


def _first_of_job(rows: Indices, count: int) -> NDArray[np.bool_]:
    """Return for each position whether it is the first occurrence of its job."""
    positions = np.arange(len(rows))
    earliest = np.empty(count, dtype=np.int64)
    earliest[rows[::-1]] = positions[::-1]  # of repeated rows, the last assignment counts
    result: NDArray[np.bool_] = earliest[rows] == positions
    return result


def choose_jobs(
    demand: RoundDemand, *, hysteresis_rounds: float = HYSTERESIS_ROUNDS, urgent_rounds: float = URGENT_ROUNDS
) -> NDArray[np.int64]:
    """Return the (N,) column of the type on which each job runs this round, -1 for none; Σ_i s_i <= c_j on each type.

    Job i has a claim of D_ij + X_ij rounds on type j, and is due there this round if the claim is positive. If the job has never
    run, the score of a due pair is its claim. Otherwise it is the claim − a_i, plus h_ij/2 on the type where the job runs now and
    minus h_ij/2 elsewhere, plus half a round if it is promised all rounds. a_i grows with the rounds promised to the job so far,
    from ⅓ to 1 for one GPU, and to less for a large gang with a small time fraction; h_ij grows in the same way (`scores_of`).
    Pairs with a claim above `urgent_rounds` and the surplus after a turn (`surplus_of_turn`) come before all others.

    1. Select the locked jobs.
    2. Select jobs by score, skipping gangs that do not fit. With several tenants, the scores of jobs within the claim of their
       tenant are raised, and those of jobs beyond it lowered (`TenantClaims.raised`; after step 3, `share_out`).
    3. Exchange and displace jobs (`improve`) while Σ s_i·score_i over the selected jobs rises.
    4. With `backfill`, fill the remaining GPUs with waiting jobs, each where it is fastest relative to its own best type, so that
       no GPU is idle while a waiting job fits.

    So a running gang keeps its place until the claim of another gang exceeds its own by the mean of their h (`hysteresis_of`); h is
    less for a gang whose turn is over. With h = 0 and free restarts, jobs take turns by the time until their claims pass
    `urgent_rounds`, and the deficits of single-GPU jobs nearly always stay below one round. For single-GPU jobs, step 3 ends with a
    maximum-weight assignment. With gangs of mixed sizes each round is a packing problem, which step 3 solves approximately.
    """
    selection = TypeSelection(demand.num_gpus, demand.capacities)
    if demand.locked.any():
        select_in_order(selection, demand.possible & demand.running & demand.locked[:, None], -demand.claims)
    scores = scores_of(demand, hysteresis_rounds, urgent_rounds)
    # Locked jobs are already selected; without scores, the next steps leave them in place.
    scores[selection.columns >= 0] = -np.inf
    raised = scores if demand.tenants is None else demand.tenants.raised(scores)
    select_in_order(selection, np.isfinite(raised), -raised, -demand.shares)
    improve(selection, raised)
    if demand.tenants is not None:
        share_out(selection, scores, demand.tenants)
    if demand.backfill and any(selection.free):
        select_in_order(selection, demand.possible, -_relative_speed(demand), ~demand.running, -demand.claims, -demand.shares)
    return selection.columns


VERY_FEW_GPUS = 64
"""Up to this number of GPUs, a gang may be more than the claim of its tenant (`share_out`)."""


def share_out(selection: TypeSelection, scores: Floats, tenants: TenantClaims) -> None:
    """Change jobs while Σ s_i·score_i − ½ Σ_g (C_g − GPUs of tenant g)² rises (`TenantClaims.marginal`), on very small clusters.

    Scores that are raised in advance (`TenantClaims.raised`) count all jobs of a tenant, also gangs that then find no room; here,
    only selected jobs count. With more GPUs the difference is small, and further changes cost more restarts than they are worth.
    """
    if sum(selection.free) + int(selection.num_gpus[selection.columns >= 0].sum()) > VERY_FEW_GPUS:
        return
    for _ in range(MAX_STEPS):
        if not changed_and_exchanged(selection, lambda trial: tenants.marginal(scores, trial.columns >= 0)):
            return


def _relative_speed(demand: RoundDemand) -> Floats:
    """Return (N, K) T_ij / max_k T_ik, 0 for a job that cannot run anywhere."""
    best = demand.throughputs.max(axis=1, keepdims=True, initial=0.0)
    relative: Floats = np.divide(demand.throughputs, best, out=np.zeros_like(demand.throughputs), where=best > 0)
    return relative


PUBLISHED_ORDER = ("v100", "p100", "k80")

FIRST_ROUNDS = 0.5
"""Initial value of the time received, so that no priority is divided by 0."""


def choose_by_priority(demand: RoundDemand, *, type_order: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return the (N,) column of the type on which each job runs this round, -1 for none, by the published rule (OSDI 2020).

    The priority of a pair is X_ij / f_ij, where f_ij is the share of job i in all time received on type j under the current
    allocation. Types are filled one after the other by priority; ties are decided by deficit, then by X. Gangs that do not fit are
    skipped. With `backfill`, jobs without a time fraction fill the remaining GPUs. Locked jobs come first. Deficits from earlier
    allocations do not count.

    Args:
        demand: The demand of the round.
        type_order: Columns in the order in which types are filled; by default their own order.
    """
    fractions = rounded(demand.fractions)
    selection = TypeSelection(demand.num_gpus, demand.capacities)
    select_in_order(selection, demand.possible & demand.running & demand.locked[:, None], -demand.claims)
    keys = (-_priorities(demand.received, fractions), -rounded(demand.deficits), -fractions)
    order = range(len(demand.capacities)) if type_order is None else type_order
    for eligible in (fractions > 0, fractions <= 0) if demand.backfill else (fractions > 0,):
        for column in order:
            of_type = np.arange(len(demand.capacities)) == column
            select_in_order(selection, demand.possible & eligible & of_type, *keys)
    return selection.columns


def published_order(accelerator_types: Sequence[str]) -> list[int]:
    """Return the columns in the order of the published rule: v100, p100, k80, then all others in their own order."""
    known = [accelerator_types.index(name) for name in PUBLISHED_ORDER if name in accelerator_types]
    return [*known, *(j for j in range(len(accelerator_types)) if j not in known)]


def _priorities(received: Floats, fractions: Floats) -> Floats:
    """Return (N, K) X_ij / f_ij."""
    clocks = received + FIRST_ROUNDS
    return rounded(fractions * clocks.sum(axis=0) / clocks)


def resolve_mechanism(mechanism: str | Mechanism, accelerator_types: Sequence[str]) -> SizingMechanism:
    """Return the mechanism with this name; a function is returned unchanged.

    `choose_by_deficit` is called `deficit`, `choose_by_priority` `priority`, and `choose_by_goodput` `direct`.

    Args:
        mechanism: The name of a built-in mechanism or of one from an installed package; package.module:name of a function; or a
            function of a `RoundDemand`.
        accelerator_types: Columns of the demands.

    Raises:
        UnknownNameError: There is no mechanism of this name.
        InputError: It is neither a name nor a function.
    """
    if mechanism == "deficit":
        return choose_by_deficit
    if mechanism == "direct":
        return choose_by_goodput
    if mechanism == "priority":
        return partial(choose_by_priority, type_order=published_order(accelerator_types))
    if isinstance(mechanism, str):
        return _named(mechanism)
    if not callable(mechanism):
        problem = f"must be a name or a function of a RoundDemand, found {mechanism!r}"
        raise InputError(Fault("round scheduler", "mechanism", problem))
    return mechanism


def chooses_gpus(mechanism: str | Mechanism, accelerator_types: Sequence[str]) -> bool:
    """Return whether a mechanism chooses the numbers of GPUs of elastic jobs: it is in `SIZING`, or a function marked as such."""
    return mechanism in SIZING or is_sizing(resolve_mechanism(mechanism, accelerator_types))


def choose_by_deficit(demand: RoundDemand) -> NDArray[np.int64] | GangSelection:
    """Return the jobs that `choose_jobs` selects, or `choose_promised` where it also chooses numbers of GPUs."""
    return choose_jobs(demand) if demand.sizes is None else choose_promised(demand)


@cache
def _named(name: str) -> Mechanism:
    """Return a mechanism of a user or of a package; cached, since every round needs it."""
    if ":" not in name and name not in (known := [*NAMES, *PLUGINS.offers()]):
        hint = f"; to use your own, write {PLUGINS.form}" if "." in name else nearest(name, known)
        raise UnknownNameError(Fault("round scheduler", "mechanism", f"there is no mechanism {name!r}{hint}"))
    found, where = PLUGINS.loaded(name)
    if not callable(found) or inspect.isclass(found):
        raise InputError(Fault(where, "", f"must be a function of a RoundDemand, found {found!r}"))
    return found
