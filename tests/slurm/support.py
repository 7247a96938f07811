"""A small cluster, its profile and drivers for it, shared by the tests of the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gavel_py as gp
from tests.slurm.fake_slurm import FakeClock, FakeSlurm

__all__ = [
    "BERT",
    "LSTM",
    "RECORDED",
    "KilledError",
    "bound",
    "cluster",
    "cluster_with",
    "driver",
    "dying_at",
    "events",
    "profile",
    "recorded_commands",
]

BERT, LSTM = "gavel: type=bert steps=100000", "gavel: type=lstm steps=100000"
"""Comments of jobs with known throughputs."""

RECORDED = Path(__file__).parent / "recorded"
SPEEDS = {"bert": (8.0, 2.0), "lstm": (3.0, 2.0)}


def profile() -> gp.ThroughputProfile:
    """Return throughputs of two job types on v100 and k80, for gangs of 1, 2 and 4 GPUs."""
    return gp.ThroughputProfile(
        "small",
        [
            gp.Measurement(job_type=kind, num_gpus=gpus, accelerator=name, steps_per_second=speed * gpus)
            for kind, speeds in SPEEDS.items()
            for gpus in (1, 2, 4)
            for name, speed in zip(("v100", "k80"), speeds, strict=True)
        ],
    )


def cluster(*, new: bool = False) -> FakeSlurm:
    """Return a cluster of a v100 node and a k80 node with 4 GPUs each."""
    return FakeSlurm(FakeClock(), {"v100-0": ("v100", 4), "k80-0": ("k80", 4)}, new=new)


def cluster_with(count: int, gpus: int) -> FakeSlurm:
    """Return the small cluster with `count` jobs, numbered from 1, of `gpus` GPUs each."""
    slurm = cluster()
    for number in range(1, count + 1):
        slurm.submit(number, per_job=f"gpu:{gpus}", comment=BERT)
    return slurm


def bound(slurm: FakeSlurm) -> set[int]:
    """Return the jobs that wait for a driver."""
    return {job.number for job in slurm.jobs.values() if job.state == "PENDING" and slurm.leases.get(job.lease, [""])[0]}


def driver(slurm: FakeSlurm, folder: Path | None, *, measures: bool = False, **options: Any) -> gp.SlurmDriver:
    """Return a driver of this cluster; speeds: in place of the small profile; measures: whether restarts have a measured cost."""
    keys = gp.SlurmSettings.model_fields.keys()
    settings = gp.SlurmSettings(options.pop("partition", "gpu"), **{name: options.pop(name) for name in keys & options.keys()})
    options = {"round_seconds": 100.0} | ({} if measures else {"restart_seconds": 0.0, "min_run_seconds": 0.0}) | options
    policy = options.pop("policy", "max_min_fairness")
    speeds = options.pop("speeds", None) or profile()
    return gp.SlurmDriver(settings, speeds, policy, directory=folder, commands=slurm, clock=slurm.clock, **options)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the entries of one event in the log."""
    lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["event"] == name]


class KilledError(BaseException):
    """The process has been killed."""


@contextmanager
def dying_at(slurm: FakeSlurm, command: int) -> Iterator[None]:
    """Kill the driver at its n-th opportunity: odd ones are before a command, even ones after it."""
    calls, plain = 0, slurm.run

    def dying(arguments: Sequence[str], text: str = "") -> Any:
        nonlocal calls
        calls += 1
        if calls == command and command % 2:
            raise KilledError
        answer = plain(arguments, text)
        if calls == command:
            raise KilledError
        return answer

    slurm.run = dying  # type: ignore[method-assign]
    try:
        yield
    finally:
        slurm.run = plain  # type: ignore[method-assign]


def recorded_commands(folder: Path) -> str:
    """Write programs that print recordings of Slurm 22.05 into a folder, and return it; sbatch prints an id, and others nothing."""
    folder.mkdir()
    for name in ("sinfo", "squeue", "scontrol", "sbatch", "scancel", "sdiag"):
        program = folder / name
        recording = RECORDED / f"{name}-22.05.json"
        prints = f"cat '{recording}'\n" if recording.exists() else "echo 900\n" if name == "sbatch" else ""
        program.write_text(f"#!/bin/sh\n{prints}")
        program.chmod(0o755)
    return str(folder)
