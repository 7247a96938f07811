"""A scheduler as plain data, from which it continues exactly as the one that was saved.

The profile must be passed again on loading, and so must a policy or mechanism that a file cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault, decode, encode
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.serialization import policy_document, policy_from
from gavel_py.problem.arrays import Floats
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.mechanism import MechanismName
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.state import SchedulerState

OPTIONS = (
    "round_seconds",
    "restart_seconds",
    "min_run_seconds",
    "whole_gangs",
    "sharing",
    "min_gain",
    "by_events",
    "solve_seconds",
    "time_limit_seconds",
)
"""The numbers that a scheduler is made with."""

UNSAID = {"solve_seconds": 0.0, "time_limit_seconds": None}
"""Those that a file tells only where they are others: earlier versions did not know them."""

HAD = "that the scheduler had"

SCHEDULER = SnapshotFormat("gavel-py scheduler", 2, "the state of a scheduler, as RoundScheduler.save writes it")


@dataclass(frozen=True)
class Saved:
    """All that a scheduler is made of. options: the values of `OPTIONS`."""

    solver: Solver
    profile: Profile
    mechanism: MechanismName | Mechanism
    options: dict[str, Any]
    state: SchedulerState

    def to_dict(self) -> dict[str, Any]:
        """Return the scheduler as plain data."""
        policy = self.solver.policy
        return {
            "options": {name: value for name, value in self.options.items() if name not in UNSAID or value != UNSAID[name]},
            "policy": {"label": policy.label, "document": policy_document(policy)},
            "mechanism": self.mechanism if isinstance(self.mechanism, str) else None,
            "speeds": {name: encode(table) for name, table in _speeds(self.state, self.profile).items()},
            "scheduler": self.state.to_dict(),
            "solver": self.solver.to_dict(),
        }

    @classmethod
    def from_dict(
        cls,
        document: Mapping[str, Any],
        path: str | Path,
        profile: Profile,
        policy: str | Policy | None,
        mechanism: MechanismName | Mechanism | None,
    ) -> Saved:
        """Restore a scheduler from `to_dict`.

        path: the name of the file, for messages; policy, mechanism: None if the file has them. Raises `InputError`.
        """
        with damage_as_fault(path):
            _check_accelerators(path, document["scheduler"], profile)
            options = UNSAID | document["options"]
            solver = Solver(_policy(path, document["policy"], policy), time_limit_seconds=options["time_limit_seconds"])
            solver.resume(document["solver"])
            used = _mechanism(path, document["mechanism"], mechanism)
            state = SchedulerState.from_dict(document["scheduler"], profile)
            _check_speeds(path, document["speeds"], state, profile)
            _check_places(path, state, profile)
            return cls(solver, profile, used, {name: options[name] for name in OPTIONS}, state)


def _policy(path: str | Path, document: Mapping[str, Any], given: str | Policy | None) -> Policy:
    label = document["label"]
    if given is None:
        if document["document"] is None:
            text = f"holds no more of the policy than its name, {label}; hand it in, as in RoundScheduler.load(..., policy=...)"
            raise InputError(Fault(str(path), "", text))
        return policy_from(document["document"])
    policy = resolve_policy(given)
    if policy.label != label:
        text = f"was written under the policy {label}, and {policy.label} was handed in; set another one when it is loaded"
        raise InputError(Fault(str(path), "", text))
    return policy


def _mechanism(path: str | Path, name: MechanismName | None, given: MechanismName | Mechanism | None) -> MechanismName | Mechanism:
    if given is not None:
        return given
    if name is None:
        text = "was written by a scheduler with a mechanism of its own; hand it in, as in RoundScheduler.load(..., mechanism=...)"
        raise InputError(Fault(str(path), "", text))
    return name


def _speeds(state: SchedulerState, profile: Profile) -> dict[str, Floats]:
    """(N, K) throughputs of the jobs in the system, and of those that the allocation in force is about."""
    jobs = AllocationProblem.from_jobs(state.book.jobs.values(), state.nodes.cluster, profile, whole_gangs=False)
    tables = {"jobs": jobs.throughputs}
    return tables if state.in_force is None else tables | {"in_force": state.in_force.problem.throughputs}


def _check_accelerators(path: str | Path, document: Mapping[str, Any], profile: Profile) -> None:
    types = [kind["name"] for kind in document["cluster"]["accelerator_types"]]
    unknown = [name for name in types if name not in profile.accelerators]
    text = f"which profile {profile.name!r} does not know; hand in the profile {HAD}"
    InputError.raise_any([Fault(str(path), "", f"is about accelerator {name!r}, {text}") for name in unknown])


def _check_speeds(path: str | Path, document: Mapping[str, Any], state: SchedulerState, profile: Profile) -> None:
    """Other throughputs would make other rounds of the same state."""
    ids = {"jobs": list(state.book.jobs), "in_force": [] if state.in_force is None else list(state.in_force.problem.job_ids)}
    for name, table in _speeds(state, profile).items():
        then = decode(document[name])
        for row, column in np.argwhere(then != table)[:1].tolist():
            text = (
                f"was written when job {ids[name][row]!r} did {then[row, column]:g} steps/s on "
                f"{state.nodes.cluster.accelerator_names[column]!r}, and profile {profile.name!r} says {table[row, column]:g}; "
                f"hand in the profile {HAD}"
            )
            raise InputError(Fault(str(path), "", text))


def _check_places(path: str | Path, state: SchedulerState, profile: Profile) -> None:
    """Nor may the allocation in force give a job GPUs whose memory it exceeds, by what the profile says now."""
    if state.in_force is None:
        return
    now = AllocationProblem.from_jobs(state.in_force.jobs, state.nodes.cluster, profile, whole_gangs=False)
    for row, column in np.argwhere(state.in_force.lasting & ~now.runnable)[:1].tolist():
        text = (
            f"was written when job {now.job_ids[row]!r} could run on {now.accelerator_types[column]!r}, "
            f"where it does not fit by profile {profile.name!r}; hand in the profile {HAD}"
        )
        raise InputError(Fault(str(path), "", text))
