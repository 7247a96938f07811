"""One cycle of Kueue's scheduler: flavors for the heads of the queues, preemption, and who is admitted.

As in Kueue's own scheduler.go and flavorassigner.go. Not modelled: topology-aware scheduling, partial admission, admission checks,
elastic slices and concurrent admission.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gavel_py.integrations.kueue.preemption import (
    FINAL_SHARE,
    INITIAL_SHARE,
    QueuedWorkload,
    Queues,
    Targets,
    preemption_targets,
)
from gavel_py.integrations.kueue.quota import Key, QueueNode, QuotaNode, amount_text

NO_FIT, NO_CANDIDATES, PREEMPT, RECLAIM, FIT = range(5)
STRATEGIES = (FINAL_SHARE, INITIAL_SHARE)
NO_LONGER = "Workload no longer fits after processing another workload"


class Mode(NamedTuple):
    """How a workload would get a flavor: by which means (NO_FIT to FIT), and borrowing up to which height of the tree."""

    means: int
    level: int = 0


@dataclass
class Choice:
    """The flavors of a workload, or why it has none.

    flavors: {pod set: {resource: flavor}}; level: the height up to which it borrows; lacking: keys without free quota; notes:
    {pod set: why flavors were passed over}; reason: Kueue's, if no flavor will ever do.
    """

    flavors: dict[str, dict[str, str]] = field(default_factory=dict)
    usage: dict[Key, int] = field(default_factory=dict)
    level: int = 0
    lacking: set[Key] = field(default_factory=set)
    notes: dict[str, list[str]] = field(default_factory=dict)
    reason: str | None = None

    def message(self) -> str:
        """Return why the workload waits, as Kueue words it."""
        parts = [
            f"couldn't assign flavors to pod set {name}: {', '.join(sorted(notes))}" for name, notes in self.notes.items() if notes
        ]
        return "; ".join(parts)


class HeadOutcome(NamedTuple):
    """What a cycle did with a head: admitted, preempting, or else why it waits."""

    workload: QueuedWorkload
    choice: Choice
    targets: Targets
    is_admitted: bool
    reason: str = ""
    message: str = ""


@dataclass(eq=False)
class Scheduler:
    """Kueue's scheduler on a tree of quotas.

    is_fair: fair sharing; strategies: its preemption strategies; explains: whether to word why workloads wait. `run` leaves the
    tree as it was: the caller takes and drops. oracle: {(key, amount): what one head would preempt for it}.
    """

    queues: Queues
    is_fair: bool = False
    strategies: Sequence[str] = STRATEGIES
    explains: bool = True
    oracle: dict[tuple[Key, int], Targets] = field(default_factory=dict)

    def targets(self, workload: QueuedWorkload, need: Mapping[Key, int], keys: Iterable[Key]) -> Targets:
        return preemption_targets(self.queues, workload, need, set(keys), self.strategies if self.is_fair else None)

    def targets_of(self, workload: QueuedWorkload, choice: Choice) -> Targets:
        """Return what a workload would preempt for its flavors, which is known where one key is all that it needs."""
        if not choice.lacking:
            return []
        known = self.oracle.get(next(iter(choice.usage.items()))) if len(choice.usage) == 1 else None
        return self.targets(workload, choice.usage, choice.lacking) if known is None else known

    def mode(self, workload: QueuedWorkload, queue: QueueNode, key: Key, value: int) -> Mode:
        """Return how a workload would get this much of one flavor and resource."""
        if value > queue.potential(key):
            return Mode(NO_FIT)
        level, is_below_root = lowest_fit(queue, key, value)
        if value <= max(0, queue.available(key)):
            return Mode(FIT, level)
        rules = queue.preemption
        borrows = (rules.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never"
        # No policy at all is not Never: only the webhook, which always runs in a cluster, sets Never.
        borrows = borrows or (self.is_fair and bool(rules) and rules.get("reclaimWithinCohort", "") != "Never")
        if not (queue.nominal.get(key, 0) >= value or is_below_root or borrows):
            return Mode(NO_FIT, level)
        targets = self.oracle[key, value] = self.targets(workload, {key: value}, {key})
        with _Without(self.queues, [each for each, _ in targets]):
            level = lowest_fit(queue, key, value)[0]
        if not targets:
            return Mode(NO_CANDIDATES, level)
        return Mode(PREEMPT if any(each.queue == queue.name for each, _ in targets) else RECLAIM, level)

    def choose(self, workload: QueuedWorkload) -> Choice:
        """Return the flavors of a workload, resource group by resource group."""
        queue, choice = self.queues[workload.queue], Choice()
        groups = queue.spec.get("resourceGroups") or []
        used: dict[Key, int] = defaultdict(int)
        for name, requests in workload.requests.items():
            if any("pods" in group["coveredResources"] for group in groups):
                requests = {**requests, "pods": workload.counts.get(name, 1)}
            choice.notes[name] = []
            found: dict[str, tuple[str, Mode]] = {}
            for resource in sorted(requests):
                group = next((group for group in groups if resource in group["coveredResources"]), None)
                if group is None and requests[resource]:
                    choice.notes[name].append(f"resource {resource} unavailable in ClusterQueue")
                    choice.reason = "NoMatchingFlavor"
                    return choice
                if group is not None and resource not in found:
                    asked = {each: value for each, value in requests.items() if each in group["coveredResources"]}
                    search = _FlavorSearch(self, workload, queue, name, asked, used, group["flavors"])
                    search.run()
                    choice.notes[name] += search.notes
                    if search.best is None:
                        choice.reason = search.reason()
                        return choice
                    found.update(search.best)
            for resource, (flavor, mode) in found.items():
                key = flavor, resource
                used[key] += requests[resource]
                choice.level = max(choice.level, mode.level)
                choice.lacking |= {key} if mode.means != FIT else set()
            choice.flavors[name] = {resource: flavor for resource, (flavor, _) in found.items()}
        choice.usage = dict(used)
        return choice

    def run(self, heads: Iterable[QueuedWorkload]) -> list[HeadOutcome]:
        """Return what one cycle does with these heads, at most one of each queue, in the order in which it decides."""
        outcomes, entries = [], list[tuple[QueuedWorkload, Choice, Targets]]()
        for workload in heads:
            self.oracle.clear()
            choice = self.choose(workload)
            if choice.reason:
                outcomes.append(HeadOutcome(workload, choice, [], False, choice.reason, choice.message()))
                continue
            entries.append((workload, choice, self.targets_of(workload, choice)))
        added: list[tuple[QueueNode, Key, int]] = []
        preempted: list[QueuedWorkload] = []
        for entry in self.ordered(entries):
            outcome, usage = self.decide(*entry, preempted)
            outcomes.append(outcome)
            queue = self.queues[entry[0].queue]
            for key, value in usage.items():
                queue.add(key, value)
                added.append((queue, key, value))
        for queue, key, value in reversed(added):
            queue.remove(key, value)
        return outcomes

    def decide(
        self, workload: QueuedWorkload, choice: Choice, targets: Targets, preempted: list[QueuedWorkload]
    ) -> tuple[HeadOutcome, Mapping[Key, int]]:
        """Return what becomes of a head after others of the cycle, and what it adds to the use for the rest of the cycle."""
        queue, message = self.queues[workload.queue], choice.message()
        waits = HeadOutcome(workload, choice, [], False, "WaitingForQuota", NO_LONGER)
        if choice.lacking and not targets:
            # Where nobody can be preempted, the quota is kept for the head, unless it can be reclaimed at any time.
            kept = {} if queue.policy("reclaimWithinCohort") == "Any" else _reserved(queue, choice)
            return waits._replace(message=message), kept
        if targets and workload.is_gated:
            return waits._replace(reason="AdmissionGated", message="Workload requires preemption, but it's gated"), {}
        if any(each in preempted for each, _ in targets):
            return waits, {}
        with _Without(self.queues, [*preempted, *(each for each, _ in targets)]):
            is_fit = all(value <= max(0, queue.available(key)) for key, value in choice.usage.items())
        if not is_fit:
            return waits, {}
        preempted += [each for each, _ in targets]
        if not targets:
            return waits._replace(is_admitted=True, reason="", message=""), choice.usage
        pending = f"{message}. Pending the preemption of {len(targets)} workload(s)"
        return HeadOutcome(workload, choice, targets, False, "WaitingForPreemptedWorkloads", pending), choice.usage

    def ordered(self, entries: list[tuple[QueuedWorkload, Choice, Targets]]) -> Iterator[tuple[QueuedWorkload, Choice, Targets]]:
        """Yield the heads in the order in which they are decided."""
        if not self.is_fair:
            yield from sorted(entries, key=lambda entry: (entry[1].level, -entry[0].priority, entry[0].queued, entry[0].uid))
            return
        left = {workload.queue: (workload, choice, targets) for workload, choice, targets in entries}
        while left:
            queue = self.queues[next(iter(left))]
            yield left.pop(queue.name if queue.parent is None else self.first_below(queue.root, left))

    def first_below(self, root: QuotaNode, left: Mapping[str, tuple[QueuedWorkload, Choice, Targets]]) -> str:
        """Return the queue below a root whose head goes first: a tournament by the shares that each head would lead to."""
        ranks: dict[tuple[QuotaNode, str], tuple[Any, ...]] = {}
        for queue in (queue for queue in root.queues() if queue.name in left):
            workload, choice, _ = left[queue.name]
            for key, value in choice.usage.items():
                queue.add(key, value)
            share = queue.share()
            for cohort in queue.path():
                borrows = any(choice.usage.get(key, 0) > 0 for key in share.borrowed)
                ranks[cohort, queue.name] = borrows, share.rank, -workload.priority, workload.queued
                share = cohort.share()
            for key, value in choice.usage.items():
                queue.remove(key, value)

        def best(cohort: QuotaNode) -> str:
            below = [best(child) if not isinstance(child, QueueNode) else child.name for child in _cohorts_first(cohort)]
            return min((name for name in below if name in left), key=lambda name: ranks[cohort, name], default="")

        return best(root)


def _cohorts_first(cohort: QuotaNode) -> list[QuotaNode]:
    return sorted(cohort.children, key=lambda child: isinstance(child, QueueNode))


class _Without:
    """The tree of quotas without the usage of some workloads, for a while."""

    def __init__(self, queues: Queues, workloads: Sequence[QueuedWorkload]) -> None:
        self.queues, self.workloads = queues, workloads

    def __enter__(self) -> None:
        for each in self.workloads:
            for key, value in each.usage.items():
                self.queues[each.queue].remove(key, value)

    def __exit__(self, *_: object) -> None:
        for each in reversed(self.workloads):
            for key, value in each.usage.items():
                self.queues[each.queue].add(key, value)


def lowest_fit(queue: QuotaNode, key: Key, value: int) -> tuple[int, bool]:
    """Return the height of the lowest subtree whose quota covers this much more use, and whether it is below the root."""
    if queue.parent is None or not queue.borrows(key, value):
        return 0, queue.parent is not None
    rest = value - queue.local_available(key)
    for node in queue.path():
        if node.subtree.get(key, 0) >= node.usage[key] + rest:
            return node.height, node.parent is not None
        rest -= node.local_available(key)
    return queue.root.height, False


def _reserved(queue: QueueNode, choice: Choice) -> dict[Key, int]:
    """Return how much of its quota a queue keeps for a head that waits."""
    kept = {}
    for key, value in choice.usage.items():
        nominal, usage = queue.nominal.get(key, 0), queue.usage[key]
        if choice.level > 0:
            kept[key] = min(value, nominal + queue.borrowing_limit[key] - usage) if key in queue.borrowing_limit else value
        else:
            kept[key] = max(0, min(value, nominal - usage))
    return kept


class _FlavorSearch:
    """The search for the flavor of one pod set in one resource group, in the order of its flavors."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: QueuedWorkload,
        queue: QueueNode,
        pod_set: str,
        requests: Mapping[str, int],
        used: Mapping[Key, int],
        flavors: Sequence[Mapping[str, Any]],
    ) -> None:
        self.scheduler, self.workload, self.queue, self.pod_set = scheduler, workload, queue, pod_set
        self.requests, self.used, self.flavors = requests, used, flavors
        self.best: dict[str, tuple[str, Mode]] | None = None
        self.best_mode = Mode(NO_FIT, 99)
        self.notes: list[str] = []
        self.means: set[int | None] = set()

    def run(self) -> None:
        for flavor in (each["name"] for each in self.flavors):
            excluded = self.workload.excluded.get(self.pod_set, {}).get(flavor)
            if excluded is not None:
                self.notes.append(excluded)
                self.means.add(None)
                continue
            worst, found = self.on(flavor)
            is_last = not self.goes_on(worst)
            if is_last or self.is_better(worst, self.best_mode):
                self.best, self.best_mode = found, worst
            if is_last:
                break
        if self.best_mode.means == NO_FIT:
            self.best = None
        elif self.best_mode.means == FIT:
            self.notes = []

    def on(self, flavor: str) -> tuple[Mode, dict[str, tuple[str, Mode]]]:
        """Return the worst mode in which this flavor serves the resources, and the mode of each."""
        worst, found = Mode(FIT), dict[str, tuple[str, Mode]]()
        for resource in sorted(self.requests):
            key = flavor, resource
            value = self.used[key] + self.requests[resource] if key in self.used else self.requests[resource]
            mode = self.scheduler.mode(self.workload, self.queue, key, value)
            if mode.means < FIT and self.scheduler.explains:
                self.note(key, value)
            if self.is_better(worst, mode):
                worst = mode
            if worst.means == NO_FIT:
                break
            found[resource] = flavor, mode
        self.means.add(worst.means)
        return worst, found

    def note(self, key: Key, value: int) -> None:
        """Write why a flavor has not enough of a resource."""
        flavor, resource = key
        potential, asked = self.queue.potential(key), self.requests[resource]
        if value > potential:
            before, now, most = (amount_text(resource, each) for each in (value - asked, asked, potential))
            text = f"previously considered podsets requests ({before}) + current podset request ({now}) > maximum capacity ({most})"
            self.notes.append(f"insufficient quota for {resource} in flavor {flavor}, {text}")
            self.means.add(-1)
            return
        more = amount_text(resource, value - max(0, self.queue.available(key)))
        self.notes.append(f"insufficient unused quota for {resource} in flavor {flavor}, {more} more needed")

    def goes_on(self, mode: Mode) -> bool:
        """Return whether the search goes on after a flavor (flavorFungibility)."""
        rules = self.queue.fungibility
        if mode.means in (NO_FIT, NO_CANDIDATES):
            return True
        if mode.means in (PREEMPT, RECLAIM) and rules.get("whenCanPreempt", "TryNextFlavor") == "TryNextFlavor":
            return True
        return mode.level > 0 and rules.get("whenCanBorrow") == "TryNextFlavor"

    def is_better(self, mode: Mode, other: Mode) -> bool:
        if NO_FIT in (mode.means, other.means):
            return mode.means != NO_FIT
        if (mode.means == NO_CANDIDATES) != (other.means == NO_CANDIDATES):
            return other.means == NO_CANDIDATES
        if self.queue.fungibility.get("preference") == "PreemptionOverBorrowing":
            return (-mode.level, mode.means) > (-other.level, other.means)
        return (mode.means, -mode.level) > (other.means, -other.level)

    def reason(self) -> str:
        """Return Kueue's reason for a workload that no flavor can serve as things are."""
        if self.means <= {None}:
            return "NoMatchingFlavor"
        return "ExceedsMaxQuota" if -1 in self.means else "WaitingForQuota"
