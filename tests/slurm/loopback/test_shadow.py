"""A shadow beside a plain Slurm, run by a user without rights: it compares, and touches nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.client.commands import JOBS
from gavel_py.integrations.slurm.client.queue import NODES, SHOWN
from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import ROOT, driving, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.scenes import comment
from tests.slurm.loopback.submitting import Work, submit

pytestmark = [needs_slurm, pytest.mark.deep]

COMMANDS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue")


def recorders(folder: Path) -> Path:
    """Write programs into a folder that note how they are called, and call those of Slurm."""
    folder.mkdir()
    (folder / "called").touch()
    (folder / "called").chmod(0o666)
    for name in COMMANDS:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"{folder}/called"\nexec "{shutil.which(name)}" "$@"\n')
        program.chmod(0o755)
    return folder


def test_forty_jobs_under_backfill_are_compared_and_not_touched() -> None:
    seen: defaultdict[int, set[tuple[object, ...]]] = defaultdict(set)

    def are_over(cluster: LoopbackCluster) -> bool:
        jobs = cluster.jobs()
        lines = cluster.tell("squeue", "--noheader", "--states=all", "--format=%i %Q %r").splitlines()
        priorities = {int(number): priority for number, priority, _ in (line.split(" ", 2) for line in lines)}
        for number, job in jobs.items():
            if number in priorities:
                waits = job.bound or job.held
                seen[number].add((job.comment, job.admin_comment, waits, job.restarts, job.partition, priorities[number]))
        return all(job.is_over for job in jobs.values())

    with booted(Settings((Nodes("k80", 2), Nodes("v100", 2, weight=2)))) as cluster:
        tools = recorders(cluster.folder / "tools")
        words = ("--shadow", "--partition", "plain", "--round", "10", "--restart-seconds", "1")
        user = "nobody" if os.getuid() == 0 else None
        with driving(cluster, *words, tools=tools, user=user) as shadow:
            shadow.rounds(1)
            steps = [16.0 if number % 3 else 32.0 for number in range(40)]
            jobs = {
                submit(
                    cluster, Work("steady", ("--nodes=1", f"--gres=gpu:{1 + number % 2}"), each, options=(comment(each),)), "plain"
                )
                for number, each in enumerate(steps)
            }
            shadow.until(lambda: are_over(cluster), "all jobs to end", within=240)
            log = log_of(cluster)
            shadow.until(
                lambda: len(events(log, "left", "slurm_left")) == 80, "all jobs to end in the shadow, which knows it", within=120
            )
            assert shadow.end(signal.SIGTERM) == 0, shadow.output()
        assert seen.keys() == jobs
        assert all(len(each) == 1 for each in seen.values()), "comments, what they wait for and priority are as submitted"
        assert {each[1:-1] for values in seen.values() for each in values} == {("", False, 0, "plain")}
        leases = "squeue --all --name=gavel-driver --json"
        shown = {f"scontrol show {what}" for what in ("partition --oneliner", "reservation --oneliner", "config")}
        called = {*(tools / "called").read_text().splitlines()}
        text = {line for line in called if line.startswith(" ".join(SHOWN))}
        assert called - text == {" ".join(NODES), " ".join(JOBS), leases, *shown}
        assert {line.removeprefix(" ".join(SHOWN)).partition("=")[0] for line in text} <= {" --partition", " --nodelist"}
        found = gp.slurm_comparison(log)
        assert found is not None
        assert (found.both, found.only_slurm, found.only_shadow) == (40, 0, 0)
        assert found.slowness == pytest.approx(1, rel=0.25), "a job takes a second to start and to end"
        # The work of Slurm's stays, by its own records, is that of the jobs.
        speeds = {"v100": 4.0, "k80": 1.0}
        done = [
            sum((s.end_seconds - s.start_seconds) * speeds[s.accelerator] for s in run.stays) for run in (found.slurm, found.shadow)
        ]
        assert done[0] == pytest.approx(sum(steps), rel=0.25)
        assert done[1] == pytest.approx(sum(steps), rel=0.25)
        report = [sys.executable, "-m", "gavel_py", "slurm", "report", str(log.parent)]
        done_in_both = subprocess.run(report, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert done_in_both.startswith("40 jobs finished in both, 0 only in Slurm, 0 only in the shadow\n")
