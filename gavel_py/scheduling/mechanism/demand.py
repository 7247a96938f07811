"""The demand of a round, from which mechanisms select jobs; the scores of jobs on types; and the selection so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices
from gavel_py.scheduling.ledger import TURN_RESTARTS, surplus_of_turn
from gavel_py.scheduling.mechanism.limits import RoundLimit
from gavel_py.scheduling.mechanism.tenants import TenantClaims


@dataclass(frozen=True, eq=False)
class SpeedTable:
    """Throughputs of N jobs by C options (type, number of GPUs), stored once for each of S kinds of jobs.

    Attributes:
        kinds: (N,) the kind of each job.
        types: (C,) the type of each option.
        gpus: (C,) its number of GPUs.
        table: (S, C) steps/s, 0 where a job has no such option.
    """

    kinds: Indices
    types: Indices
    gpus: Indices
    table: Floats

    def place_of(self, types: Indices, gpus: Indices) -> Indices:
        """Return (N,) the options with these types and numbers of GPUs, -1 where there is none."""
        most = int(max(self.gpus.max(initial=0), gpus.max(initial=0))) + 1
        places = np.full((int(max(self.types.max(initial=0), types.max(initial=0))) + 2, most), -1, dtype=np.int64)
        places[self.types, self.gpus] = np.arange(len(self.types))
        return places[types, gpus]  # type -1 is the last row


@dataclass(frozen=True, eq=False)
class SizeDemand:
    """The data that determines the numbers of GPUs of N jobs in a round.

    Attributes:
        speeds: Throughputs by type and number of GPUs.
        is_elastic: (N,) whether the number of GPUs is to be chosen, and deficits and fractions are in GPU-rounds.
        running_on: (N,) column of the type in the previous round, -1 for none.
        held: (N,) number of GPUs in the previous round, 0 for none.
        promised: (N, C) whether a job is promised time in each option of `speeds`.
        weights: (N,).
        age_seconds: (N,) time since jobs arrived.
        restarts: (N,) how often jobs have been given new GPUs, not counting the first start.
        restart_seconds: (N,) cost of a restart.
    """

    speeds: SpeedTable
    is_elastic: NDArray[np.bool_]
    running_on: Indices
    held: Indices
    promised: NDArray[np.bool_]
    weights: Floats
    age_seconds: Floats
    restarts: Floats
    restart_seconds: Floats


class GangSelection(NamedTuple):
    """Selected jobs with numbers of GPUs. columns: (N,) of their types, -1 for jobs that wait; num_gpus: (N,)."""

    columns: Indices
    num_gpus: Indices


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundDemand:
    """The input of a selection: N jobs and K accelerator types. Ties go to the first job.

    Attributes:
        deficits: (N, K) D_ij in rounds, negative for a surplus.
        fractions: (N, K) time fractions X_ij.
        runnable: (N, K) whether job i may run on type j in this round.
        throughputs: (N, K) steps/s, 0 where the job can never run.
        num_gpus: (N,) gang sizes s_i; for an elastic job its smallest size, with deficits and fractions in GPU-rounds.
        capacities: (K,) free GPUs c_j.
        running_on: (N,) column of the type in the previous round, -1 for none.
        backfill: Whether GPUs left over may go to jobs without a claim.
        received: (N, K) rounds received under the current allocation; 0 by default.
        restart_rounds: (N,) cost of a restart in rounds (`RoundPlanner.demand`); 0 by default.
        turn_rounds: (N,) rounds since the start of jobs that run; 0 by default.
        locked: (N,) running jobs that must stay on their type; none by default.
        new: (N,) jobs that have never run; none by default.
        promised: (N,) rounds promised so far on all types; infinite by default.
        preferences: (N, K) `PlacementPreference` of each job on each type; ANY by default.
        sizes: The data for choosing numbers of GPUs; None if all are fixed.
        limits: What is left of the limits that hold in every round. All jobs that are `runnable` keep them together, so mechanisms
            need not read them.
        tenants: The claims of tenants; None if there are not several.
    """

    deficits: Floats
    fractions: Floats
    runnable: NDArray[np.bool_]
    throughputs: Floats
    num_gpus: NDArray[np.int64]
    capacities: NDArray[np.int64]
    running_on: NDArray[np.int64]
    backfill: bool
    received: Floats = field(default_factory=lambda: np.zeros(()))
    restart_rounds: Floats = field(default_factory=lambda: np.zeros(()))
    turn_rounds: Floats = field(default_factory=lambda: np.zeros(()))
    locked: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((), dtype=bool))
    new: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((), dtype=bool))
    promised: Floats = field(default_factory=lambda: np.full((), np.inf))
    preferences: NDArray[np.int8] = field(default_factory=lambda: np.zeros((), dtype=np.int8))
    sizes: SizeDemand | None = None
    limits: tuple[RoundLimit, ...] = ()
    tenants: TenantClaims | None = None

    def __post_init__(self) -> None:
        """Fill in the defaults in their full shape."""
        jobs, pairs = self.num_gpus.shape, self.fractions.shape
        by_job = dict.fromkeys(("restart_rounds", "turn_rounds", "locked", "new", "promised"), jobs)
        for name, shape in {**by_job, "received": pairs, "preferences": pairs}.items():
            if getattr(self, name).shape != shape:
                object.__setattr__(self, name, np.broadcast_to(getattr(self, name), shape))

    @cached_property
    def claims(self) -> Floats:
        """(N, K) D_ij + X_ij: the deficit of job i on type j at the end of this round if it does not run there."""
        return rounded(self.deficits + self.fractions)

    @cached_property
    def shares(self) -> Floats:
        """(N, K) X_ij, rounded."""
        return rounded(self.fractions)

    @cached_property
    def running(self) -> NDArray[np.bool_]:
        """(N, K) whether job i ran on type j in the previous round."""
        running: NDArray[np.bool_] = self.running_on[:, None] == np.arange(len(self.capacities))
        return running

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        """(N, K) whether job i may run on type j and its gang fits the free GPUs there."""
        return self.runnable & (self.num_gpus[:, None] <= self.capacities)

    def copy(self) -> RoundDemand:
        """Return a copy with its own arrays, which the caller may change before reading properties."""
        names = [each.name for each in fields(self) if each.name not in FIELDS_APART]
        arrays: dict[str, Any] = {name: getattr(self, name).copy() for name in names}
        return replace(self, **arrays)


FIELDS_APART = ("backfill", "sizes", "limits", "tenants")
"""Fields of a demand that are not arrays."""

Mechanism = Callable[[RoundDemand], NDArray[np.int64]]
"""Returns the (N,) column of the type on which each job runs, -1 for none."""

SizingMechanism = Callable[[RoundDemand], NDArray[np.int64] | GangSelection]
"""A mechanism that may choose the numbers of GPUs as well."""


def sizing(mechanism: SizingMechanism) -> SizingMechanism:
    """Mark a mechanism that returns a `GangSelection` for demands with `sizes`, so that it may be used with elastic jobs."""
    vars(mechanism)["chooses_gpus"] = True
    return mechanism


def is_sizing(mechanism: SizingMechanism) -> bool:
    """Return whether a mechanism is marked as one that chooses numbers of GPUs."""
    return bool(getattr(mechanism, "chooses_gpus", False))


def rounded(rounds: Floats) -> Floats:
    """Return the values rounded to 6 digits, so that rounding errors of solvers and sums do not decide ties."""
    return rounds.round(6)


HYSTERESIS_ROUNDS = 2.6
"""h in `hysteresis_of`."""

URGENT_ROUNDS = 3.0
"""Claims above this come before all others."""

URGENT_SCORE = 5.0
"""Raises urgent pairs above the others, whose scores differ by a few rounds, in proportion to the excess. If it were much larger,
fractions that no round can deliver would dominate how gangs are packed."""

NO_SLACK_ROUNDS = 0.5
"""Bonus of jobs whose fractions add up to every round, since they can never recover a round in which they wait."""

LARGE_GANG_ROUNDS = 0.6
"""A gang of s GPUs that is promised a fraction X of the time gets its turn 0.6·(1 − X)·(1 − 1/√s) rounds earlier, since it takes
long until enough GPUs are free together, and each of its few promised rounds counts. Without this, gangs of 8 had three times the
mean undelivered share."""

HALFWAY_ROUNDS = 2.0
"""Number of promised rounds, including the next one, after which a job has half of the full hysteresis. A deficit of one round is a
third of the promise after three rounds, and a hundredth after a hundred. So jobs with a small promise so far, which may leave
before they are compensated, go first and take short turns."""

CLAIM_WEIGHT = 0.02
"""Weight of the claim, so that of pairs about equally near to their bound the one with the larger claim goes first."""


def scores_of(demand: RoundDemand, hysteresis_rounds: float = HYSTERESIS_ROUNDS, urgent_rounds: float = URGENT_ROUNDS) -> Floats:
    """Return (N, K) the score of each pair that is due this round, at least 0, and -inf for all other pairs.

    The score depends on m_i = (P_i + 1) / (P_i + 1 + HALFWAY_ROUNDS), where P_i is the number of rounds promised to job i so far.
    """
    maturity = 1.0 - HALFWAY_ROUNDS / (demand.promised[:, None] + 1.0 + HALFWAY_ROUNDS)
    restarts = demand.restart_rounds[:, None]
    of_pairs = demand.fractions, demand.num_gpus[:, None], restarts, hysteresis_rounds, maturity
    hysteresis = hysteresis_of(*of_pairs)
    kept = hysteresis_of(*of_pairs, in_turn=rounded(demand.turn_rounds[:, None] - TURN_RESTARTS * restarts) < 0)
    claims, running = demand.claims, demand.running
    urgent = urgent_rounds + surplus_of_turn(demand.fractions, restarts)
    due = claims > 0
    if demand.backfill:
        # A job may also run ahead of its promise on idle GPUs; the hysteresis bounds how far ahead.
        due |= running & (demand.shares > 0) & (claims + hysteresis > 0)
    switching_is_free = not hysteresis_rounds and not demand.restart_rounds.any()
    scores = _nearness(demand, urgent_rounds) if switching_is_free else _weighed(demand, hysteresis, kept, maturity)
    scores += np.where(claims > urgent, URGENT_SCORE * (1.0 + claims - urgent), 0.0)
    return np.where(demand.possible & due, scores, -np.inf)


def raised_scores_of(demand: RoundDemand) -> Floats:
    """Return (N, K) the scores, raised for the jobs of tenants that are owed GPUs (`TenantClaims.raised`)."""
    scores = scores_of(demand)
    return scores if demand.tenants is None else demand.tenants.raised(scores)


def hysteresis_of(
    fractions: Floats,
    num_gpus: NDArray[np.int64],
    restart_rounds: Floats,
    rounds: float = HYSTERESIS_ROUNDS,
    maturity: Floats | float = 1.0,
    in_turn: NDArray[np.bool_] | bool = True,
) -> Floats:
    """Return h_ij = max(m_i·h·(½ + √(X_ij (1 − X_ij)))/√s_i + r_i, w_ij), in rounds, in the shape of the fractions.

    r_i is the cost of a restart of job i, and w_ij the surplus after a turn of TURN_RESTARTS·r_i rounds (`surplus_of_turn`).

    The choice of jobs (`scores_of`), of partners (`colocation`) and of the gangs that keep their GPUs in placement
    (`round_planning`, `event_driven`) weighs restarts by it.

    Once a job has run for TURN_RESTARTS·r_i rounds, its turn is over (`in_turn`), and w_ij no longer keeps it in place.

    Turns of n rounds let a deficit swing by n·(1 − X) and cost a restart every n/X rounds. The sum of s·swing for a given number of
    restarts is least when swings are proportional to √(X (1 − X)/s). No turn is shorter than a round; hence the ½.
    """
    spread = np.sqrt(np.clip(fractions * (1.0 - fractions), 0.0, None))
    least = maturity * (rounds * (0.5 + spread) / np.sqrt(num_gpus)) + restart_rounds
    return np.where(in_turn, np.maximum(least, surplus_of_turn(fractions, restart_rounds)), least)


def _weighed(demand: RoundDemand, hysteresis: Floats, of_running: Floats, maturity: Floats) -> Floats:
    """Return (N, K) the scores of pairs before urgency; of_running: (N, K) h_ij where jobs run.

    The score is claim_ij for jobs that have never run, which lose nothing by a restart, and claim_ij − a_i ± h_ij/2 for the others,
    with a_i = m_i·(1 − LARGE_GANG_ROUNDS·(1 − Σ_j X_ij)·(1 − 1/√s_i)). Jobs that have run and are promised every round get half a
    round more. All scores are raised by the largest subtrahend, since serving any job is better than an idle GPU.
    """
    idle = np.maximum(0.0, 1.0 - rounded(demand.fractions.sum(axis=1, keepdims=True)))
    lead = LARGE_GANG_ROUNDS * idle * (1.0 - 1.0 / np.sqrt(demand.num_gpus[:, None]))
    kept = np.where(demand.running, of_running, -hysteresis) / 2 + NO_SLACK_ROUNDS * (idle == 0.0) - maturity * (1.0 - lead)
    has_run = ~demand.new[:, None]
    raised = hysteresis.max(initial=0.0, where=has_run) + 1.0 if has_run.any() else 0.0
    return raised + demand.claims + np.where(has_run, kept, 0.0)


def _nearness(demand: RoundDemand, urgent_rounds: float) -> Floats:
    """Return (N, K) 1/t_ij + 1/t_i + a small multiple of the claim.

    t_ij is the number of rounds until the claim of the pair passes the bound, and t_i until all claims of job i do. If restarts are
    free, jobs can take turns by deadline, and deficits stay smaller than with the largest claims first. t_i accounts for jobs that
    are promised every round, which can never recover a round in which they wait.
    """
    claims, fractions = demand.claims, np.maximum(demand.fractions, 1e-9)
    promised = np.where(demand.shares > 0, claims, np.maximum(claims, 0.0))

    def inverse_time(claims: Floats, rates: Floats) -> Floats:
        return 1.0 / (1.0 + np.maximum(0.0, urgent_rounds - claims) / rates)

    of_job = inverse_time(promised.sum(axis=1, keepdims=True), np.maximum(fractions.sum(axis=1, keepdims=True), 1e-9))
    return rounded(inverse_time(claims, fractions) + of_job + CLAIM_WEIGHT * claims)


class TypeSelection:
    """The types selected for jobs so far."""

    def __init__(self, num_gpus: Indices, capacities: Indices) -> None:
        self.num_gpus = num_gpus  # (N,) gang sizes
        self.columns: Indices = np.full(len(num_gpus), -1, dtype=np.int64)  # (N,) column of the type of each job, -1 for none
        self.free: list[int] = [int(capacity) for capacity in capacities]  # K numbers of free GPUs

    def copy(self) -> TypeSelection:
        """Return an independent copy."""
        other = TypeSelection(self.num_gpus, np.array(self.free))
        other.columns = self.columns.copy()
        return other

    def take(self, other: TypeSelection) -> None:
        """Replace this selection by another one, such as a changed copy."""
        self.columns, self.free = other.columns, other.free

    def select(self, rows: Indices, columns: Indices) -> None:
        """Select waiting jobs, each on a type; the caller ensures that the gangs fit."""
        self.columns[rows] = columns
        used = np.bincount(columns, weights=self.num_gpus[rows], minlength=len(self.free))
        self.free = [left - int(taken) for left, taken in zip(self.free, used, strict=True)]

    def move(self, row: int, column: int) -> None:
        """Select one job on another type, or deselect it (-1); the caller ensures that the gangs fit after all moves."""
        before, size = int(self.columns[row]), int(self.num_gpus[row])
        if before >= 0:
            self.free[before] += size
        if column >= 0:
            self.free[column] -= size
        self.columns[row] = column
