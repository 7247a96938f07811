"""A running cluster: boot it, run its commands, and break it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.slurm.loopback import accounting, configuration, ports
from tests.slurm.loopback.configuration import Settings
from tests.slurm.loopback.daemons import Daemons
from tests.slurm.loopback.seen import JobSeen, jobs_of, leases_of
from tests.slurm.loopback.waiting import GUARD_SECONDS, LateError, until

__all__ = ["LoopbackCluster", "booted"]


class LoopbackCluster:
    """The daemons of a Slurm on this machine, with a separate folder."""

    def __init__(self, settings: Settings, folder: Path, daemons: Daemons, first_port: int) -> None:
        self.settings = settings
        self._first_port = first_port
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.environment |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": settings.release.path}
        self.program = settings.release.program
        self._daemons = daemons
        self._first: frozenset[int] = frozenset()  # a lease that is none

    def run(self, *words: str, user: int | None = None, within: float = GUARD_SECONDS) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, as another user where one is named (which only root can)."""
        path, *rest = words
        return subprocess.run(
            [self.program(path), *rest],
            env=self.environment,
            user=user,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def tell(self, *words: str, user: int | None = None) -> str:
        """Run a command that has to succeed, and return its output."""
        done = self.run(*words, user=user)
        assert done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start_controller(self, *options: str) -> None:
        self._daemons.start("slurmctld", self.program("slurmctld"), "-D", "-f", self.environment["SLURM_CONF"], *options)
        until(self._answers, "the controller to answer")

    def end_controller(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Signal the controller; with SIGTERM, it saves its state first."""
        self._daemons.end("slurmctld", how=how)

    def start_node(self, name: str) -> None:
        self._daemons.start(
            name, self.program("slurmd"), "-D", "-N", name, "-f", self.environment["SLURM_CONF"], *self.settings.release.of_node
        )

    def lose_node(self, name: str) -> None:
        """Kill the daemon of a node and all its jobs, without notice to the controller."""
        self._daemons.end(name, how=signal.SIGKILL)
        for _ in range(3):  # a job that has just been launched may have no socket yet
            for path in (self.folder / "spool" / name).glob(f"{name}_*.*"):
                job_id = path.name.removeprefix(f"{name}_").partition(".")[0]
                self._daemons.kill_orphans(f"slurmstepd: [{job_id}.")
            time.sleep(0.2)

    def node_states(self) -> dict[str, str]:
        """Return the states of nodes as idle, mix, alloc, drain, drng or down, with * if a node does not respond."""
        lines = self.tell("sinfo", "-h", "-N", "-p", "plain", "-o", "%N %t").split("\n")
        return dict(line.split() for line in lines if line)

    def jobs(self) -> dict[int, JobSeen]:
        """Return all jobs in the controller by id, including ended ones."""
        return jobs_of(self.tell("scontrol", "--details", "--oneliner", "show", "jobs"))

    def leases(self) -> dict[int, JobSeen]:
        """Return the leases of drivers, including those that have ended."""
        found = leases_of(self.tell("scontrol", "--details", "--oneliner", "show", "jobs"))
        return {job: each for job, each in found.items() if job not in self._first}

    def bound(self) -> set[int]:
        """Return the jobs that wait for a driver."""
        return {job for job, each in self.jobs().items() if each.bound}

    def running(self) -> set[int]:
        """Return the jobs that hold GPUs or CPUs."""
        return {job for job, each in self.jobs().items() if each.state == "RUNNING"}

    def why(self) -> str:
        """Return the last errors in the logs of the daemons."""
        texts = [path.read_text(errors="replace") for path in sorted((self.folder / "log").iterdir())]
        lines = [line for text in texts for line in text.splitlines() if "error" in line or "fatal" in line]
        return "\n".join(lines[-20:])

    def boot(self) -> None:
        run = self.folder / "run"
        _write_key(run / "munge.key")
        munge = [f"--{what}-file={run}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        self._daemons.start(
            "munged", self.program("munged"), "--foreground", "--force", f"--socket={run}/munge.sock", "--num-threads=2", *munge
        )
        until((run / "munge.sock").exists, "munged")
        if self.settings.accounting:
            accounting.boot(self, self._daemons, self._first_port + 1 + len(self.settings.node_names))
        for name in self.settings.node_names:
            self.start_node(name)
        self.start_controller("-c")
        until(self._all_up, "all nodes to be up")
        if self.settings.submit_plugin:
            self.take_lease()
            if not self.settings.leased:  # without any job, the plugin would wait for one to be sure that there is no lease
                self._first = frozenset(self.leases())
                self.tell("scancel", *map(str, self._first))

    def take_lease(self) -> None:
        """Take a lease as an earlier driver with the state of `driving`, so that jobs wait although no driver runs yet."""
        place = hashlib.sha256(str((self.folder / "driver").resolve()).encode()).hexdigest()[:12]
        managed = re.findall(r'PARTITIONS = "(.*)"', self.settings.submit_plugin)[0]
        comment = f"gavel:driver={socket.gethostname()}:1:{place} lease=600 of={managed}"
        words = [
            "--parsable",
            "--job-name=gavel-driver",
            "--begin=now+600",
            "--time=1",
            "--mem=1",
            "--chdir=/",
            "--output=/dev/null",
        ]
        job = self.tell("sbatch", f"--partition={managed.split(',')[0]}", f"--comment={comment}", *words, "--wrap=true").strip()
        time.sleep(1.1)  # the plugin sees jobs by the second in which Slurm has last changed one
        self.tell("scontrol", "update", f"JobId={job}", "StartTime=now+600")

    def _answers(self) -> bool:
        return "UP" in self.run("scontrol", "ping").stdout

    def _all_up(self) -> bool:
        return set(self.node_states().values()) <= {"idle"}


@contextmanager
def booted(settings: Settings) -> Iterator[LoopbackCluster]:
    """Boot a cluster and remove all of it at the end, even if this process is killed."""
    # Sockets have paths of at most 107 characters, which a test's own folder may exceed; jobs of all users write below it.
    folder = Path(tempfile.mkdtemp(prefix="gavel-slurm-"))
    folder.chmod(0o755)
    first_port, guard = ports.reserve(settings.ports)
    daemons = Daemons(folder, guards=(guard.fileno(),))
    guard.close()
    try:
        configuration.write(settings, folder, first_port)
        cluster = LoopbackCluster(settings, folder, daemons, first_port)
        try:
            cluster.boot()
        except LateError as fault:
            fault.add_note(cluster.why())
            raise
        yield cluster
    finally:
        daemons.close()
        shutil.rmtree(folder, ignore_errors=True)


def _write_key(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(os.urandom(128))
