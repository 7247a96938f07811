"""The schedulers that are compared on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from slurm_play import System
from slurm_workload import PROFILE

from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import Driver, driving, log_of, plugin
from tests.slurm.loopback.logbook import events

__all__ = ["ROUND_SECONDS", "systems"]

ROUND_SECONDS = 10
POLICIES = ("max_min_fairness", "shortest_job_first", "min_makespan")


def systems() -> list[System]:
    """Return the two schedulers of Slurm, backfill with users who know their jobs, and the driver with several policies."""
    on_its_own = [System("Slurm, FIFO", options={"SchedulerType": "sched/builtin"}), System("Slurm, backfill")]
    on_its_own += [System("Slurm, backfill, knowing users", is_known=True)]
    submit_plugin = plugin()
    driven = [System(f"`{name}`", "gavel", submit_plugin, driver=partial(driven_by, name)) for name in POLICIES]
    return on_its_own + driven


@contextmanager
def driven_by(policy: str, cluster: LoopbackCluster) -> Iterator[Driver]:
    """`gavel slurm run` with this policy, configured for a restart cost of three seconds, as here; it starts before the jobs."""
    words = [
        "--policy",
        policy,
        "--profile",
        PROFILE,
        "--round",
        str(ROUND_SECONDS),
        "--restart-seconds",
        "3",
        "--start-seconds",
        "20",
    ]
    with driving(cluster, *words) as driver:
        driver.until(lambda: events(log_of(cluster), "begun"), 60, "the driver to begin")
        yield driver
