"""Decisions on Slurm clusters for `same_answers.py`: plans from recorded snapshots, and rounds on the in-memory Slurm of the tests.

Of each scene, the plans, the reasons of jobs that wait or are left to Slurm, the lines sent to scontrol, the events in the log and
the summary of the log are compared. The in-memory Slurm is that of the checkout. Saved states are not compared.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from same_values import plain

if TYPE_CHECKING:
    import gavel_py as gp

__all__ = ["decisions"]

support: Any = import_module("tests.slurm.support")
"""The in-memory Slurm of the checkout that is played."""

Slurm = Any

ROUNDS = 6
SECONDS = 100.0


def decisions(tree: Path) -> Iterator[dict[str, Any]]:
    """Yield the plans from the recorded snapshots and the rounds of eight scenes; tree: the checkout."""
    for version in ("22.05", "24.11", "26.05"):
        for policy in ("max_min_fairness", "fifo"):
            yield {"name": f"slurm {version}, {policy}", "plan": _plan(tree, version, policy)}
    for name, (new, play) in SCENES.items():
        yield {"name": f"slurm {name}", **_rounds(new, play)}


def _plan(tree: Path, version: str, policy: str) -> Any:
    """Return the first plan for a recorded snapshot."""
    import gavel_py as gp

    class Recorded(gp.SlurmCommands):
        def run(self, arguments: Sequence[str], text: str = "") -> Any:
            from gavel_py.integrations.slurm.client.commands import CommandResult

            path = tree / "tests" / "slurm" / "recorded" / f"{arguments[0]}-{version}.json"
            return CommandResult(0, path.read_text() if path.exists() and "--json" in arguments else text, "")

    settings = gp.SlurmSettings("opt", default_type="ResNet-50 (batch size 64)", default_steps=100000)
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    return _decided(gp.SlurmDriver(settings, profile, policy, commands=Recorded(), clock=support.FakeClock()).plan())


def _decided(decided: gp.SlurmDecided) -> dict[str, Any]:
    begun = {name: value for name, value in decided.begun.to_dict().items() if name != "notes"}
    figures = {"waiting": decided.waiting, "left alone": decided.picture.left_alone, "account": decided.account()}
    return {"round": begun, "moves": plain(decided.moves), **plain(figures)}


def _rounds(new: Callable[[], tuple[Slurm, dict[str, Any]]], play: Callable[[Slurm, int], None]) -> dict[str, Any]:
    """Return the rounds on a cluster to which `play` does something before each of them."""
    import gavel_py as gp

    slurm, options = new()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        with support.driver(slurm, Path(folder), **options) as driven:
            for number in range(ROUNDS):
                play(slurm, number)
                decided, applied = driven.round()
                found.append({**_decided(decided), "applied": plain(applied)})
                slurm.clock.seconds += SECONDS
        log = Path(folder, "log.jsonl").read_text(encoding="utf-8")
        events = [json.loads(line) for line in log.splitlines()]
        return {"rounds": found, "sent": slurm.sent, "log": plain(events), "run": plain(gp.slurm_run(Path(folder, "log.jsonl")))}


def _small(count: int = 5, **options: Any) -> tuple[Slurm, dict[str, Any]]:
    """Return a small cluster with jobs of 2 and 4 GPUs."""
    slurm = support.cluster(new=options.pop("new", False))
    for number in range(1, count + 1):
        slurm.submit(number, per_job=f"gpu:{4 if number % 3 else 2}", comment=support.BERT if number % 2 else support.LSTM)
    return slurm, options


def _elastic() -> tuple[Slurm, dict[str, Any]]:
    """Return a cluster with a job on a range of nodes, beside gangs."""
    import gavel_py as gp

    speeds = {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.5, 16: 11.0}
    fields: dict[str, Any] = {"job_type": "bert", "accelerator": "v100"}
    rows = [gp.Measurement(num_gpus=gpus, steps_per_second=speed, **fields) for gpus, speed in speeds.items()]
    slurm = support.FakeSlurm(support.FakeClock(), {f"v100-{n}": ("v100", 4) for n in range(4)})
    slurm.submit(1, per_node="gpu:4", most=4, comment=support.BERT, more={"tasks": 1, "cpus": 1})
    return slurm, {"speeds": gp.ThroughputProfile("scaling", rows)}


def _nothing(slurm: Slurm, number: int) -> None:
    """Let the rounds pass."""


def _nodes(slurm: Slurm, number: int) -> None:
    """Drain a node and return it, then let the other one fail."""
    if number in (1, 3):
        slurm.states["v100-0"] = "MIXED+DRAIN" if number == 1 else "IDLE"
    if number == 4:
        slurm.node_fails("k80-0")


def _ends(slurm: Slurm, number: int) -> None:
    """End a running job and let another one fail; a job arrives."""
    running = [job.number for job in slurm.jobs.values() if job.state == "RUNNING"]
    if running and number % 2:
        slurm.end(running[0], "COMPLETED" if number == 1 else "FAILED")
        slurm.submit(100 + number, per_job="gpu:2", comment=support.BERT)


def _others(slurm: Slurm, number: int) -> None:
    """Let a job of another partition take GPUs, and a user hold a job."""
    if number == 1:
        slurm.submit(
            50, per_node="gpu:3", partition="free", state="RUNNING", held={"v100-0": 3}, priority=9, start=slurm.clock.now()
        )
    if number == 3:
        slurm.jobs[5].comment += " gavel-hold"


def _gangs(slurm: Slurm, number: int) -> None:
    """Add gangs beside the elastic job, then end them."""
    if number == 1:
        for each in (2, 3):
            slurm.submit(each, per_node="gpu:4", comment=support.BERT)
    if number == 4:
        slurm.end(2)


SCENES: dict[str, tuple[Callable[[], tuple[Slurm, dict[str, Any]]], Callable[[Slurm, int], None]]] = {
    "turns": (_small, _nothing),
    "turns of 24.05": (partial(_small, new=True), _nothing),
    "nodes": (_small, _nodes),
    "ends": (_small, _ends),
    "others": (_small, _others),
    "first come": (partial(_small, 7, policy="fifo"), _ends),
    "costly restarts": (partial(_small, 7, policy="finish_time_fairness", restart_seconds=30.0, min_run_seconds=150.0), _ends),
    "elastic": (_elastic, _gangs),
}
"""{scene: (cluster with the options of the driver, what happens before each round)}."""
