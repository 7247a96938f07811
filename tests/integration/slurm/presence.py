"""Whether this machine has Slurm, and the mark of tests that need it."""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["REQUIRED", "missing", "needs_slurm", "tool"]

# Set by .ci/run where Slurm was installed or has to be: then its absence is a failure, and nothing is skipped.
REQUIRED = os.environ.get("GAVEL_PY_SLURM") == "required"
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def tool(name: str) -> str:
    """The path of one of Slurm's programs; daemons lie where an ordinary user's PATH does not lead."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; on Debian and Ubuntu: apt-get install slurm-wlm munge")
    return found


def missing() -> list[str]:
    return [name for name in TOOLS if shutil.which(name, path=PATH) is None]


needs_slurm = pytest.mark.skipif(
    bool(missing()) and not REQUIRED,
    reason=f"no real Slurm here: {', '.join(missing())} not found (apt-get install slurm-wlm munge)",
)
