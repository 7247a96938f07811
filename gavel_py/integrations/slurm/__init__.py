"""A driver that manages the jobs of Slurm partitions in rounds, and the job_submit plugin that lets new jobs wait for it.

`client` runs Slurm's commands and parses their output; only its module `commands` starts processes. `partitions` describes the
nodes of the managed partitions. `job_roles` decides which jobs are managed, and `job_mapping` converts them for the scheduler.
`sizes` determines the numbers of GPUs on which a job may run, and `speeds` its throughputs, measured or learned. `sync`
reconciles the scheduler with Slurm. `decision` plans a round and derives the `actions` that `apply` carries out. `driver` runs
the loop and keeps its `state`; as long as it renews its `lease`, waiting jobs wait for it. `monitoring` shows what a driver
did, or would have done (`shadow`).
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from gavel_py.integrations.slurm.apply import Applied as SlurmApplied
from gavel_py.integrations.slurm.client.commands import SlurmCommands, WallClock
from gavel_py.integrations.slurm.client.records import LEASE
from gavel_py.integrations.slurm.decision import ClusterSnapshot as SlurmPicture
from gavel_py.integrations.slurm.decision import Decided as SlurmDecided
from gavel_py.integrations.slurm.driver import SlurmDriver
from gavel_py.integrations.slurm.lease import SlurmRemains, slurm_release, slurm_uninstall
from gavel_py.integrations.slurm.monitoring.queue_view import SlurmQueue, SlurmQueuedJob, slurm_job, slurm_queue
from gavel_py.integrations.slurm.monitoring.replay import SlurmComparison, slurm_comparison, slurm_run
from gavel_py.integrations.slurm.monitoring.shadow import SlurmShadow
from gavel_py.integrations.slurm.settings import SlurmSettings, TypeRule, partitions_in

__all__ = [
    "SlurmApplied",
    "SlurmCommands",
    "SlurmComparison",
    "SlurmDecided",
    "SlurmDriver",
    "SlurmPicture",
    "SlurmQueue",
    "SlurmQueuedJob",
    "SlurmRemains",
    "SlurmSettings",
    "SlurmShadow",
    "TypeRule",
    "WallClock",
    "slurm_comparison",
    "slurm_job",
    "slurm_plugin",
    "slurm_queue",
    "slurm_release",
    "slurm_run",
    "slurm_service",
    "slurm_uninstall",
]


def slurm_plugin(
    partition: str,
    administrators: Iterable[int] = (),
    *,
    is_default: bool = False,
    reject_odd: bool = False,
    reject_unplanned: bool = False,
) -> str:
    """Return a job_submit.lua that lets new jobs of a partition wait for the driver, as long as it has a lease.

    Args:
        partition: The managed partition, or several, separated by commas.
        administrators: User ids, besides root, that may take a lease: SlurmUser and the account of the driver.
        is_default: Whether jobs that name no partition are submitted to one of these.
        reject_odd: Whether to refuse gangs that cannot fill the nodes they need, since each of their nodes must have the same
            number of GPUs.
        reject_unplanned: Whether to refuse jobs that the driver would leave to Slurm because of their request, such as
            `--nodelist`, `--exclude` and `--exclusive`, since they keep their GPUs until they end.

    Raises:
        InputError: The name of the partition is invalid.
    """
    names = partitions_in(partition)
    numbers = ", ".join(f"[{int(uid)}] = true" for uid in sorted({0, *administrators}))
    text = (files(__package__) / "job_submit.lua").read_text(encoding="utf-8")
    for name, value in {
        "PARTITION": ",".join(names),
        "IS_DEFAULT": str(is_default).lower(),
        "ADMINISTRATORS": numbers,
        "LEASE": LEASE,
        "REJECT_ODD": str(reject_odd).lower(),
        "REJECT_UNPLANNED": str(reject_unplanned).lower(),
    }.items():
        text = text.replace(f"@{name}@", value)
    return text


def slurm_service(partition: str, *, user: str, command: str = "gavel", state: str = "/var/lib/gavel-slurm") -> str:
    """Return a systemd unit that runs the driver.

    Args:
        partition: The managed partition, or several, separated by commas.
        user: The account of the driver.
        command: The path of the command gavel.
        state: The directory for the state and the log.

    Raises:
        InputError: The name of the partition is invalid.
    """
    names = ",".join(partitions_in(partition))
    text = (files(__package__) / "gavel-slurm.service").read_text(encoding="utf-8")
    for name, value in {"PARTITION": names, "USER": user, "COMMAND": command, "STATE": state}.items():
        text = text.replace(f"@{name}@", value)
    return text
