"""A driver that manages the jobs of Slurm partitions in rounds, and the job_submit plugin that holds new jobs for it.

`records`, `parsing` and `notation` read Slurm; `partitions` has the nodes of the managed partitions, and which jobs may run
there; `job_roles` decides which jobs are managed, and `job_mapping` converts them for the scheduler; `sizes` has the numbers of
GPUs on which they may run, and `speeds` the throughputs, measured or learned; `sync` reconciles the scheduler with Slurm;
`decision` plans a round and derives its `actions`, which `apply` carries out through `commands`, the only module that starts
processes; `driver` runs the loop with `state`. `monitoring` shows what it did, or would have done (`shadow`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.resources import files

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.apply import Applied as SlurmApplied
from gavel_py.integrations.slurm.beacon import DEAD_SECONDS, slurm_release
from gavel_py.integrations.slurm.client.commands import SlurmCommands, WallClock
from gavel_py.integrations.slurm.client.records import BEACON
from gavel_py.integrations.slurm.decision import ClusterSnapshot as SlurmPicture
from gavel_py.integrations.slurm.decision import Decided as SlurmDecided
from gavel_py.integrations.slurm.driver import SlurmDriver
from gavel_py.integrations.slurm.monitoring.queue_view import QueuedJob as SlurmQueuedJob
from gavel_py.integrations.slurm.monitoring.queue_view import slurm_queue
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
    "SlurmQueuedJob",
    "SlurmSettings",
    "SlurmShadow",
    "TypeRule",
    "WallClock",
    "slurm_comparison",
    "slurm_plugin",
    "slurm_queue",
    "slurm_release",
    "slurm_run",
    "slurm_service",
]


def slurm_plugin(
    partition: str,
    administrators: Iterable[int] = (),
    *,
    is_default: bool = False,
    dead_seconds: float = DEAD_SECONDS,
    reject_odd: bool = False,
) -> str:
    """Return a job_submit.lua that puts new jobs of a partition on hold.

    Args:
        partition: The managed partition, or several, separated by commas.
        administrators: User ids, besides root, that may release jobs: SlurmUser and the account of the driver.
        is_default: Whether jobs that name no partition are submitted to one of these.
        reject_odd: Whether gangs are refused that need more nodes than their GPUs fill, since all nodes must have the same number.
        dead_seconds: Without a sign of life of the driver for so long, jobs pass as if there were no plugin; 0 to hold them always.

    Raises:
        InputError: The name of the partition is invalid, or the time is negative or not finite.
    """
    names = partitions_in(partition)
    if not 0 <= dead_seconds < math.inf:
        raise InputError(Fault("slurm", "dead_seconds", f"must be a finite number of at least 0, found {dead_seconds!r}"))
    numbers = ", ".join(f"[{int(uid)}] = true" for uid in sorted({0, *administrators}))
    text = (files(__package__) / "job_submit.lua").read_text(encoding="utf-8")
    for name, value in {
        "PARTITION": ",".join(names),
        "IS_DEFAULT": str(is_default).lower(),
        "ADMINISTRATORS": numbers,
        "BEACON": BEACON,
        "REJECT_ODD": str(reject_odd).lower(),
        "DEAD_SECONDS": str(math.ceil(dead_seconds)),
    }.items():
        text = text.replace(f"@{name}@", value)
    return text


def slurm_service(partition: str, *, user: str, command: str = "gavel", state: str = "/var/lib/gavel-slurm") -> str:
    """Return a unit of systemd that runs the driver, and releases the jobs on hold when it cannot.

    Args:
        partition: The managed partition, or several, separated by commas.
        user: The account of the driver.
        command: The path of gavel.
        state: The directory for state and log.

    Raises:
        InputError: The name of the partition is invalid.
    """
    names = ",".join(partitions_in(partition))
    text = (files(__package__) / "gavel-slurm.service").read_text(encoding="utf-8")
    for name, value in {"PARTITION": names, "USER": user, "COMMAND": command, "STATE": state}.items():
        text = text.replace(f"@{name}@", value)
    return text
