"""Why a workload waits, by Kueue's own rules: who holds what it needs, when it starts, and the least change that admits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.integrations.kueue.cycle import HeadOutcome
from gavel_py.integrations.kueue.objects import conditions
from gavel_py.integrations.kueue.overview import idle_gpus
from gavel_py.integrations.kueue.preemption import take
from gavel_py.integrations.kueue.reading import GPUS, KueueJob, KueueState
from gavel_py.integrations.kueue.replay import KueueChanges, KueueForecast, KueueReplay, forecast_kueue, order_only

TIE_ORDERS = 5
"""Orders of reservations of one instant over which a start and an end are told."""

SOONER_HOURS = 0.05


@dataclass(frozen=True)
class QuotaHolder:
    """A workload that holds GPUs of a flavor that another one waits for.

    Attributes:
        key: Namespace/name.
        queue: Its ClusterQueue.
        flavor: The flavor of its GPUs.
        gpus: Its GPUs.
        ends: Hours until it ends by the replay; None without a forecast.
    """

    key: str
    queue: str
    flavor: str
    gpus: int
    ends: float | None


@dataclass(frozen=True)
class KueueExplanation:
    """What `gavel kueue explain` says of a workload.

    Attributes:
        key: Namespace/name.
        queue: Its ClusterQueue.
        gpus: Its GPUs.
        job_type: Its type.
        flavor: The flavor that it holds, or "".
        reason: Why it waits, one of Kueue's reasons, or "Held", "Inactive" or "" if nothing keeps it.
        details: The same in sentences.
        ahead: Workloads of its queue that have their turn before it.
        kueue_says: Kueue's own message, or "".
        starts: Least and most hours until its start over tie orders, if nothing else arrives; None if it never starts.
        ends: The same of its end.
        starts_on: The flavor on which it starts.
        holders: Who holds the flavors that it may use, first to end first.
        changes: The least changes of each kind that admit it, or let it start sooner.
        without_forecast: What makes a forecast impossible.
    """

    key: str
    queue: str
    gpus: int
    job_type: str
    flavor: str
    reason: str
    details: tuple[str, ...]
    ahead: int
    kueue_says: str
    starts: tuple[float, float] | None
    ends: tuple[float, float] | None
    starts_on: str
    holders: tuple[QuotaHolder, ...]
    changes: tuple[str, ...]
    without_forecast: tuple[str, ...]


def explain_kueue(state: KueueState, key: str) -> KueueExplanation:
    """Return why a workload waits or where it runs.

    Args:
        state: The cluster.
        key: Namespace/name of a Workload, or of the Job that owns it.

    Raises:
        InputError: There is no such workload, or it has finished.
    """
    job = _find(state, key)
    forecasts = [forecast_kueue(state, tie_order=order) for order in range(TIE_ORDERS)] if not state.unmodelled else []
    now = _Now(state)
    outcome = None if job.flavor or job.held else now.outcome(job)
    reason, details = _reason(state, job, outcome)
    starts, ends = (_range([getattr(each, what).get(job.key) for each in forecasts]) for what in ("starts", "ends"))
    wanted = job.flavors if not job.flavor else frozenset()
    holders = [
        QuotaHolder(other.key, other.queue, other.flavor, other.gpus, forecasts[0].ends.get(other.key) if forecasts else None)
        for other in state.running
        if other.flavor in wanted and state.cohort_of(other.queue) == state.cohort_of(job.queue)
    ]
    return KueueExplanation(
        key=job.key,
        queue=job.queue,
        gpus=job.gpus,
        job_type=job.job_type,
        flavor=job.flavor,
        reason=reason,
        details=details,
        ahead=len(_ahead(state, job)),
        kueue_says=str(conditions(job.source).get("QuotaReserved", {}).get("message", "")) if not job.flavor else "",
        starts=None if job.flavor else starts,
        ends=ends,
        starts_on=forecasts[0].first_flavors.get(job.key, "") if forecasts else "",
        holders=tuple(sorted(holders, key=lambda each: (each.ends or 0.0, each.key))),
        changes=tuple(_changes(state, job, now, forecasts)) if outcome is not None else (),
        without_forecast=state.unmodelled,
    )


def _find(state: KueueState, key: str) -> KueueJob:
    found = [job for job in state.jobs if key in (job.key, f"{job.key.partition('/')[0]}/{job.owner[1]}")]
    if found:
        return found[0]
    if key in {f"{each['metadata'].get('namespace', '')}/{each['metadata']['name']}" for each in state.finished}:
        raise InputError(Fault(key, "", "has finished; gavel trace import --format kueue reads what has finished"))
    known = [job.key for job in state.jobs]
    raise InputError(Fault(key, "", f"is no Workload or Job with GPUs, as NAMESPACE/NAME{nearest(key, known)}"))


def _range(values: list[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and len(known) == len(values) else None


def _ahead(state: KueueState, job: KueueJob) -> list[KueueJob]:
    """Return what has its turn before a job in its queue."""

    def order(each: KueueJob) -> tuple[Any, ...]:
        return -each.workload.priority, each.workload.queued, each.workload.uid

    return [other for other in state.pending if other.queue == job.queue and order(other) < order(job)]


class _Now:
    """Kueue's next cycle, with one job as the only head."""

    def __init__(self, state: KueueState) -> None:
        self.state = state

    def outcome(self, job: KueueJob, changes: KueueChanges | None = None, more: tuple[str, int] | None = None) -> HeadOutcome:
        """Return what a cycle would do with a job; more: a flavor with GPUs of nominal quota to add to its queue."""
        replay = KueueReplay(self.state, changes or KueueChanges())
        replay.scheduler.explains = True
        for other in self.state.running:
            take(replay.queues, other.workload)
        if more:
            for resource in GPUS:
                if (more[0], resource) in replay.queues[job.queue].nominal:
                    replay.queues[job.queue].nominal[more[0], resource] += more[1]
            replay.queues[job.queue].root.close()
        workload = replay.prepared(job, 0).workload
        kept = {
            name: {f: why or f"flavor {f} is not allowed" for f, why in found.items()} for name, found in workload.excluded.items()
        }
        original = job.workload.excluded
        workload.excluded = {
            name: {f: original.get(name, {}).get(f, why) for f, why in found.items()} for name, found in kept.items()
        }
        outcome = replay.scheduler.run([workload])[0]
        for other in self.state.running:
            replay.queues[other.queue].workloads.remove(other.workload)
        return outcome


def _reason(state: KueueState, job: KueueJob, outcome: HeadOutcome | None) -> tuple[str, tuple[str, ...]]:
    if job.flavor:
        return "", (f"It holds {job.gpus} GPUs of {job.flavor}.",)
    if outcome is None:
        return "Held", (f"Nothing admits it: {job.held}.",)
    idle = idle_gpus(state)[state.cohort_of(job.queue)]
    details = []
    for flavor, quota in state.quotas(job.queue).items():
        if flavor in job.flavors:
            details.append(f"{flavor}: it needs {job.gpus}, {max(0, idle[flavor])} are idle in its cohort, its queue has {quota}.")
        else:
            why = next((found[flavor] for found in job.workload.excluded.values() if flavor in found), "")
            selector = job.source["spec"]["podSets"][0]["template"]["spec"].get("nodeSelector") or {}
            own = f"its nodeSelector is {', '.join(f'{k}={v}' for k, v in selector.items())}" if selector else why
            details.append(f"{flavor}: not allowed, {own if why else 'no speed of its type there is known'}.")
    if outcome.is_admitted:
        ahead = len(_ahead(state, job))
        text = f"It fits; {ahead} of its queue have their turn before it." if ahead else "It fits, and is next in its queue."
        return ("WaitingForQuota" if ahead else ""), (text, *details)
    return outcome.reason, (outcome.message + "." if outcome.message else "", *details)


def _changes(state: KueueState, job: KueueJob, now: _Now, forecasts: list[KueueForecast]) -> list[str]:
    """Return the least change of each kind: a flavor more, GPUs of quota, places in the queue."""
    found = []
    for flavor in sorted(job.liftable - job.flavors, key=lambda flavor: -job.speeds[flavor]):
        outcome = now.outcome(job, KueueChanges(flavors={job.key: job.flavors | {flavor}}))
        if outcome.is_admitted:
            found.append(f"allow {flavor} too (speed {job.speeds[flavor]:.3g}): it is admitted at once")
            break
    quota = _least_quota(state, job, now)
    if quota is not None:
        found.append(f"{quota[1]} more GPUs of {quota[0]} in the quota of {job.queue}: it is admitted at once")
    ahead = _ahead(state, job)
    if ahead and forecasts:
        first = max(other.workload.priority for other in ahead) + 1
        changes = KueueChanges(order_only(state, {job.queue}), priorities={job.key: first})
        sooner = forecast_kueue(state, changes).starts.get(job.key)
        starts = forecasts[0].starts.get(job.key)
        if sooner is not None and (starts is None or sooner < starts - SOONER_HOURS):
            before = "never" if starts is None else f"in {starts:.1f} h"
            places = "1 place" if len(ahead) == 1 else f"{len(ahead)} places"
            found.append(f"{places} in its queue: it starts in {sooner:.1f} h instead of {before}")
    return found


def _least_quota(state: KueueState, job: KueueJob, now: _Now) -> tuple[str, int] | None:
    """Return the flavor and the fewest GPUs of quota that, added to its queue, admit a job at once."""
    best: tuple[str, int] | None = None
    for flavor in sorted(job.flavors):

        def admits(gpus: int, flavor: str = flavor) -> bool:
            return now.outcome(job, KueueChanges(flavors={job.key: frozenset({flavor})}), (flavor, gpus)).is_admitted

        fewest = _first(admits, job.gpus + sum(other.gpus for other in state.running if other.flavor == flavor))
        if fewest and (best is None or fewest < best[1]):
            best = flavor, fewest
    return best


def _first(is_true: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 1 to `most` for which a rising condition is true."""
    low, high = 0, most
    if not is_true(most):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_true(middle) else (middle, high)
    return high
