"""Failed decisions change nothing in Slurm and lose no measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.support import BERT, cluster, driver, events


@pytest.mark.deep
def test_failed_decisions_stop_no_job(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:2", comment=BERT, more={"features": "v100"})
    slurm.submit(2, per_job="gpu:2", comment=BERT, more={"features": "k80"})
    rounds: list[int] = []

    def tell(decided: gp.SlurmDecided, _: gp.SlurmApplied) -> None:
        rounds.append(decided.begun.index)
        slurm.states["k80-0"] = "DOWN" if len(rounds) == 1 else "IDLE"
        if len(rounds) == 1:
            slurm.node_fails("k80-0")

    start = slurm.clock.now()
    slurm.clock.on_sleep = lambda seconds: slurm.states.update({"k80-0": "IDLE"} if seconds > start + 250 else {})
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.MinThroughput(job="2", rate=1.0)])
    with driver(slurm, tmp_path, policy=policy) as driven, pytest.warns(gp.GavelWarning, match="no round was possible"):
        driven.run(rounds=2, tell=tell)
    assert events(tmp_path, "undecided")
    assert slurm.jobs[1].restarts == 0
    assert slurm.jobs[2].held == {"k80-0": 2}
    slurm.states["k80-0"] = "DOWN"
    gp.slurm_release("gpu", commands=slurm)
    with driver(slurm, tmp_path / "other", policy=policy) as driven, pytest.raises(gp.ConflictError):
        driven.run()


def test_measurements_before_a_failed_decision_are_used_by_the_next_driver(tmp_path: Path) -> None:
    """If they were saved with an older allocation, the state could not be loaded."""
    slurm = cluster()
    for number in (1, 2, 3):
        slurm.submit(number, per_job="gpu:1", comment="gavel: type=bert steps=4000", more={"features": "v100"})
    slurm.submit(4, per_job="gpu:1", comment=BERT, more={"features": "k80"})
    begun = slurm.clock.now()

    def happen(seconds: float) -> None:
        if seconds > begun + 90 and slurm.jobs[1].held:
            slurm.end(1)
            slurm.node_fails("k80-0")
        if seconds > begun + 150 and slurm.jobs[2].held:
            slurm.end(2)

    slurm.clock.on_sleep, slurm.clock.stops_at = happen, begun + 180
    policy = gp.resolve_policy("max_min_fairness", constraints=[gp.MinThroughput(job="4", rate=1.0)])
    store = gp.ThroughputStore(tmp_path / "store.sqlite")
    with driver(slurm, tmp_path, policy=policy, store=store) as driven, pytest.warns(gp.GavelWarning, match="no round was"):
        driven.run()
    assert [event["job"] for event in events(tmp_path, "left")] == ["1", "2"]
    assert events(tmp_path, "undecided")
    slurm.clock.on_sleep, slurm.clock.stops_at = None, float("inf")
    slurm.states["k80-0"] = "IDLE"
    with driver(slurm, tmp_path, policy=policy, store=store) as driven:
        driven.round()
        driven.round()
    assert [event["speeds"][0][:3] for event in events(tmp_path, "measured")] == [["bert", 1, "v100"]]
    assert len(store.load("slurm").measurements) == 1
    assert (slurm.jobs[3].restarts, slurm.jobs[4].held) == (0, {"k80-0": 1})
