"""A trace from its beginning to its end as a `Run`, in one call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gavel_py.policies import Policy
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.report.runs import Labels, Run
from gavel_py.simulator.engine import Simulation
from gavel_py.simulator.recorder import RunRecorder
from gavel_py.workloads import Submission

__all__ = ["played", "record_run"]


def record_run(
    trace: Iterable[Submission | Job],
    cluster: Cluster,
    profile: Profile,
    policy: str | Policy = "max_min_fairness",
    *,
    labels: Labels | None = None,
    stays: bool = False,
    isolated: Mapping[str, float] | None = None,
    until_seconds: float = math.inf,
    **settings: Any,
) -> Run:
    """Play a trace to its end, or until this time, and return it as a `Run`, for reports.

    labels: what it is called, beside its policy; stays: keep where each gang was; isolated: {job_id: completion time} under the
    policy `isolated`, for finish-time fairness; settings: those of `Simulation`.

    >>> import gavel_py as gp
    >>> speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    >>> trace = [gp.Job("a", total_steps=1440), gp.Job("b", total_steps=360)]
    >>> run = gp.record_run(trace, gp.Cluster.from_counts({"v100": 1}), speeds, "fifo", stays=True)
    >>> run.stays[1]
    Stay(job_id='b', job_type='', node='v100-0', accelerator='v100', gpus=1, start_seconds=720.0, end_seconds=1080.0)
    """
    simulation = Simulation(trace, cluster, profile, policy, on_round=lambda begun: recorder.round(begun), **settings)
    recorder = RunRecorder(simulation, stays=stays)
    named = {"policy": simulation.policy.label, **(labels or {})}
    return played(simulation, recorder, until_seconds).run(named, simulation.result().summary, isolated)


def played(simulation: Simulation, recorder: RunRecorder, until_seconds: float = math.inf) -> RunRecorder:
    """Play a simulation whose rounds the recorder is told of to its end, or until this time, and return the recorder."""
    more = True
    while more and simulation.now < until_seconds:
        more = simulation.step(until_seconds)
        for job_id in list(simulation.records):
            recorder.job(simulation.records.pop(job_id))
        recorder.step()
    for record in simulation.result().jobs.values():
        recorder.job(record)
    return recorder
