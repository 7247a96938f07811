"""The job_submit plugin for a site, and what slurm.conf must say."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from gavel_py.errors import Fault, InputError
from gavel_py.integrations.slurm.hostlists import is_node_name

__all__ = ["slurm_plugin"]


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
