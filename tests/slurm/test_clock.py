"""The clock of the machine: set back while rounds go on, different from that of slurmctld, and in the lease."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.lease import holders
from tests.slurm.fake_slurm import FIRST
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


def test_a_lease_has_the_time_of_the_machine(tmp_path: Path) -> None:
    """Slurm compares it with its own clock, so with one from the future a dead driver would keep jobs waiting for an hour."""
    slurm = cluster_with(1, 4)
    slurm.clock.set_back = HOUR
    with driver(slurm, tmp_path / "first") as driven:
        driven.round()
    (lease,) = holders(slurm, ["gpu"])
    assert lease.end_seconds == pytest.approx(slurm.clock.seconds - HOUR + 600, abs=2)
    with (
        driver(slurm, tmp_path / "second") as other,
        pytest.raises(gp.InputError, match=r"another driver .* ends in (600|599) s\)"),
    ):
        other.round()
    slurm.clock.set_back -= 610
    with driver(slurm, tmp_path / "second") as other:
        other.round()
    assert FIRST not in slurm.leases


@pytest.mark.parametrize(("ahead", "why"), [(5.0, ""), (-5.0, ""), (6.0, "6 s behind"), (-90.0, "90 s ahead of")])
def test_a_clock_that_differs_from_that_of_slurmctld_is_refused_at_the_start(tmp_path: Path, ahead: float, why: str) -> None:
    """scontrol computes times such as now+600 by the clock of its machine."""
    slurm = cluster_with(3, 4)
    slurm.ahead = ahead
    with driver(slurm, tmp_path) as driven:
        if not why:
            driven.round()
            assert slurm.drivers()
            return
        with pytest.raises(gp.InputError) as found:
            driven.run()
    text = f"is {why} that of slurmctld, and jobs would start at wrong times; synchronise the clocks, to 5 s at least"
    assert str(found.value) == f"the clock of this machine: {text}"
    assert (slurm.sent, slurm.drivers()) == ([], [])
