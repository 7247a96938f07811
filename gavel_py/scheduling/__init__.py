"""Rounds: from the time fractions of an allocation to jobs on GPUs, one round after the other.

mechanism: who runs (pure), by what is owed (demand), what a place is worth (scores) and who fits (serving, local_search);
priority: the published rule instead; placement: on which GPUs (pure); planning: the two together; delivery: what was promised and
what was delivered; scheduler: from round to round; scheduler_state: what it must not lose, and saved_scheduler: how that gets into
a file.
"""

from gavel_py.scheduling.delivery import DeliveryReport, JobDelivery, Wait
from gavel_py.scheduling.mechanism.deficit import choose_jobs
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.mechanism.priority import choose_by_priority
from gavel_py.scheduling.nodes import NodeState
from gavel_py.scheduling.placement import Gang, place
from gavel_py.scheduling.placement.gangs import Kind
from gavel_py.scheduling.round import Assignment, Lease, Round
from gavel_py.scheduling.scheduler import RoundScheduler

__all__ = [
    "Assignment",
    "DeliveryReport",
    "Gang",
    "JobDelivery",
    "Kind",
    "Lease",
    "NodeState",
    "Round",
    "RoundDemand",
    "RoundScheduler",
    "Wait",
    "choose_by_priority",
    "choose_jobs",
    "place",
]
