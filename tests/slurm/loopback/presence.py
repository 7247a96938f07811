"""Detection of Slurm on this machine, and the mark of tests that need it."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["REQUIRED", "missing", "needs_accounting", "needs_root", "needs_slurm", "tool"]

# Set by .ci/run if Slurm must be installed: then tests fail without it instead of being skipped.
REQUIRED = os.environ.get("GAVEL_PY_SLURM") == "required"
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "my_print_defaults")
INSTALL = "apt-get install slurm-wlm munge slurmdbd mariadb-server-core mariadb-client-core"
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def tool(name: str) -> str:
    """Return the path of a program of Slurm; daemons are outside the PATH of ordinary users."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; on Debian and Ubuntu: {INSTALL}")
    return found


def missing(tools: tuple[str, ...] = TOOLS) -> list[str]:
    return [name for name in tools if shutil.which(name, path=PATH) is None]


needs_slurm = pytest.mark.skipif(
    bool(missing()) and not REQUIRED,
    reason=f"no real Slurm here: {', '.join(missing())} not found ({INSTALL})",
)
needs_accounting = pytest.mark.skipif(
    bool(missing(ACCOUNTING)) and not REQUIRED,
    reason=f"no slurmdbd with MariaDB here: {', '.join(missing(ACCOUNTING))} not found ({INSTALL})",
)
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
