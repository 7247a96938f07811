"""The option --sharing of gavel solve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gavel_py as gp
from tests.end_to_end.test_cli import Gavel, gavel, small

__all__ = ["gavel", "small"]

KINDS = ("LM (batch size 80)", "ResNet-18 (batch size 64)")


@pytest.fixture
def jobs(tmp_path: Path, gavel: Gavel) -> list[str]:  # noqa: ARG001
    """Two jobs of the built-in profile that gain by sharing, and one GPU."""
    names = ["job_id,job_type,total_steps", *(f"{job},{kind},1000" for job, kind in zip("ab", KINDS, strict=True))]
    (tmp_path / "pair.csv").write_text("\n".join(names) + "\n")
    return ["pair.csv", "--cluster", "v100:1"]


def test_pairs_are_listed_with_their_time_and_gain(gavel: Gavel, jobs: list[str]) -> None:
    outcome = gavel("solve", *jobs, "--sharing")
    assert (outcome.code, outcome.err) == (0, "")
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    together = profile.pair(*KINDS, 1, "v100")
    gain = sum(fast / profile.throughput(name, 1, "v100") for fast, name in zip(together, KINDS, strict=True))
    assert gain > 1
    row = next(line.split() for line in outcome.out.splitlines() if line.split()[:3] == ["a", "b", "v100"])
    assert float(row[4]) == pytest.approx(gain, abs=0.01)
    assert "1 pair on" in outcome.out


def test_formula_policies_may_return_pairs(gavel: Gavel, jobs: list[str]) -> None:
    outcome = gavel("solve", *jobs, "--sharing", "-p", "gandiva,seed=3")
    assert (outcome.code, outcome.err) == (0, "")
    assert "1 pair on" in outcome.out
    assert "No objective: a formula defines the time of each job." in outcome.out


@pytest.mark.deep
def test_the_json_has_all_pairs(gavel: Gavel, jobs: list[str]) -> None:
    document = json.loads(gavel("solve", *jobs, "--sharing", "--json").out)
    (pair,) = document["pairs"]
    assert (pair["jobs"], pair["accelerator"]) == (["a", "b"], "v100")
    assert 0 < pair["time_fraction"] <= 1
    assert document["jobs"][0]["time_fractions"]["v100"] >= pair["time_fraction"]
    assert "pairs" not in json.loads(gavel("solve", *jobs, "--json").out)


def test_pairs_below_the_minimum_gain_are_excluded(gavel: Gavel, jobs: list[str]) -> None:
    assert "No two jobs share GPUs.\n" in gavel("solve", *jobs, "--sharing", "--min-gain", "5").out
    assert json.loads(gavel("solve", *jobs, "--sharing", "--min-gain", "5", "--json").out)["pairs"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--min-gain", "1.2"], "--min-gain selects pairs of jobs that may share GPUs; add --sharing"),
        (["--sharing", "-p", "fifo"], "policy fifo: solves no program, so it cannot decide which jobs share GPUs"),
        (["--sharing", "-p", "max_min_fairness,agnostic=true"], "ignores throughputs, so it cannot weigh the cost of sharing"),
        (["--sharing", "--profile", "nvidia-2023"], "profile 'nvidia-2023'"),
    ],
)
def test_options_incompatible_with_sharing_are_refused(gavel: Gavel, jobs: list[str], arguments: list[str], message: str) -> None:
    outcome = gavel("solve", *jobs, *arguments)
    assert outcome.code != 0
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_a_matrix_by_job_has_no_pairs(gavel: Gavel, small: list[str]) -> None:
    assert "has no speeds of jobs that share GPUs, which --sharing needs" in gavel("solve", *small, "--sharing").err
