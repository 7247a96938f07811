"""Why a workload waits, by Kueue's own rules: who holds what it needs, when it starts, and the least change that admits it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.integrations.kueue.cycle import HeadOutcome
from gavel_py.integrations.kueue.objects import GPUS, conditions, labels_of
from gavel_py.integrations.kueue.overview import idle_gpus
from gavel_py.integrations.kueue.preemption import take
from gavel_py.integrations.kueue.reading import NO_FLAVOR, KueueJob, KueueState
from gavel_py.integrations.kueue.replay import TIE_ORDERS, KueueChanges, KueueForecast, KueueReplay, forecast_kueue, order_only
from gavel_py.report.measures import counted

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
        reason: Why it waits, one of Kueue's reasons, or "Held", or "" if nothing keeps it.
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
    outcome = None if job.flavor or job.held not in ("", NO_FLAVOR) else now.outcome(job)
    reason, details = _reason(state, job, outcome)
    starts, ends = (_range([getattr(each, what).get(job.key) for each in forecasts]) for what in ("starts", "ends"))
    wanted = job.flavors if not job.flavor else frozenset()
    holders = [
        QuotaHolder(other.key, other.queue, flavor, gpus, forecasts[0].ends.get(other.key) if forecasts else None)
        for other in state.running
        for flavor, gpus in other.held_gpus.items()
        if gpus and flavor in wanted and state.cohort_of(other.queue) == state.cohort_of(job.queue)
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
        holders=tuple(sorted(holders, key=lambda each: (math.inf if each.ends is None else each.ends, each.key))),
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
        if more:
            for resource in GPUS:
                if (more[0], resource) in replay.queues[job.queue].nominal:
                    replay.queues[job.queue].nominal[more[0], resource] += more[1]
            replay.queues[job.queue].root.close()
        # What a queue does not lend follows from its quota, and what its cohort counts from that.
        for other in self.state.running:
            take(replay.queues, other.workload)
        workload = replay.prepared(job, 0).workload
        kept = {
            name: {f: why or f"flavor {f} is not allowed" for f, why in found.items()} for name, found in workload.excluded.items()
        }
        original = job.workload.excluded
        workload.excluded = {
            name: {f: original.get(name, {}).get(f, why) for f, why in found.items()} for name, found in kept.items()
        }
        return replay.scheduler.run([workload])[0]


def _reason(state: KueueState, job: KueueJob, outcome: HeadOutcome | None) -> tuple[str, tuple[str, ...]]:
    if job.flavor:
        held = [f"{counted(gpus, 'GPU')} of {flavor}" for flavor, gpus in job.held_gpus.items()]
        return "", (f"It holds {' and '.join(held)}.",)
    if outcome is None:
        return "Held", (f"Nothing admits it: {job.held}.",)
    idle = idle_gpus(state)[state.cohort_of(job.queue)]
    details = []
    for flavor, quota in state.quotas(job.queue).items():
        if flavor in job.flavors:
            free = max(0, idle[flavor])
            details.append(f"{flavor}: {job.gpus} needed, {free} idle in its cohort; its queue has a quota of {quota}.")
        else:
            details.append(f"{flavor}: not allowed, {_why_not(state, job, flavor)}.")
    if job.held and set(job.speeds) - {flavor for found in job.workload.excluded.values() for flavor in found}:
        return "Held", (f"Nothing admits it: {job.held}.", *details)
    if outcome.is_admitted:
        ahead = len(_ahead(state, job))
        text = f"It fits; {ahead} of its queue have their turn before it." if ahead else "It fits, and is next in its queue."
        return ("WaitingForQuota" if ahead else ""), (text, *details)
    return outcome.reason, (outcome.message + "." if outcome.message else "", *details)


def _why_not(state: KueueState, job: KueueJob, flavor: str) -> str:
    """Return why a job may not use a flavor: the labels that its node selector wants, or Kueue's words."""
    labels = {name: labels_of(state.objects["ResourceFlavor"][name]) for name in state.quotas(job.queue)}
    known = {key for found in labels.values() for key in found}
    for pod_set in job.source["spec"]["podSets"]:
        why = job.workload.excluded[pod_set["name"]].get(flavor)
        if why is not None:
            selector = pod_set["template"]["spec"].get("nodeSelector") or {}
            other = [f"{key}={value}" for key, value in selector.items() if key in known and labels[flavor].get(key) != value]
            return f"its nodeSelector is {', '.join(other)}" if other else why
    return "no speed of its type there is known"


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
        found.append(f"{counted(quota[1], 'more GPU')} of {quota[0]} in the quota of {job.queue}: it is admitted at once")
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

        fewest = _first(admits, job.gpus + sum(other.held_gpus.get(flavor, 0) for other in state.running))
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
