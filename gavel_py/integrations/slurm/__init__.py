"""Driving a Slurm cluster in rounds.

records, node_reading, job_reading: what Slurm says, as plain records (pure); roles, kinds, marks, comments: what is made of a job
(pure); cluster_picture, newcomers, node_sync, watching, following: the scheduler is kept at what Slurm says; deciding: the next
round; moves: what that is in commands (pure); applying: carrying it out; commands: the only place that starts processes; rights:
what the account may do; driver: one after the other, with state, lock and log; replay, run_of: what became of it, for reports.
"""

from gavel_py.integrations.slurm.applying import Applied as SlurmApplied
from gavel_py.integrations.slurm.clock import WallClock
from gavel_py.integrations.slurm.commands import SlurmCommands
from gavel_py.integrations.slurm.deciding import Decided as SlurmDecided
from gavel_py.integrations.slurm.deciding import Picture as SlurmPicture
from gavel_py.integrations.slurm.driver import SlurmDriver
from gavel_py.integrations.slurm.plugin import slurm_plugin
from gavel_py.integrations.slurm.run_of import slurm_run
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
