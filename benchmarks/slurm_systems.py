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

__all__ = ["MIN_RUN_SECONDS", "ROUND_SECONDS", "systems"]

ROUND_SECONDS = 10
MIN_RUN_SECONDS = 10
POLICIES = ("max_min_fairness", "max_total_throughput", "nash_welfare")
LONG_TURNS = "max_total_throughput"
"""This policy is also played with the turns of the default: 50 times what a stop and a start takes."""


def systems() -> list[System]:
    """Return Slurm with users who know the speeds of their jobs, and with others, and the driver with several policies."""
    on_its_own = [System("Slurm, knowing users", is_known=True), System("Slurm, other users")]
    submit_plugin = plugin()
    driven = [System(f"`{name}`", "gavel", submit_plugin, driver=partial(driven_by, name)) for name in POLICIES]
    default = partial(driven_by, LONG_TURNS, has_long_turns=True)
    return [*on_its_own, *driven, System(f"`{LONG_TURNS}`, long turns", "gavel", submit_plugin, driver=default)]


@contextmanager
def driven_by(policy: str, cluster: LoopbackCluster, *, has_long_turns: bool = False) -> Iterator[Driver]:
    """`gavel slurm run` with this policy, which starts before the jobs; has_long_turns: whether it chooses the length of turns."""
    turns = {"--restart-seconds": "3", "--min-run-seconds": str(MIN_RUN_SECONDS)}
    words = ["--policy", policy, "--profile", PROFILE, "--round", str(ROUND_SECONDS), "--start-seconds", "20"]
    words += [] if has_long_turns else [word for pair in turns.items() for word in pair]
    with driving(cluster, *words, without=turns if has_long_turns else ()) as driver:
        driver.until(lambda: events(log_of(cluster), "begun"), "the driver to begin")
        yield driver
