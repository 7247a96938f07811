"""Releases of Slurm: the one of this machine, and those of other Debian suites, which tests run beside it.

    python -m tests.slurm.loopback.releases [--renew]

fetches those of `SUITES` that are missing, or all of them again; all tests run on one of them where it is named by
GAVEL_PY_SLURM_RELEASE, as in GAVEL_PY_SLURM_RELEASE=sid make deep PACKAGE=slurm. Nothing is installed: mmdebstrap extracts packages
below a cache, and patchelf points the programs of Slurm to the libraries beside them, so that any user can run them without chroot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from tests.slurm.loopback.presence import tool

__all__ = ["FETCH", "SUITES", "VARIABLE", "Release", "chosen"]

SUITES = ("trixie", "sid")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin")
CACHE = (Path("/var/cache") if os.getuid() == 0 else Path.home() / ".cache") / "gavel-py-slurm"
"""That of root is not in its home directory, which other users may not enter."""

READY = "ready"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"
PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "slurmstepd"),
    *("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "sprio", "squeue", "srun"),
)


@dataclass(frozen=True)
class Release:
    """A release of Slurm. name: its suite, or empty for that of this machine."""

    name: str = ""

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def is_ready(self) -> bool:
        return not self.name or (self.folder / READY).exists()

    @property
    def version(self) -> str:
        """The version that its daemons print, such as 24.11.5."""
        return subprocess.run([self.program("slurmctld"), "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]

    def program(self, name: str) -> str:
        """Return the path of a program of this release, or of this machine if it is not Slurm's."""
        return str(self.folder / "programs" / name) if self.name and name in PROGRAMS else tool(name)

    @property
    def path(self) -> str:
        """The PATH of a shell with the commands of this release."""
        own = os.environ.get("PATH", os.defpath)
        return os.pathsep.join([str(self.folder / "programs"), own]) if self.name else own

    @property
    def plugins(self) -> str:
        """The folder of the plugins of the daemons; empty for this machine's."""
        return str(self.folder / LIBRARIES / "slurm-wlm") if self.name else ""

    @property
    def of_node(self) -> list[str]:
        """Further arguments of slurmd, which otherwise starts the slurmstepd of this machine."""
        return ["-d", self.program("slurmstepd")] if self.name else []


FETCH = "python -m tests.slurm.loopback.releases, which needs mmdebstrap and patchelf"
VARIABLE = "GAVEL_PY_SLURM_RELEASE"


def chosen() -> Release:
    """Return the release on which tests run at present."""
    return Release(os.environ.get(VARIABLE, ""))


def fetch(suite: str) -> None:
    """Extract the packages of a suite, and make its programs use the libraries beside them."""
    folder = CACHE / suite
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Mirrors may keep a copy of sid that is older than its lists are valid.
    options = ['APT::Install-Recommends "false"', 'Acquire::Check-Valid-Until "false"']
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(PACKAGES)}"]
        + [f"--aptopt={option}" for option in options]
        + [suite, str(folder)],
        check=True,
    )
    libraries, programs = folder / LIBRARIES, folder / "programs"
    loader = next(path for path in (libraries / LOADER, folder / "usr/lib64" / LOADER, folder / "lib64" / LOADER) if path.exists())
    found = f"{libraries}:{libraries / 'slurm-wlm'}"
    programs.mkdir()
    for name in PROGRAMS:
        path = next(
            path
            for path in (folder / at / f"{name}{end}" for at in ("usr/bin", "usr/sbin") for end in ("", "-wlm"))
            if path.is_file()
        )
        _fit(path, found, "--set-interpreter", str(loader))
        (programs / name).symlink_to(path)
    for path in (libraries / "slurm-wlm").glob("*.so*"):
        if not path.is_symlink():
            _fit(path, found)
    (folder / READY).touch()


def _fit(path: Path, libraries: str, *options: str) -> None:
    subprocess.run(["patchelf", *options, "--force-rpath", "--set-rpath", libraries, str(path)], check=True)


def main() -> None:
    missing = [name for name in ("mmdebstrap", "patchelf") if shutil.which(name) is None]
    for suite in SUITES:
        release = Release(suite)
        try:
            if "--renew" in sys.argv or not release.is_ready:
                if missing:
                    raise FileNotFoundError(f"{' and '.join(missing)} not found")
                click.echo(f"Fetching Slurm of Debian {suite} into {CACHE} ...")
                fetch(suite)
            click.echo(f"Tests run on Slurm {release.version} of Debian {suite}, too.")
        except (OSError, subprocess.CalledProcessError) as error:
            click.echo(f"NOT RUN: the tests on Slurm of Debian {suite}: {error}")


if __name__ == "__main__":
    main()
