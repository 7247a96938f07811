"""A Slurm that is slow or silent between rounds: standard error says once when it begins, and once when it is over."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.fake_slurm import no_answer
from tests.slurm.support import cluster_with, driver, events

TIME = r"\d\d:\d\d:\d\d"
READING = "--partition=gpu"
"""A command of each reading has this word."""


def told(folder: Path, begin: float, end: float, seconds: float | None) -> list[str]:
    """Return the warnings of a driver if a reading takes this long from one time to another after the start; None for no answer."""
    slurm = cluster_with(1, 4)
    start = slurm.clock.now()

    def troubles(arguments: Sequence[str]) -> None:
        if arguments[-1] == READING and begin <= slurm.clock.now() - start < end:
            if seconds is None:
                no_answer()
            slurm.clock.seconds += seconds or 0.0

    slurm.fails, slurm.clock.stops_at = troubles, start + 290
    with driver(slurm, folder, round_seconds=300.0) as driven, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        driven.run()
    return [str(each.message) for each in caught]


def test_silence(tmp_path: Path) -> None:
    begun, over = told(tmp_path, 50.0, 130.0, None)
    assert re.fullmatch(rf"Slurm does not answer since {TIME}; nothing changes until it does: squeue has not answered .*", begun)
    assert re.fullmatch(rf"Slurm answers again, after 85 s \(at {TIME}\)", over)
    assert len(events(tmp_path, "no_answer")) > 10


def test_slowness(tmp_path: Path) -> None:
    begun, over = told(tmp_path, 50.0, 130.0, 10.0)
    assert re.fullmatch(rf"Slurm is slow since {TIME}; a reading took 10 s; starts, stops and rounds are late", begun)
    assert re.fullmatch(rf"Slurm is no longer slow, after \d+ s \(at {TIME}\)", over)
    assert 70 <= float(over.split()[6]) <= 100


def test_a_usual_slurm_causes_no_line(tmp_path: Path) -> None:
    assert told(tmp_path, 0.0, 300.0, 3.0) == []


def test_a_slow_slurm_that_falls_silent_is_told_too(tmp_path: Path) -> None:
    slurm = cluster_with(1, 4)
    start = slurm.clock.now()

    def troubles(arguments: Sequence[str]) -> None:
        passed = slurm.clock.now() - start
        if arguments[-1] == READING and passed >= 50:
            if passed >= 100:
                no_answer()
            slurm.clock.seconds += 10.0

    slurm.fails, slurm.clock.stops_at = troubles, start + 200
    with driver(slurm, tmp_path, round_seconds=300.0) as driven, pytest.warns(gp.GavelWarning) as caught:
        driven.run()
    assert [str(each.message)[:17] for each in caught] == ["Slurm is slow sin", "Slurm does not an"]


def test_a_machine_without_slurm_ends_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    driven = gp.SlurmDriver(gp.SlurmSettings("gpu"), gp.ThroughputProfile.builtin("gavel-osdi20"), directory=tmp_path / "state")
    with driven, pytest.raises(gp.SlurmError, match="no Slurm here: scontrol was not found"):
        driven.run()
    for name in ("scontrol", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'squeue: fatal: Could not establish a configuration source' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    with driven, pytest.raises(gp.SlurmError, match=r"no Slurm here: scontrol found no slurm\.conf; give its path in SLURM_CONF"):
        driven.run()
