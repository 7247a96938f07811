"""The future of a cluster with Kueue if nothing else arrives: when each workload starts and ends, cycle by cycle.

Beside Kueue's own cycle, a run needs what is around it: heads that preempt stay heads until their victims have left, equal heads
that cannot be admitted wait together until quota is freed, and an eviction costs work since the last checkpoint and a restart.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

from gavel_py.integrations.kueue.cycle import NO_LONGER, HeadOutcome, Scheduler
from gavel_py.integrations.kueue.objects import GPUS, Object
from gavel_py.integrations.kueue.preemption import QueuedWorkload, drop, take
from gavel_py.integrations.kueue.quota import Key, QueueNode, quantity, quota_tree
from gavel_py.integrations.kueue.reading import LEAST_HOURS, KueueJob, KueueState
from gavel_py.integrations.kueue.usage import UsageHistory

CHECKPOINT_HOURS, RESTART_HOURS, GRACE_HOURS = 0.5, 5 / 60, 30 / 3600
"""Work since the last checkpoint is lost by an eviction, which takes 30 s; a restart takes 5 minutes."""

MOST_EVICTIONS = 100
"""Evictions per job after which a replay stops: jobs that evict each other without end never end."""

TIE_ORDERS = 5
"""Orders of reservations of one instant over which starts, ends and gains are computed."""

TIE = 1e-9
"""Hours between reservations of one instant: enough for an order, too little for anything else."""

HALF_LIFE_HOURS = 168.0
"""Of admission fair sharing; the configuration of Kueue is not in a dump."""


@dataclass(frozen=True)
class KueueChanges:
    """What is changed before a replay.

    queues: {ClusterQueue: its spec}; flavors: {key of a job: those it may use}; priorities: {key of a job: priority}.
    """

    queues: Mapping[str, Object] = field(default_factory=dict)
    flavors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KueueForecast:
    """A replay: hours from now, by the key of a job; jobs that never start are absent.

    Attributes:
        starts: First start of what waits.
        ends: End.
        first_flavors: The flavor at the first start.
        victims: Keys of evicted jobs, in order, one for each eviction.
        queues: {key: ClusterQueue} of all jobs.
    """

    starts: Mapping[str, float]
    ends: Mapping[str, float]
    first_flavors: Mapping[str, str]
    victims: tuple[str, ...]
    queues: Mapping[str, str]

    @cached_property
    def mean(self) -> float:
        """Mean hours to the end."""
        return statistics.fmean(self.ends.values()) if self.ends else 0.0

    @cached_property
    def last(self) -> float:
        """Hours to the last end."""
        return max(self.ends.values(), default=0.0)


def forecast_kueue(state: KueueState, changes: KueueChanges | None = None, *, tie_order: int = 0) -> KueueForecast:
    """Replay Kueue's decisions on what waits and runs, if nothing else arrives.

    Args:
        state: The cluster.
        changes: What to change first.
        tie_order: Order of reservations of one instant, among which preemption takes the latest: 0 as cycles go, others at random.

    Raises:
        InputError: The cluster uses what is not modelled.
    """
    state.require_forecast()
    jobs = [job for job in state.jobs if job.flavor or not job.held]
    return KueueReplay(state, changes or KueueChanges(), tie_order).run([(job, 0.0) for job in jobs])


def order_only(state: KueueState, queues: Iterable[str]) -> dict[str, Object]:
    """Return {ClusterQueue: its spec} in which priorities order the queue, but preempt nothing within it.

    Else higher priorities would evict what runs, and its work since the last checkpoint would be lost.
    """
    found: dict[str, Object] = {}
    for name in queues:
        spec = state.objects["ClusterQueue"][name]["spec"]
        found[name] = {**spec, "preemption": {**(spec.get("preemption") or {}), "withinClusterQueue": "Never"}}
    return found


class _Run:
    """A job in a replay. kind: equal for jobs that Kueue treats alike; order: behind its number in the queue."""

    __slots__ = ("epoch", "evictions", "flavor", "job", "kind", "left", "order", "since", "workload")

    def __init__(self, job: KueueJob, workload: QueuedWorkload, kind: object, number: int) -> None:
        self.job, self.workload, self.kind = job, workload, kind
        self.order = (-workload.priority, workload.queued, workload.uid, number)
        self.left = max(min(LEAST_HOURS, job.hours), job.hours - job.done)
        self.flavor, self.since, self.epoch, self.evictions = job.flavor, 0.0, 0, job.evictions

    @property
    def speed(self) -> float:
        return self.job.speeds.get(self.flavor) or 1.0


class _WaitingLine:
    """What waits in a ClusterQueue: for its turn, or `parked` until quota is freed."""

    def __init__(self, queue: QueueNode, history: UsageHistory | None) -> None:
        self.heap: list[tuple[tuple[Any, ...], _Run]] = []
        self.parked: list[_Run] = []
        self.preemptor: _Run | None = None
        self.is_awake = False
        self.is_strict = queue.spec.get("queueingStrategy") == "StrictFIFO"
        self.history = history

    def push(self, run: _Run) -> None:
        heapq.heappush(self.heap, (run.order, run))
        self.is_awake = True

    def wake(self) -> None:
        """Let all that is parked have its turn again."""
        for run in self.parked:
            self.push(run)
        self.parked.clear()
        self.is_awake = bool(self.heap) or self.preemptor is not None

    def waits_for_victims(self, run: _Run) -> None:
        """Keep a workload as the head, but let it be quiet until its victims have left."""
        self.preemptor, self.is_awake = run, False

    def head(self, failed: set[object]) -> _Run | None:
        """Return the next in line; those of a kind that has just failed are parked."""
        if self.preemptor is not None:
            run, self.preemptor = self.preemptor, None
            return run
        while self.heap and self.is_awake:
            run = self.heaviest_last() if self.history else heapq.heappop(self.heap)[1]
            if run.kind not in failed or self.is_strict:
                return run
            self.parked.append(run)
        self.is_awake = False
        return None

    def heaviest_last(self) -> _Run:
        """Take the first by the use of its LocalQueue, then as without admission fair sharing."""
        usage = self.history.usage if self.history else lambda _: 0.0
        entry = min(self.heap, key=lambda entry: (usage(_local_queue(entry[1].workload)), entry[0]))
        self.heap.remove(entry)
        heapq.heapify(self.heap)
        return entry[1]


def _local_queue(workload: QueuedWorkload) -> str:
    return f"{workload.key.partition('/')[0]}/{workload.local_queue}"


class KueueReplay:
    """A replay; `run` may be called once."""

    def __init__(self, state: KueueState, changes: KueueChanges, tie_order: int = 0) -> None:
        objects, self.changes = state.objects["ClusterQueue"], changes
        specs = [{**each, "spec": changes.queues.get(name, each["spec"])} for name, each in objects.items()]
        self.queues = quota_tree(specs, state.objects["Cohort"].values())
        self.scheduler = Scheduler(self.queues, is_fair=state.is_fair, explains=False)
        self.random = random.Random(tie_order) if tie_order else None  # noqa: S311
        self.history = _history(state)
        self.lines = {
            name: _WaitingLine(queue, self.history if _has_usage_order(queue) else None) for name, queue in self.queues.items()
        }
        self.of_root: dict[str, list[_WaitingLine]] = defaultdict(list)
        for name, queue in self.queues.items():
            self.of_root[queue.root.name].append(self.lines[name])
        self.now, self.decisions = 0.0, 0
        self.events: list[tuple[float, int, str, _Run, int]] = []
        self.numbers = count()
        self.runs: dict[QueuedWorkload, _Run] = {}
        self.first, self.ends = dict[str, tuple[float, str]](), dict[str, float]()
        self.victims: list[str] = []

    def run(self, jobs: Iterable[tuple[KueueJob, float]]) -> KueueForecast:
        """Replay to the end jobs that arrive at these hours, or hold quota from the beginning."""
        for number, (job, arrival) in enumerate(jobs):
            run = self.prepared(job, number)
            self.runs[run.workload] = run
            if job.flavor:
                take(self.queues, run.workload)
                is_leaving = run.workload.is_evicted
                self.schedule(GRACE_HOURS if is_leaving else run.left / run.speed, "out" if is_leaving else "end", run)
            else:
                self.schedule(arrival, "new", run)
        while self.events and len(self.victims) <= MOST_EVICTIONS * len(self.runs):
            sampled, self.now = self.now, max(self.now, self.events[0][0])
            if self.history:
                self.sample(self.history, self.now - sampled)
            while self.events and self.events[0][0] <= self.now + TIE:
                _, _, what, run, epoch = heapq.heappop(self.events)
                if epoch == run.epoch:
                    self.happen(what, run)
            self.decide()
        queues = {run.job.key: run.job.queue for run in self.runs.values()}
        starts, flavors = {key: start for key, (start, _) in self.first.items()}, {key: on for key, (_, on) in self.first.items()}
        return KueueForecast(starts, self.ends, flavors, tuple(self.victims), queues)

    def prepared(self, job: KueueJob, number: int) -> _Run:
        """Return a job with what is changed: its priority, and the flavors that its GPUs may use."""
        given, excluded = job.workload, dict(job.workload.excluded)
        allowed = self.changes.flavors.get(job.key, job.flavors)
        for name, requests in given.requests.items():
            if any(resource in GPUS for resource in requests):
                own = {flavor: why for flavor, why in excluded.get(name, {}).items() if flavor not in job.speeds}
                excluded[name] = own | dict.fromkeys((flavor for flavor in job.speeds if flavor not in allowed), "")
        priority = self.changes.priorities.get(job.key, given.priority)
        is_evicted = given.is_evicted and bool(job.flavor)
        workload = replace(given, priority=priority, excluded=excluded, usage=dict(given.usage), is_evicted=is_evicted)
        asked = tuple((name, tuple(sorted(requests.items()))) for name, requests in given.requests.items())
        kind = job.queue, priority, asked, tuple((name, *sorted(found)) for name, found in excluded.items())
        return _Run(job, workload, kind, number)

    def schedule(self, when: float, what: str, run: _Run) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), what, run, run.epoch))

    def happen(self, what: str, run: _Run) -> None:
        """Let a job arrive, end, or leave after an eviction."""
        line = self.lines[run.job.queue]
        if what == "new":
            line.push(run)
        elif what == "out" or not run.workload.is_evicted:
            drop(self.queues, run.workload)
            run.epoch += 1
            if what == "end":
                self.ends[run.job.key] = self.now
            else:
                run.workload.is_evicted, run.flavor, run.workload.usage = False, "", {}
                if not run.job.held:
                    line.push(run)
            for each in self.of_root[self.queues[run.job.queue].root.name]:
                each.wake()

    def decide(self) -> None:
        """Let Kueue decide, cycle by cycle, until no head can be admitted any more."""
        failed: set[object] = set()
        while True:
            awake = [line for line in self.lines.values() if line.is_awake]
            heads = [head for line in awake if (head := line.head(failed)) is not None]
            if not heads:
                return
            # A head that waits for its victims is nominated in each cycle, so that others cannot take what it waits for.
            heads += [head for line in self.lines.values() if line not in awake and (head := line.head(failed)) is not None]
            self.decisions += 1
            outcomes = self.scheduler.run([head.workload for head in heads])
            has_changed = any(each.is_admitted or any(not victim.is_evicted for victim, _ in each.targets) for each in outcomes)
            for outcome in outcomes:
                self.apply(outcome, failed, has_changed=has_changed)

    def apply(self, outcome: HeadOutcome, failed: set[object], *, has_changed: bool) -> None:
        """Do what a cycle has decided on a head. has_changed: whether the cycle has admitted or preempted anything."""
        run = self.runs[outcome.workload]
        line = self.lines[run.job.queue]
        if outcome.is_admitted:
            self.admit(run, outcome)
        elif outcome.targets:
            for victim, _ in outcome.targets:
                if not victim.is_evicted:
                    self.evict(self.runs[victim])
            # It stays the head of its queue until its victims have left.
            line.waits_for_victims(run)
        elif outcome.message == NO_LONGER and has_changed:
            line.push(run)  # has its turn again in the next cycle
        elif line.is_strict:
            line.push(run)
            line.is_awake = False
        else:
            line.parked.append(run)
            failed.add(run.kind)

    def admit(self, run: _Run, outcome: HeadOutcome) -> None:
        workload, key = run.workload, run.job.key
        workload.usage = {key: value for key, value in outcome.choice.usage.items() if value > 0}
        # Of the reservations of one instant, a later cycle's is the later one; their stamps have seconds, so that any order may be.
        order = self.decisions if self.random is None else self.random.randrange(1 << 20)
        workload.reserved = self.now + TIE * order
        take(self.queues, workload)
        run.flavor = next((found[name] for found in outcome.choice.flavors.values() for name in GPUS if name in found), "")
        run.since = self.now
        self.first.setdefault(key, (self.now, run.flavor))
        self.schedule(self.now + run.left / run.speed + (RESTART_HOURS if run.evictions else 0.0), "end", run)
        if self.history:
            self.history.admit(_local_queue(workload), workload.usage)

    def evict(self, run: _Run) -> None:
        """Let a job leave within the grace time, with the work until its last checkpoint."""
        restart = RESTART_HOURS if run.evictions and run.job.key in self.first else 0.0
        ran = max(0.0, self.now - run.since - restart)
        run.left = max(TIE, run.left - int(ran / CHECKPOINT_HOURS) * CHECKPOINT_HOURS * run.speed)
        run.evictions += 1
        run.workload.is_evicted = True
        self.victims.append(run.job.key)
        self.schedule(self.now + GRACE_HOURS, "out", run)

    def sample(self, history: UsageHistory, hours: float) -> None:
        held: dict[str, dict[Key, int]] = defaultdict(lambda: defaultdict(int))
        for run in self.runs.values():
            if run.flavor and run.job.key not in self.ends:
                for key, value in run.workload.usage.items():
                    held[_local_queue(run.workload)][key] += value
        history.sample(held, hours)


def _has_usage_order(queue: QueueNode) -> bool:
    return (queue.spec.get("admissionScope") or {}).get("admissionMode") == "UsageBasedAdmissionFairSharing"


def _history(state: KueueState) -> UsageHistory | None:
    """Return what LocalQueues have used, if some ClusterQueue orders by it."""
    if not any(_has_usage_order(QueueNode(name, each["spec"])) for name, each in state.objects["ClusterQueue"].items()):
        return None
    weights, consumed = {}, {}
    for name, each in state.objects["LocalQueue"].items():
        weight = (each["spec"].get("fairSharing") or {}).get("weight")
        weights[name] = 1.0 if weight is None else float(quantity(weight))
        status = ((each.get("status") or {}).get("fairSharing") or {}).get("admissionFairSharingStatus") or {}
        consumed[name] = {resource: float(quantity(used)) for resource, used in (status.get("consumedResources") or {}).items()}
    return UsageHistory(half_life=HALF_LIFE_HOURS, sampling=5 / 60, weights=weights, consumed=consumed)
