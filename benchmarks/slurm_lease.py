"""What a lease costs on a real Slurm with 5,000 waiting jobs of 50 users, and what users see of it.

The jobs are 4,000 single ones and 20 arrays of 50 tasks. Beside the renewal of the driver's lease, the table has what a lease of
each job would cost, which postpones the begin of every job (one change for each job or array). Needs root, Slurm, slurmdbd and
MariaDB; GAVEL_PY_SLURM_RELEASE names another release, as for the tests.

python benchmarks/slurm_lease.py            print the table
python benchmarks/slurm_lease.py --write    and put it into benchmarks/RESULTS.md
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import tables

from gavel_py.integrations.slurm import SlurmCommands, WallClock
from gavel_py.integrations.slurm.lease import BEAT_SECONDS, DriverLease, slurm_release
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import ALL, Settings
from tests.slurm.loopback.driving import plugin

USERS = range(40_000, 40_050)
SINGLE, ARRAYS, TASKS = 4_000, 20, 50
RENEWALS, OF_EACH_JOB = 50, 3
DAEMONS = ("slurmctld", "slurmdbd")


def main() -> None:
    with booted(Settings(ALL, plugin(), accounting=True, leased=False, options={"MaxJobCount": "20000"})) as cluster:
        os.environ |= cluster.environment
        lease = DriverLease(SlurmCommands(), WallClock(), ["gavel"], cluster.folder / "driver", 600.0)
        lease.begin()
        time.sleep(2)
        lease.renew()
        ids = [submitted(cluster, number) for number in range(SINGLE + ARRAYS)]
        rows = [["renewal of the lease", *measured(cluster, lease.renew, RENEWALS, BEAT_SECONDS)]]
        seen = looked_at(cluster)
        rows.append(["the same for each job", *measured(cluster, lambda: postpone(cluster, ids), OF_EACH_JOB, 300.0)])
        began = time.perf_counter()
        freed = slurm_release("gavel")
        rows.append([f"release of {len(freed):,} jobs", time.perf_counter() - began, None, None])
    header = ["step", "seconds, median", *(f"CPU of {name}, %" for name in DAEMONS)]
    text = tables.markdown(header, rows) + f"\n{seen}\nSlurm {cluster.settings.release.version}, {tables.machine()};"
    text += " CPU of a renewal every 20 s, or of all jobs every 300 s; `python benchmarks/slurm_lease.py --write`.\n"
    sys.stdout.write(text)
    if "--write" in sys.argv:
        tables.write("slurm_lease", text)


def submitted(cluster: LoopbackCluster, number: int) -> str:
    words = ["--parsable", "--partition=gavel", "--gpus=1", "--time=60", "--output=/dev/null", "--chdir=/", "--wrap=sleep 60"]
    words += [f"--array=1-{TASKS}"] if number >= SINGLE else []
    return cluster.tell("sbatch", *words, user=USERS[number % len(USERS)]).strip()


def measured(cluster: LoopbackCluster, step: Callable[[], None], times: int, every: float) -> list[float | None]:
    """Return the median seconds of a step, and the CPU of the daemons in per cent if it is done that often (seconds)."""
    before, seconds = [cpu_of(cluster, name) for name in DAEMONS], []
    for _ in range(times):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    time.sleep(3)  # slurmdbd gets records a little later
    used = [cpu_of(cluster, name) - at for name, at in zip(DAEMONS, before, strict=True)]
    return [median(seconds), *(100 * each / times / every for each in used)]


def postpone(cluster: LoopbackCluster, ids: list[str]) -> None:
    for at in range(0, len(ids), 100):
        cluster.tell("scontrol", "update", f"JobId={','.join(ids[at : at + 100])}", "StartTime=now+600")


def cpu_of(cluster: LoopbackCluster, name: str) -> float:
    """Return the CPU seconds of a daemon of this cluster."""
    conf = f"SLURM_CONF={cluster.environment['SLURM_CONF']}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_here = conf in (path / "environ").read_bytes() or str(cluster.folder).encode() in (path / "cmdline").read_bytes()
            if is_here and (path / "comm").read_text().strip() == name:
                words = (path / "stat").read_text().rpartition(")")[2].split()
                return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue
    raise AssertionError(f"{name} does not run")


def looked_at(cluster: LoopbackCluster) -> str:
    """Return what Slurm's commands show of jobs that wait."""
    waiting = cluster.tell("squeue", "--noheader", "--states=PENDING", "--format=reason %r, start %S").splitlines()[-1]
    prio = cluster.run("sprio", "--noheader").stdout.strip()
    return f"Jobs that wait: {waiting}; sprio {'lists them' if prio else 'does not list them'}.\n"


if __name__ == "__main__":
    main()
