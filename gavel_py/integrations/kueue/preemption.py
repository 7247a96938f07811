"""Which workloads Kueue preempts for another: classical preemption with its hierarchy, and that of fair sharing.

As in Kueue's own preemption.go, classical/ and fairsharing/; the reasons are Kueue's words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gavel_py.integrations.kueue.quota import Key, QueueNode, QuotaNode, Share

FINAL_SHARE, INITIAL_SHARE = "LessThanOrEqualToFinalShare", "LessThanInitialShare"
WITHIN, RECLAIMED, FAIR, WHILE_BORROWING = (
    *("InClusterQueue", "InCohortReclamation"),
    *("InCohortFairSharing", "InCohortReclaimWhileBorrowing"),
)


@dataclass(eq=False)
class QueuedWorkload:
    """A workload as Kueue's scheduler sees it.

    priority: with any boost; queued, reserved: times, of which the order counts; is_gated: whether it must not preempt; requests:
    {pod set: {resource: amount}}; counts: {pod set: pods}; usage: what it holds while admitted; excluded: {pod set: {flavor: why
    it cannot be used}}; load: use of its LocalQueue, with admission fair sharing.
    """

    key: str
    queue: str
    uid: str = ""
    priority: int = 0
    queued: float = 0.0
    reserved: float = 0.0
    is_evicted: bool = False
    is_gated: bool = False
    requests: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    usage: Mapping[Key, int] = field(default_factory=dict)
    excluded: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    local_queue: str = ""
    load: float | None = None


Targets = list[tuple[QueuedWorkload, str]]
"""Workloads to preempt, with Kueue's reasons."""

Queues = Mapping[str, QueueNode]


def take(queues: Queues, workload: QueuedWorkload) -> None:
    """Let a workload hold its usage in its ClusterQueue."""
    queue = queues[workload.queue]
    queue.workloads.append(workload)
    for key, value in workload.usage.items():
        queue.add(key, value)


def drop(queues: Queues, workload: QueuedWorkload) -> None:
    """Take its usage from a workload."""
    queue = queues[workload.queue]
    queue.workloads.remove(workload)
    for key, value in workload.usage.items():
        queue.remove(key, value)


def fits(queue: QuotaNode, need: Mapping[Key, int], *, borrowing: bool = True) -> bool:
    """Return whether a queue may use this much more, with borrowing or without."""
    return all((borrowing or not queue.borrows(key, value)) and value <= queue.available(key) for key, value in need.items())


def may_preempt(policy: str, workload: QueuedWorkload, other: QueuedWorkload) -> bool:
    """Return whether a policy lets a workload preempt another one."""
    if policy == "LowerPriority":
        return workload.priority > other.priority
    if policy == "LowerOrNewerEqualPriority":
        return (workload.priority, -workload.queued) > (other.priority, -other.queued)
    return policy == "Any"


def victim_order(queue: str) -> Any:
    """Return the key by which candidates are tried for a workload of this queue.

    Evicted ones, other queues, lower priority, later reservation, and the uid; with admission fair sharing heavier LocalQueues of
    one queue come before the priority.
    """

    def order(each: QueuedWorkload) -> tuple[Any, ...]:
        load = None if each.load is None else _Load(each)
        return not each.is_evicted, each.queue == queue, load, each.priority, -each.reserved, each.uid

    return order


@dataclass(frozen=True, eq=False)
class _Load:
    """How much the LocalQueue of a workload has used, compared only with others of the same ClusterQueue."""

    of: QueuedWorkload

    def __eq__(self, other: object) -> bool:
        mine, theirs = self.of, getattr(other, "of", None)
        return theirs is None or mine.queue != theirs.queue or mine.local_queue == theirs.local_queue or mine.load == theirs.load

    def __hash__(self) -> int:
        return 0

    def __lt__(self, other: _Load) -> bool:
        return (self.of.load or 0.0) > (other.of.load or 0.0)


def preemption_targets(
    queues: Queues, workload: QueuedWorkload, need: Mapping[Key, int], keys: Collection[Key], strategies: Sequence[str] | None
) -> Targets:
    """Return what to preempt so that a workload gets `need`, nothing if that cannot be reached. The tree stays as it is.

    keys: those of `need` that lack quota; strategies: of fair sharing, None without it.
    """
    attempt = _Attempt(queues, workload, need, frozenset(keys))
    targets = attempt.classical() if strategies is None else attempt.fair(strategies)
    for name, before in attempt.kept.items():
        present = {id(each) for each in queues[name].workloads}
        for each in (each for each in before if id(each) not in present):
            for key, value in each.usage.items():
                queues[name].add(key, value)
        queues[name].workloads = before
    return targets


class _Attempt:
    """One search for workloads to preempt; it takes them out of the tree as it goes."""

    def __init__(self, queues: Queues, workload: QueuedWorkload, need: Mapping[Key, int], keys: frozenset[Key]) -> None:
        self.queues, self.workload, self.need, self.keys = queues, workload, need, keys
        self.queue = queues[workload.queue]
        self.order = victim_order(self.queue.name)
        self.targets: Targets = []
        self.kept: dict[str, list[QueuedWorkload]] = {}

    def preempt(self, other: QueuedWorkload, reason: str) -> None:
        self.kept.setdefault(other.queue, list(self.queues[other.queue].workloads))
        drop(self.queues, other)
        self.targets.append((other, reason))

    def given_back(self, *, borrowing: bool = True) -> Targets:
        """Return the targets without those that are not needed, tried from the last but one to the first."""
        targets = self.targets
        for index in range(len(targets) - 2, -1, -1):
            take(self.queues, targets[index][0])
            if fits(self.queue, self.need, borrowing=borrowing):
                targets[index] = targets[-1]
                targets.pop()
            else:
                drop(self.queues, targets[index][0])
        return targets

    def classical(self) -> Targets:
        """Candidates by class: a subtree of ours has the quota, by priority, the own queue; tried with and without borrowing."""
        own = list(self.of_queue(self.queue, None, entitled=False))
        entitled, others = self.of_cohort()
        if not (own or entitled or others):
            return []
        classes = [sorted(each, key=lambda found: self.order(found[0])) for each in (entitled, others, own)]
        candidates = [found for evicted in (True, False) for each in classes for found in each if found[0].is_evicted == evicted]
        for borrowing in self.attempts(has_entitled=bool(entitled), has_others=bool(others)):
            self.targets = []
            for other, ancestor, reason in candidates:
                if self.is_left_alone(other, ancestor, reason, borrowing=borrowing):
                    continue
                self.preempt(other, reason.removesuffix("!"))
                if fits(self.queue, self.need, borrowing=borrowing):
                    return self.given_back(borrowing=borrowing)
            for other, _ in self.targets:
                take(self.queues, other)
        return []

    def attempts(self, *, has_entitled: bool, has_others: bool) -> list[bool]:
        """Return in which order preemption is tried with borrowing and without."""
        may_borrow = self.may_borrow
        is_under = all(self.queue.usage[key] < self.queue.nominal.get(key, 0) for key in self.keys)
        if not (has_entitled or has_others) or not (may_borrow or is_under):
            return [True]
        return [True, False] if may_borrow or has_entitled else [False, True]

    @property
    def may_borrow(self) -> bool:
        """Whether preemption may borrow (borrowWithinCohort)."""
        return bool((self.queue.preemption.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never")

    def of_queue(self, queue: QueueNode, ancestor: QuotaNode | None, *, entitled: bool) -> Iterator[tuple[Any, ...]]:
        """Yield (workload, ancestor, why) of those of a queue that may be preempted, with "!" if only without borrowing."""
        is_own = queue is self.queue
        policy = self.queue.policy("withinClusterQueue" if is_own else "reclaimWithinCohort")
        if policy == "Never":
            return
        always = WITHIN if is_own else RECLAIMED if entitled else ""
        rules = self.queue.preemption.get("borrowWithinCohort") or {}
        may_borrow, most = self.may_borrow, rules.get("maxPriorityThreshold")
        for other in queue.workloads:
            if self.keys.isdisjoint(other.usage) or not may_preempt(policy, self.workload, other):
                continue
            is_lower = other.priority < self.workload.priority and (most is None or other.priority <= most)
            yield other, ancestor, always or (WHILE_BORROWING if may_borrow and is_lower else f"{RECLAIMED}!")

    def of_cohort(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the candidates of other queues: those over which ours has a right by hierarchy, and the others."""
        entitled: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        if self.queue.parent is None or self.queue.policy("reclaimWithinCohort") == "Never":
            return entitled, others
        has_quota, rest = _covered(self.queue, self.need)
        before: QuotaNode | None = None
        for ancestor in self.queue.path():
            for each in self.over_quota(ancestor, before):
                (entitled if has_quota else others).extend(self.of_queue(each, ancestor, entitled=has_quota))
            covered, rest = _covered(ancestor, rest)
            has_quota, before = has_quota or covered, ancestor
        return entitled, others

    def over_quota(self, node: QuotaNode, skipped: QuotaNode | None) -> Iterator[QueueNode]:
        """Yield the queues below a cohort that are above their quota, as all cohorts on the way are; cohorts below first."""
        over = [child for child in node.children if child is not skipped and not child.is_within_quota(self.keys)]
        for child in over:
            if not isinstance(child, QueueNode):
                yield from self.over_quota(child, skipped)
        yield from (child for child in over if isinstance(child, QueueNode) and child is not self.queue)

    def is_left_alone(self, other: QueuedWorkload, ancestor: QuotaNode | None, reason: str, *, borrowing: bool) -> bool:
        """Return whether a candidate is not needed any more, or may not be taken for a workload that borrows."""
        queue = self.queues[other.queue]
        if queue is self.queue:
            return False
        if borrowing and reason.endswith("!"):
            return True
        nodes: list[QuotaNode] = [queue]
        for node in queue.path():
            if node is ancestor:
                break
            nodes.append(node)
        return any(node.is_within_quota(self.keys) for node in nodes)

    def fair(self, strategies: Sequence[str]) -> Targets:
        """Targets from where the share is highest, if the strategies allow it."""
        candidates = sorted(self.fair_candidates(), key=self.order)
        if not candidates:
            return []
        for key, value in self.need.items():
            self.queue.add(key, value)
        done, retry = self.by_first_strategy(candidates, strategies[0])
        if not done and len(strategies) > 1:
            done = self.by_second_strategy(retry)
        for key, value in self.need.items():
            self.queue.remove(key, value)
        return self.given_back() if done else []

    def fair_candidates(self) -> Iterator[QueuedWorkload]:
        within, cohort = (self.queue.policy(name) for name in ("withinClusterQueue", "reclaimWithinCohort"))
        yield from (
            each for each in self.queue.workloads if may_preempt(within, self.workload, each) and self.keys & set(each.usage)
        )
        for queue in self.queue.root.queues() if self.queue.parent is not None else ():
            if queue is not self.queue and any(queue.borrows(key) for key in self.keys):
                yield from (
                    each for each in queue.workloads if may_preempt(cohort, self.workload, each) and self.keys & set(each.usage)
                )

    def fits_now(self) -> bool:
        for key, value in self.need.items():
            self.queue.remove(key, value)
        result = fits(self.queue, self.need)
        for key, value in self.need.items():
            self.queue.add(key, value)
        return result

    def by_first_strategy(self, candidates: Iterable[QueuedWorkload], strategy: str) -> tuple[bool, list[QueuedWorkload]]:
        """Preempt what the first strategy allows; return whether that is enough, and what it did not allow."""
        is_within_nominal = not any(self.queue.borrows(key) for key in self.keys)
        order, retry = FairOrder(self.queue, candidates), list[QueuedWorkload]()
        for target in order:
            if target is self.queue or is_within_nominal:
                self.preempt(order.next_of(target), WITHIN if target is self.queue else RECLAIMED)
                if self.fits_now():
                    return True, retry
                continue
            ours, theirs = order.below_common_ancestor(target)
            mine, before = ours.share().rank, theirs.share().rank
            while order.left[target.name]:
                other = order.next_of(target)
                if mine <= _share_without(theirs, target, other).rank if strategy == FINAL_SHARE else mine < before:
                    self.preempt(other, FAIR)
                    if self.fits_now():
                        return True, retry
                    break
                retry.append(other)
        return False, retry

    def by_second_strategy(self, candidates: Iterable[QueuedWorkload]) -> bool:
        """Preempt one workload of each queue whose share is higher than ours; return whether that is enough."""
        order = FairOrder(self.queue, candidates)
        for target in order:
            ours, theirs = order.below_common_ancestor(target)
            other = order.next_of(target)
            if ours.share().rank < theirs.share().rank:
                self.preempt(other, FAIR)
                if self.fits_now():
                    return True
            order.leave(target)
        return False


def _covered(node: QuotaNode, need: Mapping[Key, int]) -> tuple[bool, dict[Key, int]]:
    """Return whether the quota of a subtree covers the need beside what is used, and what is needed from above it."""
    has_quota = all(node.subtree.get(key, 0) >= node.usage[key] + value for key, value in need.items())
    return has_quota, {key: max(0, value - node.local_available(key)) for key, value in need.items()}


def _share_without(node: QuotaNode, queue: QueueNode, workload: QueuedWorkload) -> Share:
    """Return the share of a node without a workload of a queue below it."""
    for key, value in workload.usage.items():
        queue.remove(key, value)
    share = node.share()
    for key, value in workload.usage.items():
        queue.add(key, value)
    return share


class FairOrder:
    """In which order ClusterQueues give up workloads: down the tree, always the child with the highest share.

    Whoever iterates takes a workload of the yielded queue (`next_of`), or leaves the queue out from then on (`leave`).
    """

    def __init__(self, queue: QueueNode, candidates: Iterable[QueuedWorkload]) -> None:
        self.queue, self.ancestors = queue, set(queue.path())
        self.left = defaultdict[str, list[QueuedWorkload]](list)
        self.gone = set[QuotaNode]()
        self.order = victim_order(queue.name)
        for each in candidates:
            self.left[each.queue].append(each)

    def __iter__(self) -> Iterator[QueueNode]:
        root = self.queue.root
        if root is self.queue:
            while self.queue not in self.gone and self.left[self.queue.name]:
                yield self.queue
        while root is not self.queue and root not in self.gone:
            target = self.target(root)
            if target is not None:
                yield target

    def next_of(self, queue: QueueNode) -> QueuedWorkload:
        return self.left[queue.name].pop(0)

    def leave(self, queue: QueueNode) -> None:
        self.gone.add(queue)

    def target(self, cohort: QuotaNode) -> QueueNode | None:
        """Return the queue below a cohort that gives next; a cohort goes before a queue of the same share."""
        queue: QueueNode | None = None
        below: QuotaNode | None = None
        most = most_below = (False, -1.0)
        for child in (child for child in cohort.children if child not in self.gone):
            share = child.share()
            if not isinstance(child, QueueNode):
                if not share.borrowed and child not in self.ancestors:
                    self.gone.add(child)
                elif share.rank >= most_below:
                    below, most_below = child, share.rank
            elif (not share.borrowed and child is not self.queue) or not self.left[child.name]:
                self.gone.add(child)
            elif share.rank > most or (share.rank == most and queue is not None and self.is_before(child, queue)):
                queue, most = child, share.rank
        if queue is None and below is None:
            self.gone.add(cohort)
            return None
        return self.target(below) if below is not None and most_below >= most else queue

    def is_before(self, queue: QueueNode, other: QueueNode) -> bool:
        return bool(self.order(self.left[queue.name][0]) < self.order(self.left[other.name][0]))

    def below_common_ancestor(self, target: QueueNode) -> tuple[QuotaNode, QuotaNode]:
        """Return the two nodes, ours and theirs, just below the lowest cohort that both queues are in."""
        common = next(each for each in target.path() if each in self.ancestors)

        def below(node: QuotaNode) -> QuotaNode:
            return next(each for each in [node, *node.path()] if each.parent is common)

        return below(self.queue), below(target)
