"""Speeds that the profile lacks are learned from the progress of real jobs, and outlive a driver that is killed."""

from __future__ import annotations

import signal

import pytest

import gavel_py as gp
from tests.slurm.loopback.cluster import LoopbackCluster
from tests.slurm.loopback.driving import driving, log_of
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_slurm
from tests.slurm.loopback.submitting import Work, submit

pytestmark = [needs_slurm, pytest.mark.deep]

TRUE = {"steady": {"v100": 4.0, "p100": 2.0, "k80": 1.0}, "level": {"v100": 3.0, "p100": 2.5, "k80": 2.0}}
KNOWN = {("steady", "v100"), ("steady", "p100"), ("level", "k80")}
ALL = {gp.throughput_profiles.Entry(kind, 4, name): speed for kind, speeds in TRUE.items() for name, speed in speeds.items()}
MISSING = {entry: speed for entry, speed in ALL.items() if (entry.job_type, entry.accelerator) not in KNOWN}


def test_missing_speeds_are_learned_and_outlive_a_kill(cluster: LoopbackCluster) -> None:
    rows = [f"{kind},4,{name},{TRUE[kind][name]}" for kind, name in sorted(KNOWN)]
    half = cluster.folder / "half.csv"
    half.write_text("\n".join(["job_type,num_gpus,accelerator,steps_per_second", *rows]) + "\n")
    for number in range(32):
        kind = list(TRUE)[number % 2]
        comment = f"--comment=gavel: type={kind} steps=1e7"
        submit(cluster, Work(kind, ("--nodes=1", "--gres=gpu:4"), 1e7, TRUE[kind], (comment,)))
    words = ("--round", "6", "--profile", str(half), "--learn", "0.2")
    store = gp.ThroughputStore(log_of(cluster).parent / "profiles.sqlite")
    with driving(cluster, *words) as driver:
        driver.rounds(12)
        driver.end(signal.SIGKILL)
        seen = store.observations("slurm")
        first = len(events(log_of(cluster), "measured"))
    assert {entry: rate.rate for entry, rate in seen.items() if entry in MISSING} == {
        entry: pytest.approx(speed, rel=0.1) for entry, speed in MISSING.items()
    }
    assert not events(log_of(cluster), "contradiction")
    with driving(cluster, *words, "--rounds", "3") as driver:
        assert driver.wait(within=120) == 0, driver.output()
    assert len(events(log_of(cluster), "measured")) > first
    later = store.observations("slurm")
    assert all(later[entry].count > seen[entry].count * 0.99 for entry in MISSING), "nothing was forgotten"
    assert sum(rate.count for rate in later.values()) > sum(rate.count for rate in seen.values()) + 5
