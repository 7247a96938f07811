"""Rounds: from the time fractions of an allocation to jobs on GPUs, one round after the other.

mechanism: who runs (pure); placement: on which GPUs (pure); planning: the two together; delivery: what was promised and what was
delivered; scheduler: the state from round to round.
"""

from gavel_py.rounds.assignment import Assignment, Round
from gavel_py.rounds.delivery import DeliveryReport, JobDelivery
from gavel_py.rounds.mechanism import RoundDemand, choose_jobs
from gavel_py.rounds.placement import Gang, place
from gavel_py.rounds.scheduler import RoundScheduler

__all__ = [
    "Assignment",
    "DeliveryReport",
    "Gang",
    "JobDelivery",
    "Round",
    "RoundDemand",
    "RoundScheduler",
    "choose_jobs",
    "place",
]
