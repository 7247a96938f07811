"""The schedulers that are compared on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from slurm_play import System
from slurm_workload import PROFILE, TOO_SLOW

import gavel_py as gp
from gavel_py.cli.inputs import policies_of
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import Driver, driving, log_of, plugin
from tests.slurm.loopback.logbook import events

__all__ = ["KNOWING", "OTHERS", "POLICIES", "RECOMMENDED", "RESTART_SECONDS", "ROUND_SECONDS", "Setting", "systems"]

ROUND_SECONDS = 10.0
RESTART_SECONDS = 2.0
"""What a stop and a start take here; the drivers are told this and the loading time."""

KNOWING, OTHERS = "Slurm, knowing users", "Slurm, other users"
RECOMMENDED = "`fifo` without preemption"


class Setting(NamedTuple):
    """Options of a driver. text: of --policy; too_slow: None for none; has_turns: whether turns have the default length."""

    text: str
    too_slow: float | None = None
    has_turns: bool = True

    @property
    def policy(self) -> gp.Policy:
        (found,) = policies_of((self.text,), (), ())
        return found


POLICIES = {
    RECOMMENDED: Setting("fifo,preemptive=false,backfill=true", TOO_SLOW, has_turns=False),
    "`max_total_throughput`": Setting("max_total_throughput"),
    "`max_min_fairness`": Setting("max_min_fairness"),
}
"""The settings of the drivers."""


def systems() -> dict[str, System]:
    """Return Slurm with users who know the speeds of their jobs, and with others, and the driver with several policies."""
    submit_plugin = plugin()
    driven = {name: System("gavel", submit_plugin, driver=partial(driven_by, each)) for name, each in POLICIES.items()}
    return {KNOWING: System(is_known=True), OTHERS: System()} | driven


@contextmanager
def driven_by(setting: Setting, cluster: LoopbackCluster, loading_seconds: float) -> Iterator[Driver]:
    """`gavel slurm run` with these options, which starts before the jobs."""
    words = ["--policy", setting.text, "--profile", PROFILE, "--round", f"{ROUND_SECONDS}", "--start-seconds", "20"]
    words += ["--restart-seconds", f"{loading_seconds + RESTART_SECONDS}"]
    words += [] if setting.too_slow is None else ["--too-slow", f"{setting.too_slow}"]
    words += [] if setting.has_turns else ["--min-run-seconds", "0"]
    with driving(cluster, *words, without={"--min-run-seconds"}) as driver:
        driver.until(lambda: events(log_of(cluster), "begun"), "the driver to begin")
        yield driver
