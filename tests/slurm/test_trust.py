"""What users report is believed within bounds, so that no job spoils the profile of all."""

from __future__ import annotations

from pathlib import Path

import pytest

import gavel_py as gp
from tests.slurm.support import cluster, driver, events


@pytest.mark.parametrize(("steps", "options"), [(1e200, {}), (400_000.0, {"trusted": {"berta": 1000.0}}), (10.0, {})])
def test_steps_in_comments_beyond_belief_are_no_measurement(tmp_path: Path, steps: float, options: dict[str, object]) -> None:
    slurm, store = cluster(), gp.ThroughputStore(tmp_path / "store.sqlite")
    slurm.submit(1, per_job="gpu:1", comment=f"gavel: type=bert steps={steps}")
    slurm.submit(2, per_job="gpu:1", comment="gavel: type=bert steps=1600")
    with driver(slurm, tmp_path, store=store, **options) as driven:
        driven.round()
        slurm.clock.seconds += 200
        for number in (1, 2):
            slurm.end(number)
        driven.round()
        driven.round()
    (row,) = store.load("slurm").measurements
    assert row.steps_per_second == pytest.approx(8.0, rel=0.02)
    (outlier,) = events(tmp_path, "outlier")
    assert (outlier["job"], outlier["user"]) == ("1", "anna")
    assert "steps/s on v100, where 8 are usual (--trust)" in outlier["why"]


def test_a_trusted_user_is_believed(tmp_path: Path) -> None:
    slurm, store = cluster(), gp.ThroughputStore(tmp_path / "store.sqlite")
    slurm.submit(1, per_job="gpu:1", comment="gavel: type=bert steps=32000")
    with driver(slurm, tmp_path, store=store, trust=2.0, trusted={"anna": 30.0}) as driven:
        driven.round()
        slurm.clock.seconds += 200
        slurm.end(1)
        driven.round()
        driven.round()
    assert [row.steps_per_second for row in store.load("slurm").measurements] == pytest.approx([160.0], rel=0.02)


def test_progress_files_beyond_belief_are_ignored_and_named(tmp_path: Path) -> None:
    slurm, progress = cluster(), tmp_path / "progress"
    progress.mkdir()
    slurm.submit(1, per_job="gpu:1", comment="gavel: type=bert steps=100000")
    with driver(slurm, tmp_path / "state", progress=progress) as driven:
        driven.round()
        for _ in range(2):
            slurm.clock.seconds += 100
            (progress / "1").write_text("1e200")
            driven.round()
        assert driven.state is not None
        assert driven.state.scheduler.jobs[0].steps_done == pytest.approx(1600, rel=0.05)
    (outlier,) = events(tmp_path / "state", "outlier")
    assert outlier["why"] == "reports 1e+200 steps, but 800 would be the most at the speed of the profile (--trust)"


def test_factors_below_one_are_refused() -> None:
    with pytest.raises(gp.InputError, match=r"field trusted\.anna: must be at least 1"):
        gp.SlurmSettings("gpu", trusted={"anna": 0.5})
