"""Simulations in which throughputs are learned (--learn, --known), and the further simulations of each policy for comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import gavel_py as gp
from gavel_py.cli import estimates
from gavel_py.cli.inputs import DEFAULT_MECHANISM, DIRECT, INPUT_OR_TEXT, Common, find_profile, run_label
from gavel_py.cli.output import counted
from gavel_py.cli.usage import refuse
from gavel_py.errors import GavelError

KNOWN: Mapping[str, Any] = {
    "type": INPUT_OR_TEXT,
    "metavar": "FRACTION|PROFILE",
    "help": "With --learn: what is known at first, a fraction of the job types, or a profile [0].",
}


@dataclasses.dataclass(frozen=True)
class SimulationCase:
    """A policy to simulate, with known or learned speeds; elastic: whether jobs are elastic, None to keep those of the trace."""

    policy: gp.Policy
    learner: gp.ThroughputLearner | None = None
    elastic: bool | None = None
    mechanism: str = DEFAULT_MECHANISM

    @property
    def label(self) -> str:
        """As `run_label`, with "(learning)" if speeds are learned, and with --elastic the kind of jobs."""
        label = run_label(self.policy, self.mechanism)
        if self.elastic is not None:
            return f"{label} ({'elastic' if self.elastic else 'fixed gangs'})"
        return label if self.learner is None else f"{label} (learning)"


def cases_of(
    policies: Sequence[gp.Policy],
    start: gp.ThroughputProfile | None,
    explore: estimates.Explore | None,
    cluster: gp.Cluster,
    mechanism: str,
) -> list[SimulationCase]:
    """Return the cases: each policy, and with --learn also with learned speeds and as an agnostic policy."""
    if explore is None:
        return [SimulationCase(policy, mechanism=mechanism) for policy in policies]
    cases = []
    for policy in policies:
        cases.append(SimulationCase(policy, mechanism=mechanism))
        if not policy.is_agnostic:
            cases.append(SimulationCase(policy, _learner(start, explore, cluster), mechanism=mechanism))
        twin = None if mechanism == DIRECT else _agnostic(policy, cluster)
        if twin is not None and twin.label not in {each.policy.label for each in cases}:
            cases.append(SimulationCase(twin, mechanism=mechanism))
    return cases


def _learner(start: gp.ThroughputProfile | None, explore: estimates.Explore, cluster: gp.Cluster) -> gp.ThroughputLearner:
    table = gp.AcceleratorTable.builtin().with_names(cluster.accelerator_names)
    return gp.ThroughputLearner(start, explore, accelerators=table)


def _agnostic(policy: gp.Policy, cluster: gp.Cluster) -> gp.Policy | None:
    """Return the agnostic version of a policy, in which the most frequent type represents all; None if there is none."""
    if policy.is_agnostic or policy.constraints:
        return None
    gpus = dict(zip(cluster.accelerator_names, cluster.capacities.tolist(), strict=True))
    reference = max(gpus, key=lambda name: gpus[name]) if policy.agnostic_view == "reference" else policy.reference
    try:
        return dataclasses.replace(policy, agnostic=True, reference=reference)
    except (GavelError, TypeError, ValueError):
        return None  # a composed policy: only its parts can be agnostic


def initial_profile(
    request: Common, explore: estimates.Explore | None, known: str | None, seed: int, truth: gp.Profile
) -> gp.ThroughputProfile | None:
    """Return the profile from which learners start, None without --learn. Raises `UsageError` for incompatible options."""
    alone = explore is None and known is not None
    refuse((alone, "--known sets what is known at first while speeds are learned; add --learn"))
    if explore is None:
        return None
    truth = estimates.by_type(truth, "--learn learns speeds by job type")
    part = None if known is None else estimates.number_in(known)
    if known is not None and (part is None or Path(known).is_file()):
        return find_profile(known, request.store)
    refuse((part is not None and not 0 <= part <= 1, f"--known {known} is neither a fraction from 0 to 1 nor a profile"))
    types = sorted(truth.job_types)
    chosen = set(Random(seed).sample(types, round((part or 0.0) * len(types))))  # noqa: S311
    rows = (m for m in truth.measurements if {m.job_type, m.partner_job_type or m.job_type} <= chosen)
    return gp.ThroughputProfile(f"{counted(len(chosen), 'job type')} of {truth.name}", rows)
