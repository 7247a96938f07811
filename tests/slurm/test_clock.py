"""The clock of the machine is set back: rounds go on, and the sign of life is that of the machine's clock."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.beacon import DEAD_SECONDS, signs_of_life
from tests.slurm.support import cluster_with, driver, events

HOUR = 3600.0


def test_time_goes_on_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, steady = [1e9, 1e9 + 5, 1e9 - HOUR, 1e9 - HOUR + 10, 1e9 + HOUR], iter([50.0, 55.0, 60.0, 70.0, 80.0])
    times = iter(machine)
    monkeypatch.setattr(time, "time", lambda: next(times))
    monkeypatch.setattr(time, "monotonic", lambda: next(steady))
    clock = gp.WallClock()
    assert [clock.now() for _ in range(4)] == [1e9 + 5, 1e9 + 10, 1e9 + 20, 1e9 + HOUR], "set back, and forward again"


def test_a_driver_that_begins_afterwards_goes_on_with_its_rounds(tmp_path: Path) -> None:
    """Its state has a round that is an hour ahead."""
    slurm = cluster_with(5, 4)
    clock = slurm.clock
    with driver(slurm, tmp_path) as driven:
        driven.round()
    clock.seconds, clock.slept = clock.seconds - HOUR, 0.0
    with driver(slurm, tmp_path) as driven:
        driven.run(rounds=3)
    first, *rounds = [event["seconds"] for event in events(tmp_path, "round")]
    assert rounds == [first, first + 100, first + 200]
    assert clock.slept < 300


def test_the_sign_of_life_has_the_time_of_the_machine(tmp_path: Path) -> None:
    """Slurm compares it with its own clock, so one from the future does not make a dead driver look alive for an hour."""
    slurm = cluster_with(1, 4)
    slurm.clock.set_back = HOUR
    with driver(slurm, tmp_path / "first") as driven:
        driven.round()
    (sign,) = signs_of_life(slurm, ["gpu"])
    assert sign.seconds == pytest.approx(slurm.clock.seconds - HOUR, abs=2)
    with driver(slurm, tmp_path / "second") as other, pytest.raises(gp.InputError, match="another driver"):
        other.round()
    slurm.clock.set_back += DEAD_SECONDS + 10
    with driver(slurm, tmp_path / "second") as other:
        other.round()
