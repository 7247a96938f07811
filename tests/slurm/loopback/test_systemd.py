"""The systemd unit under a real systemd, which runs as a user manager in its own namespaces and leaves this machine alone."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import PARTITION, options, plugin, surroundings
from tests.slurm.loopback.presence import needs_root, needs_slurm
from tests.slurm.loopback.scenes import gang
from tests.slurm.loopback.waiting import until

UNIT = "gavel-slurm.service"
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
RUNTIME = {"XDG_RUNTIME_DIR": "/run/user/0", "XDG_CONFIG_HOME": "/run/config", "HOME": "/root"}


@cache
def systemd() -> str:
    """Return the path of systemd, "" if there is none, or if this account may not give it namespaces."""
    paths = [path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(path).exists()]
    if not paths or not all(map(shutil.which, ("unshare", "nsenter", "systemctl"))):
        return ""
    return paths[0] if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0 else ""


pytestmark = [
    needs_slurm,
    needs_root,
    pytest.mark.deep,
    pytest.mark.skipif(not systemd(), reason="systemd, systemctl, nsenter or unshare is missing, or namespaces are not allowed"),
]


class Manager:
    """A running systemd. process: unshare; inside: its child, the first process of the namespaces."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._log = log
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        self._inside = until(lambda: children.read_text().split(), "the namespaces")[0]
        until(lambda: self.run("systemctl", "--user", "list-units").returncode == 0, "systemd to answer")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespaces."""
        enter = ["nsenter", f"--target={self._inside}", "--mount", "--pid", "env"]
        enter += [f"{name}={value}" for name, value in RUNTIME.items()]
        return subprocess.run([*enter, *words], capture_output=True, text=True, timeout=60, check=False)

    def tell(self, *words: str) -> str:
        """Run systemctl, which has to succeed."""
        done = self.run("systemctl", "--user", *words)
        assert done.returncode == 0, done.stderr + self._log.read_text()
        return done.stdout.strip()

    @property
    def pid(self) -> str:
        """The driver as seen from inside; "0" if it does not run."""
        return self.tell("show", "--property=MainPID", "--value", UNIT)

    @property
    def is_active(self) -> bool:
        return self.run("systemctl", "--user", "is-active", UNIT).stdout.strip() == "active"


@contextmanager
def managing(cluster: LoopbackCluster) -> Iterator[Manager]:
    """Run systemd with the unit of the driver until the end of the block."""
    unit, log = cluster.folder / UNIT, cluster.folder / "log" / "systemd.log"
    unit.write_text(unit_of(cluster))
    script = "mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/user/0 /run/config/systemd/user"
    script += (
        f" && cp {unit} /run/config/systemd/user/ && {{ {systemd()} --user --unit=basic.target --log-target=console & wait; }}"
    )
    with open(log, "wb") as file:
        environment = {**cluster.environment, **RUNTIME}
        process = subprocess.Popen([*NAMESPACES, "sh", "-c", script], env=environment, stdout=file, stderr=file)
    try:
        yield Manager(process, log)
    finally:
        process.kill()
        process.wait()


def unit_of(cluster: LoopbackCluster) -> str:
    """Return the unit that the page installs, with the directories and the environment of this cluster."""
    program, defaults = cluster.folder / "gavel", cluster.folder / "defaults"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gavel_py "$@"\n')
    program.chmod(0o755)
    words = {name: value for name, value in options(cluster).items() if name not in {"--partition", "--state"}}
    defaults.write_text(f'OPTIONS="--round 5 {" ".join(f"{name} {value}" for name, value in words.items())}"\n')
    text = gp.slurm_service(PARTITION, user="root", command=str(program), state=str(cluster.folder / "driver"))
    text = re.sub(r"^(User|StateDirectory)=.*\n", "", text, flags=re.MULTILINE).replace("/etc/default/gavel-slurm", str(defaults))
    environment = {name: surroundings(cluster)[name] for name in ("SLURM_CONF", "PATH", "PYTHONPATH")}
    lines = "".join(f"Environment={name}={value}\n" for name, value in environment.items())
    return text.replace("[Service]\n", f"[Service]\n{lines}")


def test_the_unit_starts_reloads_restarts_and_stops_the_driver(settings: Settings) -> None:
    nodes = (Nodes("v100", 1), Nodes("k80", 1))
    small = replace(settings, nodes=nodes, submit_plugin=plugin(), slurm_user="root", leased=False)
    with booted(small) as cluster, managing(cluster) as manager:
        (cluster.folder / "driver").mkdir()
        manager.tell("start", UNIT)  # returns when the driver is ready
        assert manager.is_active
        until(cluster.leases, "a lease")
        jobs = [gang(cluster, "--gpus=4") for _ in range(3)]
        until(lambda: len(cluster.running()) == 2, "two jobs to run")
        assert cluster.bound() == set(jobs) - cluster.running()

        log, pid = cluster.folder / "driver" / "log.jsonl", manager.pid
        log.rename(log.with_name("log.jsonl.1"))
        manager.tell("reload", UNIT)
        until(log.exists, "a new log")
        assert manager.pid == pid

        assert manager.run("kill", f"-{signal.SIGKILL.value}", pid).returncode == 0
        assert cluster.bound(), "they wait for the next driver"
        until(lambda: manager.is_active and manager.pid not in {"0", pid}, "a restart")
        until(cluster.running, "a job to run")
        cluster.tell("scancel", str(next(iter(cluster.running()))))
        until(lambda: not cluster.bound() and len(cluster.running()) == 2, "the driver to start the job")
        assert len(cluster.leases()) == 1, "of the driver before"

        manager.tell("stop", UNIT)
        assert manager.run("systemctl", "--user", "is-failed", UNIT).stdout.strip() == "inactive"
        assert manager.tell("show", "--property=Result", "--value", UNIT) == "success"
        last = gang(cluster, "--gpus=4")
        assert cluster.bound() == {last}, "a stop releases nothing before the lease ends"
