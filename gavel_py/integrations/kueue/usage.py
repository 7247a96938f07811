"""Admission fair sharing: what each LocalQueue has used of late, by which Kueue orders the workloads of one ClusterQueue.

As in Kueue's own admission_fair_sharing.go.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gavel_py.integrations.kueue.quota import Key


def usage_of_queue(
    consumed: Mapping[str, float], penalty: Mapping[str, float], resource_weights: Mapping[str, float], weight: float
) -> float:
    """Return sum_r weight_r (consumed_r + penalty_r) / weight of the LocalQueue, infinite for a weight of 0 or less."""
    total = sum(
        resource_weights.get(name, 1.0) * (consumed.get(name, 0.0) + penalty.get(name, 0.0)) for name in {**consumed, **penalty}
    )
    return total / weight if weight > 0 else math.inf


@dataclass
class UsageHistory:
    """The use of LocalQueues, of which half is forgotten each half-life.

    Args:
        half_life: 0 counts the present only.
        sampling: Time between samples, in the same unit.
        weights: {LocalQueue: weight}.
        consumed: {LocalQueue: {resource: use, in units}} so far.
        resource_weights: {resource: weight}, by default 1.
    """

    half_life: float
    sampling: float
    weights: Mapping[str, float]
    consumed: dict[str, dict[str, float]]
    resource_weights: Mapping[str, float] = field(default_factory=dict)
    penalties: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))

    def alpha(self, time: float | None = None) -> float:
        """Return how much what is held during a time counts, by default between samples: 1 - 0.5^(time / half-life)."""
        return 1.0 - 0.5 ** ((self.sampling if time is None else time) / self.half_life) if self.half_life else 1.0

    def usage(self, queue: str) -> float:
        """Return the use of a LocalQueue by which its workloads are ordered, with penalties of what it was just admitted."""
        consumed, penalty = self.consumed.get(queue, {}), self.penalties.get(queue, {})
        return usage_of_queue(consumed, penalty, self.resource_weights, self.weights.get(queue, 1.0))

    def admit(self, queue: str, usage: Mapping[Key, int]) -> None:
        """Count a workload that was just admitted, until the next sample."""
        for (_, resource), value in usage.items():
            self.penalties[queue][resource] += self.alpha() * value / (1000 if resource == "cpu" else 1)

    def sample(self, usage: Mapping[str, Mapping[Key, int]], time: float | None = None) -> None:
        """Count what the workloads of each LocalQueue have held: consumed = (1 - alpha) consumed + alpha usage."""
        alpha = self.alpha(time)
        if time is None or time >= self.sampling:
            self.penalties.clear()
        for queue in {**self.consumed, **usage}:
            held: dict[str, float] = defaultdict(float)
            for (_, resource), value in usage.get(queue, {}).items():
                held[resource] += value / (1000 if resource == "cpu" else 1)
            before = self.consumed.get(queue, {})
            self.consumed[queue] = {
                name: (1 - alpha) * before.get(name, 0.0) + alpha * held.get(name, 0.0) for name in {**before, **held}
            }
