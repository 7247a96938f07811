"""Configuration of a Slurm with all nodes on this machine, reachable by loopback only."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.slurm.loopback.releases import Release, chosen

__all__ = ["ALL", "Nodes", "Settings", "write"]

FOLDERS = ("dev", "log", "progress", "run", "spool", "state", "stays")

PARTITIONS = {"gavel": "Nodes=ALL", "plain": "Nodes=ALL"}
"""One partition has the submit plugin, in the other Slurm starts jobs by itself."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one accelerator type. gpus: per node; weight: Slurm prefers nodes of lower weight."""

    accelerator: str
    count: int
    gpus: int = 4
    weight: int = 1

    @property
    def names(self) -> list[str]:
        return [f"{self.accelerator}-{number}" for number in range(self.count)]


@dataclass(frozen=True)
class Settings:
    """Settings of a cluster.

    submit_plugin: a job_submit.lua, "" for none; options: lines of slurm.conf that replace or extend those below; slurm_user:
    account of the controller, which only root can choose; accounting: whether the cluster has a slurmdbd and a MariaDB; partitions:
    {name: its nodes and options}; release: of Slurm; leased: whether a driver has had a lease, so that jobs wait for the next.
    """

    nodes: tuple[Nodes, ...]
    submit_plugin: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    slurm_user: str = field(default_factory=getpass.getuser)
    accounting: bool = False
    partitions: Mapping[str, str] = field(default_factory=lambda: PARTITIONS)
    release: Release = field(default_factory=chosen)
    leased: bool = True

    @property
    def ports(self) -> int:
        """Number of ports: the controller's, one per node, slurmdbd's and MariaDB's."""
        return 1 + len(self.node_names) + (2 if self.accounting else 0)

    @property
    def node_names(self) -> list[str]:
        return [name for kind in self.nodes for name in kind.names]


ALL = (Nodes("v100", 9), Nodes("p100", 9), Nodes("k80", 9))
"""The nodes of most tests: 108 GPUs."""


def write(settings: Settings, folder: Path, first_port: int) -> None:
    """Write slurm.conf and related files, and create its folders. Ports: as in `Settings.ports`."""
    for name in FOLDERS:
        (folder / name).mkdir()
    for name in ("progress", "stays"):
        (folder / name).chmod(0o1777)  # jobs of every user write there
    for name in settings.node_names:
        (folder / "spool" / name).mkdir()
    for path in (folder / "state", folder / "log" / "slurmctld.log"):
        path.touch()
        shutil.chown(path, settings.slurm_user)
    options = _options(settings, folder, first_port) | ({"JobSubmitPlugins": "lua"} if settings.submit_plugin else {})
    if settings.accounting:
        options |= _accounting(folder, first_port + len(settings.node_names) + 1)
    if settings.release.plugins:
        options["PluginDir"] = settings.release.plugins
        del options["SwitchType"]  # its plugin "none" is gone
    options |= dict(settings.options)
    lines = [f"{key}={value}" for key, value in options.items()] + _node_lines(settings, first_port + 1)
    lines += [f"PartitionName={name} OverSubscribe=NO {rest}" for name, rest in settings.partitions.items()]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("".join(_gpu_line(kind, folder) for kind in settings.nodes))
    # Nothing here needs control groups, but slurmd loads a plugin for them, and fails where a container hides what it finds.
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={'disabled' if settings.release.plugins else 'cgroup/v1'}\n")
    (folder / "job_submit.lua").write_text(settings.submit_plugin)


def _accounting(folder: Path, port: int) -> dict[str, str]:
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(port),
        "AccountingStoragePass": f"{folder}/run/munge.sock",
    }


def _options(settings: Settings, folder: Path, port: int) -> dict[str, str]:
    return {
        "ClusterName": "loopback",
        "SlurmctldHost": "localhost(127.0.0.1)",
        "SlurmctldPort": str(port),
        "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
        "SlurmUser": settings.slurm_user,
        "SlurmdUser": getpass.getuser(),
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/run/munge.sock",
        "CredType": "cred/munge",
        "MpiDefault": "none",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/state/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/slurmd.%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd.%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": f"{folder}/state/ended",
        "SwitchType": "switch/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=2,sched_min_interval=50000,batch_sched_delay=0,bf_interval=2,bf_min_age_reserve=0",
        "PriorityType": "priority/basic",
        "PreemptType": "preempt/none",
        "JobRequeue": "1",
        "ReturnToService": "2",
        "SlurmdParameters": "config_overrides",
        "GresTypes": "gpu",
        "KillWait": "5",
        "MinJobAge": "300",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": "60",
    }


def _node_lines(settings: Settings, first_port: int) -> list[str]:
    kinds = {name: kind for kind in settings.nodes for name in kind.names}
    return [_node_line(name, kind, port) for port, (name, kind) in enumerate(kinds.items(), first_port)]


def _node_line(name: str, kind: Nodes, port: int) -> str:
    cores = 4 * kind.gpus
    return (
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cores} Boards=1 SocketsPerBoard=1"
        f" CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={16_000 * kind.gpus} Gres=gpu:{kind.accelerator}:{kind.gpus}"
        f" Feature={kind.accelerator} Weight={kind.weight} State=UNKNOWN"
    )


def _gpu_line(kind: Nodes, folder: Path) -> str:
    """GPUs must be device files; slurmd only checks that they exist."""
    for number in range(kind.gpus):
        device = folder / "dev" / f"{kind.accelerator}{number}"
        device.symlink_to("/dev/null")
    files = f"{folder}/dev/{kind.accelerator}[0-{kind.gpus - 1}]"
    return f"NodeName={','.join(kind.names)} Name=gpu Type={kind.accelerator} File={files}\n"
