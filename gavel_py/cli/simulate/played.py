"""What came of one policy, and how it compares with the policy `isolated`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gavel_py as gp
from gavel_py.errors import InputError

__all__ = ["YARDSTICK", "Fairness", "Played", "compared", "needs_jobs"]

YARDSTICK = "isolated"
"""The policy that finish-time fairness compares with."""


@dataclasses.dataclass(frozen=True)
class Fairness:
    """Finish-time fairness ρ over so many jobs; above_one: the part of them that `isolated` served better."""

    jobs: int
    mean: float
    max: float
    above_one: float


@dataclasses.dataclass(frozen=True)
class Played:
    """One policy; ended_seconds: simulated time at its end; in_rounds: not by events; complete: whether it was not interrupted.

    recorder: where its run is written down for --run-out.
    """

    policy: gp.Policy
    result: gp.SimulationResult
    ended_seconds: float
    in_rounds: bool
    complete: bool
    fairness: Fairness | None = None
    recorder: gp.RunRecorder | None = None

    @property
    def label(self) -> str:
        """The policy with its options."""
        return self.policy.label

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without its jobs."""
        return {
            "policy": self.policy.name,
            "options": self.policy.changed_options,
            "complete": self.complete,
            "ended_seconds": self.ended_seconds,
            "summary": self.result.summary.to_dict(),
            "finish_time_fairness": None if self.fairness is None else dataclasses.asdict(self.fairness),
            "left_out": reasons(self.result),
        }


def reasons(result: gp.SimulationResult) -> dict[str, str]:
    """Return {job_id: reason} of the jobs that got no GPUs at the end."""
    return {job_id: job.reason for job_id, job in result.jobs.items() if job.reason}


def needs_jobs(policies: Sequence[gp.Policy]) -> bool:
    """Say whether the jobs of these policies are compared one by one."""
    return len(policies) > 1 and any(policy.name == YARDSTICK for policy in policies)


def compared(all_played: Sequence[Played]) -> list[Played]:
    """Return them with the finish-time fairness of each but `isolated`, if that is among them."""
    yardstick = next((played.result for played in all_played if played.policy.name == YARDSTICK), None)
    if yardstick is None:
        return list(all_played)
    return [
        played if played.policy.name == YARDSTICK else dataclasses.replace(played, fairness=_fairness(played.result, yardstick))
        for played in all_played
    ]


def _fairness(result: gp.SimulationResult, isolated: gp.SimulationResult) -> Fairness | None:
    try:
        values = list(result.finish_time_fairness(isolated).values())
    except InputError:
        return None  # no job finished in both, which is nothing to compare and no reason to fail
    above = sum(value > 1 for value in values)
    return Fairness(len(values), sum(values) / len(values), max(values), above / len(values))
