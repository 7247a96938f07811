"""A play of faults: what goes wrong at sites happens to a driver in random order. Slurm's own records tell what became of jobs."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, pairwise

import gavel_py as gp
from tests.slurm.loopback.allocations import Ended, ended
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import Driver, as_user, driving, gavel, surroundings
from tests.slurm.loopback.meddling import Meddler
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.submitting import stays
from tests.slurm.loopback.waiting import until

__all__ = ["DEAD_SECONDS", "Play", "Toll", "hooks"]

DEAD_SECONDS = 30.0
"""After so many seconds of silence, the plugin takes the driver for dead; it is alive every 20 s."""

GPUS_PER_NODE = 4


@dataclass(frozen=True)
class Toll:
    """Jobs that suffered, by Slurm's own records.

    lost: did not complete; twice: ran twice at once, which their own records are asked as well; oversubscribed: pairs of time and
    node with more GPUs in use than there are; held: were on hold half a minute after the driver should have been given up.
    """

    lost: list[int]
    twice: list[int]
    oversubscribed: list[tuple[float, str]]
    held: list[int]


class Play:
    """A driver with its unit, jobs that come all the time, and faults, which are methods. user: who runs the driver."""

    def __init__(self, cluster: LoopbackCluster, seed: int, user: str | None = None) -> None:
        self.cluster, self.user = cluster, user
        self.draws = random.Random(seed)  # noqa: S311
        self.jobs: dict[int, int] = {}  # {job: GPUs}
        self._meddler = Meddler(cluster)
        self._drivers = ExitStack()

    @property
    def _prefix(self) -> list[str]:
        return [] if self.user is None else as_user(self.cluster, self.user)

    def run(self, faults: Sequence[str]) -> Toll:
        """Play the faults in this order, then kill the driver for good, and count."""
        with self._drivers:
            self.begin()
            self.submit(10)
            for fault in faults:
                self.submit(3)
                time.sleep(self.draws.uniform(0.0, 3.0))
                getattr(self, fault)()
            self.goes_on()
            self.submit(10)
            until(self.held, "jobs to wait on hold")
            self.driver.end(signal.SIGKILL)
        hooks(self.cluster, self.user)
        died = time.monotonic()
        while (held := self.held()) and time.monotonic() < died + DEAD_SECONDS + 30:
            time.sleep(0.2)
        until(self.all_over, "all jobs to end, without a driver", within=120)
        return self.count(held)

    def begin(self) -> None:
        """Start a driver, as its unit does."""
        words = ("--round", "2", "--on-failure", "release")
        self.driver: Driver = self._drivers.enter_context(driving(self.cluster, *words, tools=self._meddler.folder, user=self.user))

    def goes_on(self) -> None:
        """Wait for a round; the unit starts a driver again that has ended with an error, as without rights when it began."""
        before = self.driver.applied()

        def has_applied() -> bool:
            if self.driver.process.poll() is not None:
                hooks(self.cluster, self.user)
                self.begin()
            return self.driver.applied() > before

        until(has_applied, "a round", within=90)

    def submit(self, count: int) -> None:
        """Submit jobs of some seconds."""
        for _ in range(count):
            gpus = self.draws.choice((1, 2, 4))
            self.jobs[gang(self.cluster, "--nodes=1", f"--gres=gpu:{gpus}", steps=self.draws.uniform(2.0, 12.0))] = gpus

    def held(self) -> list[int]:
        """Return the jobs on hold."""
        return [job for job, each in self.cluster.jobs().items() if each.held]

    def all_over(self) -> bool:
        """Return whether all jobs have ended; Slurm forgets them after a while."""
        seen = self.cluster.jobs()
        return all(job not in seen or seen[job].is_over for job in self.jobs)

    def kill(self) -> None:
        """At random, the unit starts the driver again at once, or after it has released the jobs on hold."""
        self.driver.end(signal.SIGKILL)
        if self.draws.random() < 0.5:
            hooks(self.cluster, self.user)
        self.begin()

    def restart_controller(self) -> None:
        self.cluster.end_controller(signal.SIGTERM)
        time.sleep(self.draws.uniform(0.0, 3.0))
        self.cluster.start_controller()
        self.goes_on()

    def kill_controller(self) -> None:
        """Slurm itself loses what it has not saved yet, such as jobs that have just been submitted."""
        now = time.time()
        until(lambda: (self.cluster.folder / "state" / "job_state").stat().st_mtime > now, "Slurm to save its jobs")
        self.cluster.end_controller(signal.SIGKILL)
        self.cluster.start_controller()
        self.goes_on()

    def drain(self) -> None:
        node = self.draws.choice(self.cluster.settings.node_names)
        self.cluster.tell("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
        self.goes_on()
        self.cluster.tell("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def lose_node(self) -> None:
        """A node dies with its jobs, and comes back after Slurm has noticed."""
        node = self.draws.choice(self.cluster.settings.node_names)
        self.cluster.lose_node(node)
        until(lambda: self.cluster.node_states()[node].startswith("down"), "Slurm to give the node up")
        self.goes_on()
        self.cluster.start_node(node)
        until(lambda: self.cluster.node_states()[node] in {"idle", "mix", "alloc"}, "the node to be back")

    def fill_disk(self) -> None:
        """The driver cannot write to any file for longer than a round."""
        self._limit_files("0")
        time.sleep(4)
        self._limit_files("unlimited")
        self.goes_on()

    def _limit_files(self, size: str) -> None:
        limit = ["prlimit", f"--pid={self.driver.process.pid}", f"--fsize={size}:unlimited"]
        subprocess.run([*self._prefix, *limit], check=True, capture_output=True)

    def lose_rights(self) -> None:
        """For longer than a round; needs accounts in Slurm."""
        self._set_level("none")
        time.sleep(5)
        self._set_level("operator")
        self.goes_on()

    def _set_level(self, level: str) -> None:
        self.cluster.tell("sacctmgr", "-i", "modify", "user", "where", f"name={self.user}", "set", f"adminlevel={level}")

    def begin_second_driver(self) -> None:
        self.goes_on()
        other = str(self.cluster.folder / "driver" / "other")
        refused = gavel(self.cluster, "run", "--once", "--state", other, user=self.user)
        assert "another driver manages it" in " ".join(refused.stderr.split()), refused.stderr
        assert refused.returncode == 2

    def set_clock_back(self) -> None:
        """By an hour, for the driver and the next one, and then to the right time."""
        self._meddler.set_clock_back(3600)
        self.goes_on()
        self.kill()
        self.goes_on()
        self._meddler.set_clock_back(0)

    def count(self, held: list[int]) -> Toll:
        """Return the toll."""
        records = [run for run in ended(self.cluster) if run.job in self.jobs]
        completed = {run.job for run in records if run.state == "COMPLETED"}
        twice = [one.job for one, other in combinations(records, 2) if one.job == other.job and one.overlaps(other)]
        for job in self.jobs:
            mine = stays(self.cluster, job)
            twice += [job for one, other in pairwise(mine) if one.end is not None and one.end > other.begin]
        return Toll(sorted(self.jobs.keys() - completed), twice, self._oversubscribed(records), held)

    def _oversubscribed(self, records: Sequence[Ended]) -> list[tuple[float, str]]:
        """Slurm counts whole seconds: who leaves and who comes may share one."""
        found = []
        for node in self.cluster.settings.node_names:
            here = [run for run in records if node in run.nodes]
            for at in {run.begin for run in here}:
                if sum(self.jobs[run.job] // len(run.nodes) for run in here if run.begin <= at < run.end) > GPUS_PER_NODE:
                    found.append((at, node))
        return found


def hooks(cluster: LoopbackCluster, user: str | None = None) -> None:
    """Run what systemd runs after a unit has been killed."""
    unit = gp.slurm_service("gavel", user="root", command=f"{sys.executable} -m gavel_py", state=str(cluster.folder / "driver"))
    (line,) = re.findall(r"^ExecStopPost=/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    environment = surroundings(cluster) | {"SERVICE_RESULT": "signal"}
    prefix = [] if user is None else as_user(cluster, user)
    subprocess.run([*prefix, "/bin/sh", "-c", line], env=environment, timeout=60, check=True, capture_output=True)
