"""A play of faults: what goes wrong at sites happens to a driver in random order. Slurm's own records tell what became of jobs."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import combinations, pairwise

from tests.slurm.loopback.allocations import Ended, ended, lifetimes
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import Driver, as_user, driving, gavel, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.meddling import Meddler
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.seen import LEASE, names_in
from tests.slurm.loopback.submitting import stays
from tests.slurm.loopback.waiting import until

__all__ = ["Play", "Toll"]

LEASE_SECONDS = 20.0

SETTLING_SECONDS = 8.0
"""A job that a lease has set free may start before the next driver binds it."""

GPUS_PER_NODE = 4


@dataclass(frozen=True)
class Toll:
    """Jobs that suffered, by Slurm's own records.

    lost: did not complete; twice: ran twice at once, which their own records are asked as well; oversubscribed: pairs of time and
    node with more GPUs in use than there are; bound: still waited for the last driver half a minute after its lease; early: started
    where no driver had sent them although there was a lease.
    """

    lost: list[int]
    twice: list[int]
    oversubscribed: list[tuple[float, str]]
    bound: list[int]
    early: list[Ended]


class Play:
    """A driver with its unit, jobs that come all the time, and faults, which are methods. user: who runs the driver."""

    def __init__(self, cluster: LoopbackCluster, seed: int, user: str | None = None) -> None:
        self.cluster, self.user = cluster, user
        self.draws = random.Random(seed)  # noqa: S311
        self.jobs: dict[int, int] = {}  # {job: GPUs}
        self._meddler = Meddler(cluster)
        self._played: list[tuple[int, str]] = []  # (when, fault), for what a failed play shows
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
                self._played.append((round(time.time()), fault))
                getattr(self, fault)()
            self.goes_on()
            self.submit(10)
            until(self.cluster.bound, "jobs to wait for the driver")
            self.driver.end(signal.SIGKILL)
        died = time.monotonic()
        while (bound := sorted(self.cluster.bound())) and time.monotonic() < died + LEASE_SECONDS + 30:
            time.sleep(0.2)
        until(self.all_over, "all jobs to end, without a driver", within=120)
        return self.count(bound)

    def begin(self) -> None:
        """Start a driver, as its unit does."""
        words = ("--round", "2", "--on-failure", "release", "--lease", f"{LEASE_SECONDS:g}")
        self.driver: Driver = self._drivers.enter_context(driving(self.cluster, *words, tools=self._meddler.folder, user=self.user))

    def goes_on(self) -> None:
        """Wait for a round; the unit starts a driver again that has ended with an error, as without rights when it began."""
        before = self.driver.applied()

        def has_applied() -> bool:
            if self.driver.process.poll() is not None:
                self.begin()
            return self.driver.applied() > before

        until(has_applied, "a round", within=90)

    def submit(self, count: int) -> None:
        """Submit jobs of some seconds."""
        for _ in range(count):
            gpus = self.draws.choice((1, 2, 4))
            self.jobs[gang(self.cluster, "--nodes=1", f"--gres=gpu:{gpus}", steps=self.draws.uniform(2.0, 12.0))] = gpus

    def all_over(self) -> bool:
        """Return whether all jobs have ended; Slurm forgets them after a while."""
        seen = self.cluster.jobs()
        return all(job not in seen or seen[job].is_over for job in self.jobs)

    def kill(self) -> None:
        """At random, the unit starts the driver again at once, or only after the lease has ended, perhaps in the middle of that."""
        self.driver.end(signal.SIGKILL)
        if self.draws.random() < 0.3:
            until(lambda: not self.cluster.bound(), "the lease to end")
            time.sleep(self.draws.uniform(0.0, 3.0))
        self.begin()

    def restart_controller(self) -> None:
        self.cluster.end_controller(signal.SIGTERM)
        time.sleep(self.draws.uniform(0.0, 3.0))
        self.cluster.start_controller()
        self.goes_on()

    def kill_controller(self) -> None:
        """Slurm itself loses what it has not saved yet, such as jobs that have just been submitted."""
        now = time.time()
        until(lambda: self._has_saved(now), "Slurm to save its jobs")
        self.cluster.end_controller(signal.SIGKILL)
        self.cluster.start_controller()
        self.goes_on()

    def _has_saved(self, since: float) -> bool:
        """Return whether Slurm has saved its jobs since then, and all starts: it drains nodes that run jobs it has forgotten."""
        starts = [each.started + 1 for each in self.cluster.jobs().values() if each.started is not None]
        with suppress(FileNotFoundError):  # while Slurm replaces it
            return (self.cluster.folder / "state" / "job_state").stat().st_mtime > max([since, *starts])
        return False

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
        """By an hour, for the driver, which goes on, and the next one, which does not begin until the time is right."""
        self.goes_on()  # so that it has begun
        self._meddler.set_clock_back(3600)
        self.goes_on()
        self.kill()
        assert self.driver.wait(within=60) == 2
        assert "behind that of slurmctld" in " ".join(self.driver.output().split())
        self._meddler.set_clock_back(0)
        self.begin()
        self.goes_on()

    def count(self, bound: list[int]) -> Toll:
        """Return the toll."""
        # A Slurm that was killed may have forgotten the end of a run, and records another one.
        ends = {(run.job, run.begin, run.nodes): run for run in reversed(ended(self.cluster)) if run.job in self.jobs}
        records = list(ends.values())
        completed = {run.job for run in records if run.state == "COMPLETED"}
        twice = [one.job for one, other in combinations(records, 2) if one.job == other.job and one.overlaps(other)]
        for job in self.jobs:
            mine = stays(self.cluster, job)
            twice += [job for one, other in pairwise(mine) if one.end is not None and one.end > other.begin]
        toll = Toll(sorted(self.jobs.keys() - completed), twice, self._oversubscribed(records), bound, self._early(records))
        for job in {*toll.lost, *toll.twice}:  # what a failed play has to show
            sys.stdout.write(f"job {job}: {[run for run in records if run.job == job]}; {stays(self.cluster, job)}\n")
        if toll.early:
            sys.stdout.write(f"early: {toll.early}; leases: {lifetimes(self.cluster, LEASE)}\n")
            sys.stdout.write(f"faults: {self._played}; left to Slurm: {self._left()}\n")
        return toll

    def _oversubscribed(self, records: Sequence[Ended]) -> list[tuple[float, str]]:
        """Slurm counts whole seconds: who leaves and who comes may share one."""
        found = []
        for node in self.cluster.settings.node_names:
            here = [run for run in records if node in run.nodes]
            for at in {run.begin for run in here}:
                if sum(self.jobs[run.job] // len(run.nodes) for run in here if run.begin <= at < run.end) > GPUS_PER_NODE:
                    found.append((at, node))
        return found

    def _left(self) -> list[tuple[float, list[str]]]:
        """Return (time, jobs) where drivers have left jobs to Slurm that it did not start on the selected nodes."""
        rounds = [(line["seconds"], line["give_back"]) for line in events(log_of(self.cluster), "round")]
        found = rounds + [(line["seconds"], line["jobs"]) for line in events(log_of(self.cluster), "let_go")]
        return [(at, [job for job, why in jobs.items() if "did not start" in why]) for at, jobs in found]

    def _early(self, records: Sequence[Ended]) -> list[Ended]:
        """Return the runs where no driver has sent the job, that began while there had been a lease for a while.

        A job that the driver has left to Slurm after failed starts is no such job; one that found no node there, as while none
        responds after a restart of the controller, is.
        """
        left = self._left()
        told = re.findall(r"^update JobId=(\d+) .*ReqNodeList=(\S+)", self._meddler.told(), re.MULTILINE)
        sent = {(int(job), frozenset(names_in(nodes))) for job, nodes in told}
        leases = lifetimes(self.cluster, LEASE)
        return [
            run
            for run in records
            if (run.job, frozenset(run.nodes)) not in sent
            and not any(str(run.job) in jobs and run.begin - LEASE_SECONDS < at <= run.begin + 2 for at, jobs in left)
            and any(begin + SETTLING_SECONDS < run.begin < end - 1 for begin, end in leases)
        ]
