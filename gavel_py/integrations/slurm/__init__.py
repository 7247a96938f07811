"""Driving a Slurm cluster in rounds, and the job_submit plugin for a site that wants it.

records, parsing: what Slurm says, as plain records (pure); settings: what the site decides; job_roles, job_mapping: what is made of
jobs and nodes (pure); state: what the driver must not lose; sync: keeps the scheduler in step with Slurm; decision: the next round,
and what it means in commands; apply: carries it out; commands: the only place that starts processes, and what the account may do;
driver: one step after the other, with state, lock and log; event_log: the log, and the run that reports make of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.apply import Applied as SlurmApplied
from gavel_py.integrations.slurm.commands import SlurmCommands, WallClock
from gavel_py.integrations.slurm.decision import ClusterSnapshot as SlurmPicture
from gavel_py.integrations.slurm.decision import Decided as SlurmDecided
from gavel_py.integrations.slurm.driver import SlurmDriver
from gavel_py.integrations.slurm.event_log import slurm_run
from gavel_py.integrations.slurm.parsing import is_node_name
from gavel_py.integrations.slurm.settings import SlurmSettings, TypeRule

__all__ = [
    "SlurmApplied",
    "SlurmCommands",
    "SlurmDecided",
    "SlurmDriver",
    "SlurmPicture",
    "SlurmSettings",
    "TypeRule",
    "WallClock",
    "slurm_plugin",
    "slurm_run",
]


def slurm_plugin(partition: str, administrators: Iterable[int] = (), *, is_default: bool = False) -> str:
    """Return the job_submit.lua that holds new jobs of a partition.

    administrators: the user ids, beside root's, of those who release jobs: SlurmUser and the account of the driver; is_default:
    whether jobs that name no partition come to this one. Raises `InputError`.
    """
    if not is_node_name(partition):
        raise InputError(Fault("slurm", "partition", f"{partition!r} cannot be the name of a partition"))
    numbers = ", ".join(f"[{int(uid)}] = true" for uid in sorted({0, *administrators}))
    text = (files(__package__) / "job_submit.lua").read_text(encoding="utf-8")
    for name, value in (("PARTITION", partition), ("IS_DEFAULT", str(is_default).lower()), ("ADMINISTRATORS", numbers)):
        text = text.replace(f"@{name}@", value)
    return text
