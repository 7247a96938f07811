"""The length of turns, which follows from the cost of preemption on this cluster.

`choose` is the mechanism of the driver's rounds: if every job has GPUs, jobs rarely exchange types. `beyond_limits` lets jobs take
turns if a limit of an account or QOS has no room for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gavel_py.integrations.slurm.accounts import ADMITTED, OVER, PASSED, WAITING, Accounts, Turns
from gavel_py.integrations.slurm.client.records import Phase, SlurmJob
from gavel_py.integrations.slurm.job_roles import Eligibility, parse_annotation
from gavel_py.scheduling.mechanism.demand import HYSTERESIS_ROUNDS, URGENT_ROUNDS, GangSelection, RoundDemand, sizing
from gavel_py.scheduling.mechanism.elastic import choose_promised
from gavel_py.scheduling.mechanism.rules import choose_jobs

if TYPE_CHECKING:
    from gavel_py.integrations.slurm.partitions import PartitionRules
    from gavel_py.integrations.slurm.state import DriverState

MECHANISM = f"{__name__}:choose"

PATIENCE = 5.0
"""Factor by which turns are longer if no job waits. Exchanging types then only evens out speeds, which is not urgent: 45 equal jobs
on 36 fast and 36 slower GPUs exchange 18 places about every 20 rounds instead of every third round."""


@sizing
def choose(demand: RoundDemand) -> NDArray[np.int64] | GangSelection:
    """Return the (N,) column of the type on which each job runs this round, -1 for none; with elastic jobs, also their GPUs.

    Deficits decide as in `choose_jobs`, but turns are `PATIENCE` times as long if all jobs that can run have GPUs then, and
    exchanges that gain nothing are avoided (`gathered`). With elastic jobs this is `choose_promised`, under which running jobs soon
    take over the GPUs of jobs that have ended.
    """
    if demand.sizes is not None:
        return choose_promised(demand)
    demand = gathered(demand)
    patient = choose_jobs(demand, hysteresis_rounds=PATIENCE * HYSTERESIS_ROUNDS, urgent_rounds=PATIENCE * URGENT_ROUNDS)
    return patient if (patient[demand.possible.any(axis=1)] >= 0).all() else choose_jobs(demand)


def gathered(demand: RoundDemand) -> RoundDemand:
    """Return the demand with a job's fractions and deficits on equally fast types moved to the one on which it runs.

    GPUs of one type in different partitions are such types. For a waiting job, deficits are divided in proportion to its fractions.
    """
    speeds = demand.throughputs
    alike = (speeds[:, :, None] == speeds[:, None, :]) & (speeds[:, :, None] > 0)
    if not (alike.sum(axis=2) > 1).any():
        return demand
    stays = demand.running & (speeds > 0)
    is_beside = (alike & stays[:, None, :]).any(axis=2)
    fractions, deficits = ((alike * each[:, None, :]).sum(axis=2) for each in (demand.fractions, demand.deficits))
    parts = np.divide(demand.fractions, fractions, out=1.0 / np.maximum(alike.sum(axis=2), 1), where=fractions > 0)
    parts = np.where(is_beside, stays, np.where(speeds > 0, parts, 0.0))
    return replace(demand, fractions=parts * fractions, deficits=np.where(speeds > 0, parts * deficits, demand.deficits))


ROUNDS_TO_WAIT = 20
"""Rounds in the scheduler after which a job would have GPUs if there were any for it, since its deficit has grown."""


def turns_of(
    state: DriverState,
    jobs: Mapping[str, SlurmJob],
    exempt_of: Callable[[SlurmJob], float],
    now_seconds: float,
    *,
    within_round: bool,
) -> Turns:
    """Return the order of jobs by turns: a job runs for the minimum run time, and then gives way to those that have waited longest.

    exempt_of: returns the time for which a job is not preempted; within_round: whether running jobs stay as they are.
    """
    scheduler, ranks, over, overdue = state.scheduler, dict[str, tuple[int, float]](), set[str](), set[str]()
    shortest = state.restart_cost.shortest_turn(scheduler)
    for job_id, job in jobs.items():
        record, turn = state.tracked.get(job_id) or state.aside.get(job_id), max(shortest, exempt_of(job))
        if job.phase is Phase.RUNNING or (within_round and job_id in state.yielding):
            is_over = record is not None and record.runs and now_seconds >= record.stay_start_seconds + turn
            if job_id in state.yielding if within_round else is_over:
                ranks[job_id] = OVER, -(0.0 if record is None else record.stay_start_seconds)
                over.add(job_id)
        elif job_id in state.tracked:
            since = state.tracked[job_id].since_seconds
            is_passed = not within_round and now_seconds >= since + max(turn, ROUNDS_TO_WAIT * scheduler.round_seconds)
            ranks[job_id] = (PASSED if is_passed else ADMITTED), since
        else:
            submitted = job.submit_seconds if (mark := parse_annotation(job.admin_comment)) is None else mark.submit_seconds
            since = now_seconds if submitted is None else submitted
            ranks[job_id] = WAITING, since if record is None else max(since, record.since_seconds)
            if now_seconds - ranks[job_id][1] > 2 * max(turn, scheduler.round_seconds):
                overdue.add(job_id)
    return Turns(ranks, frozenset(over), frozenset(overdue))


def beyond_limits(
    state: DriverState,
    jobs: Mapping[str, SlurmJob],
    managed: Collection[str],
    accounts: Accounts,
    rules: PartitionRules,
    needs: Mapping[str, int],
    now_seconds: float,
    *,
    within_round: bool,
) -> dict[str, Eligibility]:
    """Set aside jobs for which limits leave no room: waiting ones, and between rounds running ones whose turn is over.

    A running job that could not start again in its partition stays. needs: as for `Accounts.over_limits`; within_round: as for
    `turns_of`.
    """

    def exempt_of(job: SlurmJob) -> float:
        return math.inf if any(rules.refusal(name, job) for name in job.partitions) else accounts.exempt_of(job)

    turns = turns_of(state, {i: jobs[i] for i in managed}, exempt_of, now_seconds, within_round=within_round)
    beyond = accounts.over_limits(jobs, managed, turns, needs)
    if not within_round:
        state.yielding |= {job_id for job_id in beyond if jobs[job_id].phase is Phase.RUNNING}
    return beyond
