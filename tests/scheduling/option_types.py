"""Options as type checkers see them. `make types` checks this file, which nothing runs.

Each ignored error is one that mypy must find: an unused `type: ignore` is an error itself.
"""

from __future__ import annotations

import gavel_py as gp


def records() -> gp.SchedulerOptions:
    """Options of a record, and of one that follows from it."""
    gp.SchedulerOptions(min_run=60)  # type: ignore[call-arg]
    gp.SchedulerOptions(min_run_seconds=[60])  # type: ignore[arg-type]
    options = gp.SchedulerOptions(min_run_seconds=60, mechanism="priority")
    options.changed(min_run=60)  # type: ignore[call-arg]
    options.changed(sharing="no")  # type: ignore[arg-type]
    options.sharing = True  # type: ignore[misc]
    return options.changed(sharing=True, round_seconds=60)


def settings(profile: gp.ThroughputProfile) -> gp.SlurmSettings:
    """Settings of a driver, and its options."""
    gp.SlurmSettings("gpu", polls=1)  # type: ignore[call-arg]
    gp.SlurmSettings("gpu", poll_seconds="1")  # type: ignore[arg-type]
    made = gp.SlurmSettings("gpu", poll_seconds=1, trusted={"anna": 2})
    made.changed(on_exit="stay")  # type: ignore[arg-type]
    gp.SlurmDriver(made, profile, options=records(), round_seconds=60)
    gp.SlurmDriver(made, profile, min_run=60)  # type: ignore[call-arg]
    gp.SlurmShadow(made, profile, min_run_seconds="60")  # type: ignore[arg-type]
    return made.changed(partition="gpu,long")


def keywords(cluster: gp.Cluster, profile: gp.Profile, trace: gp.Trace) -> float:
    """Options as keyword arguments and attributes."""
    scheduler = gp.RoundScheduler(cluster, profile, "fifo", 60.0, options=records(), time_limit_seconds=None, min_gain=1.1)
    gp.RoundScheduler(cluster, profile, min_run=60)  # type: ignore[call-arg]
    gp.RoundScheduler(cluster, profile, min_run_seconds="60")  # type: ignore[arg-type]
    gp.Simulation(trace, cluster, profile, round_seconds=None, min_run_seconds=60, interference=0.1, seed=1)
    gp.simulate(trace, cluster, profile, min_run=60)  # type: ignore[call-arg]
    gp.simulate(trace, cluster, profile, min_run_seconds="60")  # type: ignore[arg-type]
    gp.simulate(trace, cluster, profile, seed="1")  # type: ignore[arg-type]
    gp.Simulation.load("state", trace, profile, on_round=print, learn="median")
    gp.Simulation.load("state", trace, profile, seed=1)  # type: ignore[call-arg]
    gp.generate_trace(5, gp.ThroughputProfile.builtin("gavel-osdi20"), jobs_per_hour=1, seed=1, options=gp.TraceOptions(seed=2))
    gp.generate_trace(5, gp.ThroughputProfile.builtin("gavel-osdi20"), jobs_per_hour=1, heavy=0.1)  # type: ignore[call-arg]
    gp.generate_trace(5, gp.ThroughputProfile.builtin("gavel-osdi20"), jobs_per_hour=1, seed="1")  # type: ignore[arg-type]
    gp.plan_serving([], cluster, gp.ServingProfile.builtin("trtllm"), floors={"chat": 0.9}, quotas=None)
    gp.plan_serving([], cluster, gp.ServingProfile.builtin("trtllm"), floor={"chat": 0.9})  # type: ignore[call-arg]
    gp.plan_over_time([], cluster, gp.ServingProfile.builtin("trtllm"), {}, interval_seconds=60, load=3)  # type: ignore[call-arg]
    scheduler.min_run_seconds = "60"  # type: ignore[assignment]
    scheduler.min_run = 60  # type: ignore[attr-defined]
    scheduler.mechanism = "priority"
    return scheduler.min_run_seconds
