"""Speeds of the driver for a profile with estimates: measurements of running jobs improve them."""

from __future__ import annotations

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.speeds import Speeds


def lab() -> gp.EstimatedProfile:
    """Two job types of which the second was measured on one GPU type only, by the first method that needs few figures."""
    speeds = {("a", "v100"): 4.0, ("a", "k80"): 1.0, ("b", "v100"): 8.0}
    rows = [gp.Measurement(job_type=job, num_gpus=1, accelerator=name, steps_per_second=v) for (job, name), v in speeds.items()]
    return gp.ThroughputProfile("lab", rows).with_estimates("additive", confidence=0.8)


def test_estimates_stay_when_something_is_measured() -> None:
    profile = lab()
    guess = profile.throughput("b", 1, "k80")
    speeds = Speeds(profile)
    assert speeds.speed("b", 1, "k80") == guess
    measured = Speeds(profile, {("b", 1, "k80"): 3.0})
    assert measured.speed("b", 1, "k80") == 3.0
    assert isinstance(measured.profile, gp.EstimatedProfile)
    assert (measured.profile.method, measured.profile.confidence) == ("additive", 0.8)
    assert measured.speed("a", 1, "v100") == 4.0
    assert measured.speed("b", 2, "k80") != speeds.speed("b", 2, "k80")  # learned from one GPU
    assert speeds.speed("b", 2, "k80") == pytest.approx(profile.throughput("b", 2, "k80"))


def test_without_estimates_only_gang_sizes_are_extrapolated() -> None:
    speeds = Speeds(lab().measured)
    assert speeds.speed("b", 1, "k80") == 0.0
    assert gp.throughput_profiles.Entry("b", 1, "k80") not in {m.entry for m in speeds.profile.measurements}
