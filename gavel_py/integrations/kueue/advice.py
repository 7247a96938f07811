"""Changes of order and flavors that shorten a backlog, each replayed under Kueue's rules before it is advised.

Prices of a linear program give reasons; they do not decide, since a fluid optimum is right only while all queues are full.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from gavel_py.allocation.solver import solve
from gavel_py.errors import nearest, refuse, together
from gavel_py.integrations.kueue.objects import GPUS, Object
from gavel_py.integrations.kueue.reading import KueueJob, KueueState
from gavel_py.integrations.kueue.replay import TIE_ORDERS, KueueChanges, KueueForecast, forecast_kueue, order_only
from gavel_py.problem.problem import AllocationProblem

LEAST_GAIN = 0.03
MOST_LATER = 0.02
"""The most by which a queue may be later, on the worst of the orders of simultaneous reservations."""

LEVELS = 6
SEARCH_STEP = 0.998
AS_IT_IS = "as it is"

Scope = Callable[[KueueJob], frozenset[str]]


@dataclass(frozen=True)
class KueueTry:
    """A change, replayed under several orders of simultaneous reservations.

    Attributes:
        name: What is changed.
        changes: The same for the replay.
        forecasts: A replay for each order.
        counted: Keys of the jobs that end without any change; one that no longer ends counts as infinitely late.
        asks: Keys of jobs whose own node selector would have to go.
    """

    name: str
    changes: KueueChanges
    forecasts: tuple[KueueForecast, ...]
    counted: tuple[str, ...]
    asks: tuple[str, ...] = ()

    @cached_property
    def mean(self) -> float:
        """Mean hours to the end, over orders."""
        return statistics.fmean(_mean(each, self.counted) for each in self.forecasts)

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """Least and most mean hours over orders."""
        means = [_mean(each, self.counted) for each in self.forecasts]
        return min(means), max(means)

    @cached_property
    def last(self) -> float:
        """Hours to the last end, mean over orders."""
        return statistics.fmean(each.last for each in self.forecasts)

    @cached_property
    def evictions(self) -> float:
        """Evictions, mean over orders."""
        return statistics.fmean(len(each.victims) for each in self.forecasts)

    @cached_property
    def by_queue(self) -> dict[str, float]:
        """{ClusterQueue: mean hours to the end of its jobs}, mean over orders."""
        return {name: statistics.fmean(hours) for name, hours in self.hours_of_queues.items()}

    @cached_property
    def worst_by_queue(self) -> dict[str, float]:
        """The same on the worst of the orders."""
        return {name: max(hours) for name, hours in self.hours_of_queues.items()}

    @cached_property
    def hours_of_queues(self) -> dict[str, list[float]]:
        """{ClusterQueue: mean hours to the end of its jobs, for each order}."""
        keys: dict[str, list[str]] = {}
        for key in self.counted:
            keys.setdefault(self.forecasts[0].queues[key], []).append(key)
        return {name: [_mean(each, own) for each in self.forecasts] for name, own in sorted(keys.items())}

    def delays_no_queue(self, base: KueueTry) -> bool:
        """Return whether no queue is more than 2 % later than without any change, on the worst order."""
        return all(hours <= base.by_queue[name] * (1 + MOST_LATER) for name, hours in self.worst_by_queue.items())

    def gain(self, base: KueueTry) -> float:
        """Return the fraction by which the mean falls."""
        return 1 - self.mean / base.mean if base.mean else 0.0

    def is_worth(self, base: KueueTry) -> bool:
        """Return whether it gains at least 3 %, more than the range of orders, and delays no queue by more than 2 %."""
        return self.gain(base) >= LEAST_GAIN and self.extremes[1] < base.extremes[0] and self.delays_no_queue(base)


@dataclass(frozen=True)
class KueueAdvice:
    """What `gavel kueue advise` found.

    Attributes:
        state: The cluster.
        base: The replay without any change.
        tries: All changes that were rated, in order.
        kept: The best change that leaves all node selectors alone, None if none is worth it.
        lifted: The best change of all if it lifts node selectors, otherwise None.
        prices: {flavor: work that one more GPU would add, in GPUs of the reference flavor}.
        replays: The number of replays.
    """

    state: KueueState
    base: KueueTry
    tries: tuple[KueueTry, ...]
    kept: KueueTry | None
    lifted: KueueTry | None
    prices: Mapping[str, float]
    replays: int

    def reasons(self, chosen: KueueTry) -> list[str]:
        """Return the reason by prices for each queue and type of job whose flavors change."""
        found: dict[tuple[str, str], str] = {}
        for job in self.state.pending:
            allowed = chosen.changes.flavors.get(job.key, job.flavors)
            away = sorted(job.liftable - allowed, key=lambda flavor: -job.speeds[flavor])
            if allowed != job.flavors and away and (job.queue, job.job_type) not in found:
                speed, price = job.speeds[away[0]], self.prices.get(away[0], 0.0)
                text = f"a GPU of {away[0]} would do {speed:.2f}, its price is {price:.2f}"
                found[job.queue, job.job_type] = f"{job.queue}, {job.job_type} on {', '.join(sorted(allowed))}: {text}"
        return list(found.values())


def advise_kueue(state: KueueState, own: Iterable[str] = (), *, most_steps: int = 40) -> KueueAdvice:
    """Replay changes of order and flavors, and return those that are worth it.

    Args:
        state: The cluster.
        own: Changes of the user: "queue: flavor,flavor" lets the jobs of a ClusterQueue use these flavors only.
        most_steps: Steps of each search for flavors by class.

    Raises:
        InputError: The cluster uses what is not modelled, or a change of the user names an unknown queue or flavor.
    """
    state.require_forecast()
    with together() as attempt:
        changes = [attempt(partial(_own_try, state, text)) for text in own]
    return _Adviser(state).advice(changes, most_steps)


def _own_try(state: KueueState, text: str) -> tuple[str, dict[str, frozenset[str]]]:
    queue, colon, names = text.partition(":")
    queue, flavors = queue.strip(), frozenset(name.strip() for name in names.split(","))
    where, known = f"--try {text!r}", state.objects["ClusterQueue"]
    refuse(where, (not colon or "" in flavors, "", "must be of the form `queue: flavor,flavor`"))
    refuse(where, (queue not in known, "", f"there is no ClusterQueue {queue!r}{nearest(queue, known)}"))
    own = state.quotas(queue)
    refuse(where, *((name not in own, "", f"{queue} has no flavor {name!r}{nearest(name, own)}") for name in sorted(flavors)))
    return f"your try, {text}", {job.key: job.liftable & flavors or job.flavors for job in state.pending if job.queue == queue}


class _Adviser:
    def __init__(self, state: KueueState) -> None:
        self.state, self.replays = state, 0
        self.pending = state.pending
        self.queues = sorted({job.queue for job in self.pending})
        self.calm = order_only(state, self.queues)
        self.short = _short_first(self.pending)
        self.counted: tuple[str, ...] = ()
        self.base = self.rated(AS_IT_IS, KueueChanges())
        self.counted = self.base.counted
        self.prices = _prices(state)

    def advice(self, own: list[tuple[str, dict[str, frozenset[str]]]], most_steps: int) -> KueueAdvice:
        tries = [self.base, *(self.rated(name, KueueChanges(flavors=flavors)) for name, flavors in own)]
        if self.pending:
            tries += self.simple_tries()
            for name, scope in ((f"{SHORT}, flavors by class", _kept), (f"{SHORT}, flavors by class, pins lifted", _liftable)):
                tries.append(self.searched(name, scope, most_steps))
        worth = sorted((each for each in tries if each.is_worth(self.base)), key=lambda each: each.mean)
        kept = next((each for each in worth if not each.asks), None)
        best = worth[0] if worth else None
        lifted = best if best is not None and best.asks else None
        return KueueAdvice(self.state, self.base, tuple(tries), kept, lifted, self.prices, self.replays)

    def simple_tries(self) -> Iterator[KueueTry]:
        lifted = {job.key: job.liftable for job in self.pending}
        by_value = {name: self.by_value(name, spec) for name, spec in self.calm.items()}
        yield self.rated("flavor order by value", KueueChanges({name: self.by_value(name) for name in self.queues}))
        yield self.rated("every flavor that runs a job", KueueChanges(flavors=lifted))
        yield self.rated(SHORT, KueueChanges(self.calm, priorities=self.short))
        yield self.rated(f"{SHORT}, flavor order by value", KueueChanges(by_value, priorities=self.short))
        yield self.rated(f"{SHORT}, every flavor", KueueChanges(self.calm, lifted, self.short))

    def rated(self, name: str, changes: KueueChanges) -> KueueTry:
        """Return a change with its replays under all orders."""
        return self.made(name, changes, [self.replayed(changes, order) for order in range(TIE_ORDERS)])

    def made(self, name: str, changes: KueueChanges, forecasts: Iterable[KueueForecast]) -> KueueTry:
        asks = (job.key for job in self.pending if changes.flavors.get(job.key, job.flavors) - job.flavors)
        forecasts = tuple(forecasts)
        counted = self.counted or tuple(key for key in forecasts[0].ends if all(key in each.ends for each in forecasts))
        return KueueTry(name, changes, forecasts, counted, tuple(asks))

    def replayed(self, changes: KueueChanges, order: int) -> KueueForecast:
        self.replays += 1
        return forecast_kueue(self.state, changes, tie_order=order)

    def searched(self, name: str, scope: Scope, most_steps: int) -> KueueTry:
        """Take one flavor after another from classes (queue, type) while the mean falls and no queue is delayed."""
        flavors = {(job.queue, job.job_type): set[str]() for job in self.pending}
        for job in self.pending:
            flavors[job.queue, job.job_type] |= scope(job)
        best, steps, is_better = self.rated(name, self.restricted(flavors, scope)), 0, True
        while is_better and steps < most_steps:
            is_better = False
            for kind in sorted(flavors):
                for flavor in sorted(flavors[kind]):
                    if len(flavors[kind]) < 2 or steps >= most_steps:
                        continue
                    steps += 1
                    fewer = {**flavors, kind: flavors[kind] - {flavor}}
                    found = self.improved(name, self.restricted(fewer, scope), best)
                    if found is not None:
                        flavors, best, is_better = fewer, found, True
        return best

    def improved(self, name: str, changes: KueueChanges, best: KueueTry) -> KueueTry | None:
        """Return a change if it is better than the best so far; most turn out worse before all orders are replayed."""
        wanted, spread = best.mean * SEARCH_STEP, best.extremes[1] - best.extremes[0]
        forecasts: list[KueueForecast] = []
        while len(forecasts) < TIE_ORDERS:
            forecasts.append(self.replayed(changes, len(forecasts)))
            if statistics.fmean(_mean(each, best.counted) for each in forecasts) > wanted + spread / (1 + len(forecasts)):
                return None
        found = self.made(name, changes, forecasts)
        is_better = found.mean < wanted and (found.delays_no_queue(self.base) or not best.delays_no_queue(self.base))
        return found if is_better else None

    def restricted(self, flavors: Mapping[tuple[str, str], set[str]], scope: Scope) -> KueueChanges:
        allowed = {job.key: (scope(job) & flavors[job.queue, job.job_type]) or scope(job) for job in self.pending}
        return KueueChanges(self.calm, allowed, self.short)

    def by_value(self, queue: str, spec: Object | None = None) -> Object:
        """Return the spec of a queue with its GPU flavors ordered by what its waiting jobs gain on them, most first."""
        spec = spec or self.state.objects["ClusterQueue"][queue]["spec"]
        jobs = [job for job in self.pending if job.queue == queue]

        def gain(flavor: str) -> float:
            gains = [(job.speeds[flavor] - self.prices.get(flavor, 0.0), job.gpus) for job in jobs if job.speeds.get(flavor)]
            gpus = sum(gpus for _, gpus in gains)
            return sum(value * gpus for value, gpus in gains) / gpus if gpus else -math.inf

        groups = []
        for group in spec.get("resourceGroups") or []:
            has_gpus = any(name in GPUS for name in group["coveredResources"])
            order = sorted(group["flavors"], key=lambda each: -gain(each["name"])) if has_gpus else group["flavors"]
            groups.append({**group, "flavors": order})
        return {**spec, "resourceGroups": groups}


SHORT = "short first, order only"


def _mean(forecast: KueueForecast, keys: Sequence[str]) -> float:
    return statistics.fmean(forecast.ends.get(key, math.inf) for key in keys) if keys else 0.0


def _kept(job: KueueJob) -> frozenset[str]:
    return job.flavors


def _liftable(job: KueueJob) -> frozenset[str]:
    return job.liftable | job.flavors


def _short_first(jobs: Iterable[KueueJob]) -> dict[str, int]:
    """Return {key: priority} by stated length: no level from 16 h on, one level more each time the length halves below that.

    Levels stay below the next higher priority among the jobs of the same queue.
    """
    priorities: dict[str, set[int]] = {}
    jobs = list(jobs)
    for job in jobs:
        priorities.setdefault(job.queue, set()).add(job.workload.priority)
    found = {}
    for job in jobs:
        above = [each - job.workload.priority for each in priorities[job.queue] if each > job.workload.priority]
        room = min([LEVELS, *above])
        level = max(0, LEVELS - 1 - max(0, int(math.log2(max(job.hours, 0.5)) + 1)))
        found[job.key] = job.workload.priority + level * room // LEVELS
    return found


def _prices(state: KueueState) -> dict[str, float]:
    """Return the work that one more GPU of each flavor would add, by the dual prices of the most work that can be done at once."""
    gpus: dict[str, int] = {}
    for name in {*state.objects["ClusterQueue"], *state.objects["Cohort"]}:
        for flavor, quota in state.quotas(name).items():
            gpus[flavor] = gpus.get(flavor, 0) + quota
    flavors = sorted(flavor for flavor, count in gpus.items() if count > 0)
    jobs = [job for job in state.jobs if not job.held and job.gpus <= max(gpus.values())]
    rows = [
        [job.speeds.get(flavor, 0.0) * job.gpus if flavor in (job.liftable | job.flavors) else 0.0 for flavor in flavors]
        for job in jobs
    ]
    if not jobs or not any(map(any, rows)):
        return {}
    sizes = [job.gpus for job in jobs]
    problem = AllocationProblem.from_arrays(rows, [gpus[flavor] for flavor in flavors], accelerator_types=flavors, num_gpus=sizes)
    prices = solve(problem, "max_total_throughput", normalized=False).shadow_prices
    return {} if prices is None else dict(zip(flavors, map(float, prices), strict=True))
