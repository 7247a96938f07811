"""Scheduling: from the time fractions of an allocation to jobs on GPUs, round after round.

`scheduler` is the entry point; `planner` decides a round and `commit` applies it to the `state`. `mechanism` selects the jobs of a
round and `placement` their GPUs, both pure functions; `colocation` lets jobs share GPUs, and `event_driven` decides from changes
alone. The package depends on no simulator and no cluster manager: callers report what happens, and carry out the rounds.
"""

from gavel_py.scheduling.delivery import DeliveryReport, JobDelivery, TenantDelivery, Wait
from gavel_py.scheduling.jobs.waiting import Backoff, Unblocked
from gavel_py.scheduling.mechanism.demand import RoundDemand
from gavel_py.scheduling.mechanism.rules import choose_by_priority, choose_jobs
from gavel_py.scheduling.nodes import NodeState
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.scheduling.placement import Gang, place
from gavel_py.scheduling.placement.gangs import PlacementPreference
from gavel_py.scheduling.round import Assignment, Fallback, Lease, Round
from gavel_py.scheduling.scheduler import RoundScheduler

__all__ = [
    "Assignment",
    "Backoff",
    "DeliveryReport",
    "Fallback",
    "Gang",
    "JobDelivery",
    "Lease",
    "NodeState",
    "PlacementPreference",
    "Round",
    "RoundDemand",
    "RoundScheduler",
    "SchedulerOptions",
    "TenantDelivery",
    "Unblocked",
    "Wait",
    "choose_by_priority",
    "choose_jobs",
    "place",
]
