"""Tenants of simulations: sums are those of the jobs and of the GPUs, and promised shares are means over time."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner
from tests.support.examples import examples
from tests.support.profiles import OSDI

TREE = {"research": {"weight": 2, "tenants": {"vision": {"weight": 3}, "language": {}}}, "product": {}}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


DURATIONS = gp.LogUniform(((1, 600, 9000),))


def cluster(*prices: float | None) -> gp.Cluster:
    types = [gp.AcceleratorType(name=name, price_per_hour=price) for name, price in zip(("v100", "k80"), prices, strict=True)]
    return gp.Cluster(gp.Cluster.from_inline("v100:6/2,k80:4/2").nodes, types)


def jobs_of(seed: int, jobs: int = 18) -> list[gp.Job]:
    drawn = gp.generate_trace(jobs, OSDI, jobs_per_hour=15, gang_mix={1: 0.7, 2: 0.3}, durations=DURATIONS, seed=seed)
    names = ("vision", "language", "product")
    return [each.job.model_copy(update={"tenant": names[(7 * i + seed + i * i) % 3]}) for i, each in enumerate(drawn)]


MODES: dict[str, dict[str, Any]] = {
    "rounds": {},
    "events": {"round_seconds": None},
    "between": {"starts_between_rounds": True},
    "sharing": {"sharing": True},
    "failures": {"node_failures": gp.NodeFailures(20000.0, 3000.0), "job_failures": 0.2},
    "stopped": {"until_seconds": 9000.0},
}


@pytest.mark.deep
@settings(max_examples=examples(60, costly=True))
@given(st.integers(0, 50), st.sampled_from(list(MODES)), st.booleans())
def test_tenants_add_up_to_the_jobs_and_to_the_gpus(seed: int, mode: str, nested: bool) -> None:
    policy = "fifo" if mode == "events" else gp.resolve_policy("hierarchical", tenants=TREE) if nested else "max_min_fairness"
    result = gp.simulate(jobs_of(seed), cluster(2.0, 1.0), OSDI, policy, **MODES[mode])
    summary, records = result.summary, list(result.jobs.values())
    parents = {each.parent for each in summary.tenants}
    leaves = [each for each in summary.tenants if each.tenant not in parents]
    assert sum(each.share for each in leaves) == pytest.approx(1)
    assert sum(each.throughput_share or 0.0 for each in leaves) == pytest.approx(1)
    assert sum(each.cost or 0.0 for each in leaves) == pytest.approx(summary.cost)
    for name, usage in summary.usage.items():
        capacity = {"v100": 6, "k80": 4}[name]
        assert sum(each.gpus[name] for each in leaves) == pytest.approx(usage["used"] / usage["gpu_seconds"] * capacity)
        assert sum(each.gpu_shares[name] for each in leaves) == pytest.approx(usage["used"] / usage["gpu_seconds"])
    assert sum(each.promised_gpu_seconds or 0.0 for each in leaves) == pytest.approx(summary.promised_gpu_seconds)
    undelivered = sum((each.promised_gpu_seconds or 0.0) - (each.delivered_gpu_seconds or 0.0) for each in leaves)
    assert undelivered == pytest.approx(summary.undelivered_gpu_seconds, abs=1e-6)
    for each in leaves:
        own = [record for record in records if record.tenant == each.tenant]
        done = [record.jct_seconds for record in own if record.jct_seconds is not None]
        hours = sum(record.gpu_seconds for record in own) / sum(usage["gpu_seconds"] for usage in summary.usage.values())
        assert (each.jobs, each.finished) == (len(own), len(done))
        assert each.running + each.waiting == sum(record.outcome is gp.Outcome.ACTIVE for record in own)
        assert each.mean_jct_seconds == (pytest.approx(sum(done) / len(done)) if done else None)
        assert each.gpu_share == pytest.approx(hours)
    assert gp.Summary.from_dict(summary.to_dict()) == summary


def test_promised_shares_are_means_over_the_time_with_jobs() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 3, job_ids=["a", "b", "c"], accelerators=["v100"])
    jobs = [
        gp.Job("a", total_steps=3600, tenant="x"),
        gp.Job("b", total_steps=720, arrival_seconds=1440, tenant="y"),
        gp.Job("c", total_steps=360, arrival_seconds=7200, tenant="y"),
    ]
    result = gp.simulate(jobs, gp.Cluster.from_counts({"v100": 2}), speeds, "fifo")
    x, y = result.summary.tenants
    # x alone for 1440 s, both for 720 s, x alone for 1440 s; nobody for 3600 s; y alone for 360 s: 3960 s with jobs.
    assert x.share == pytest.approx((1440 + 360 + 1440) / 3960)
    assert y.share == pytest.approx((360 + 360) / 3960)
    assert x.gpus == pytest.approx({"v100": 3600 / 7560})
    assert (x.throughput_share, y.throughput_share) == (pytest.approx(3600 / 4680), pytest.approx(1080 / 4680))
    assert (x.cost, x.cost_per_hour) == (None, None)


@pytest.mark.deep
def test_a_saved_simulation_has_the_same_tenants_in_the_end(tmp_path: Path) -> None:
    def made() -> gp.Simulation:
        return gp.Simulation(jobs_of(3), cluster(2.0, None), OSDI, "hierarchical", job_failures=0.2, seed=1)

    whole, first = made().run(), made()
    for _ in range(20):
        first.step()
    first.save(tmp_path / "state")
    second = gp.Simulation.load(tmp_path / "state", jobs_of(3), OSDI)
    found, wanted = second.run().summary.tenants, whole.summary.tenants
    assert found == wanted
    assert [each.cost for each in found].count(None) > 0


def test_windows_measure_their_own_jobs() -> None:
    jobs = jobs_of(5, 30)
    result = gp.simulate(jobs, cluster(2.0, 1.0), OSDI, "max_min_fairness", measure_jobs=(10, 20))
    measured = [record for record in result.jobs.values() if record.measured]
    tenants = result.summary.tenants
    assert sum(each.jobs for each in tenants) == len(measured) == 10
    assert sum(each.share for each in tenants) == pytest.approx(1)
    assert sum(each.cost or 0.0 for each in tenants) == pytest.approx(result.summary.cost)
    seconds = sum(usage["gpu_seconds"] for usage in result.summary.usage.values())
    assert sum(each.gpu_share for each in tenants) == pytest.approx(sum(record.gpu_seconds for record in measured) / seconds)


def test_jobs_without_tenants_have_none() -> None:
    jobs = [job.model_copy(update={"tenant": ""}) for job in jobs_of(1, 4)]
    assert gp.simulate(jobs, cluster(None, None), OSDI).summary.tenants == ()


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    return runner(capsys)


@pytest.mark.deep
def test_runs_files_and_sweeps_record_tenants(gavel: Gavel, tmp_path: Path) -> None:
    lines = [f"j{i},ResNet-18 (batch size 16),{1 + i % 2},{3600 * i},200000,{'ab'[i % 2]}" for i in range(6)]
    (tmp_path / "jobs.csv").write_text("job_id,job_type,num_gpus,arrival_seconds,total_steps,tenant\n" + "\n".join(lines) + "\n")
    base = ["jobs.csv", "-c", "v100:2,k80:2"]
    out = gavel("simulate", *base, "--run-out", "run.json", "--tenants-out", "tenants.csv").out
    assert "Tenants (means over the simulated time)" in out
    assert "cost" not in out.split("Tenants (means")[1]
    (run,) = gp.read_runs("run.json")
    assert [each.tenant for each in run.tenants] == ["a", "b"]
    rows = (tmp_path / "tenants.csv").read_text().splitlines()
    assert rows[0].startswith("policy,tenant,parent,weight,share,")
    assert [row.split(",")[:2] for row in rows[1:]] == [["max_min_fairness", "a"], ["max_min_fairness", "b"]]
    two = gavel("simulate", *base, "-p", "fifo", "-p", "isolated").out
    heading, columns = two.split("Mean completion time of tenants")[1].splitlines()[:2]
    assert heading.endswith("and their part of the GPUs")
    assert columns.split() == ["tenant", "fifo", "isolated"]  # each policy has shares of its own
    sweep = ["sweep", "-p", "fifo", "-p", "isolated", "--trace", "jobs.csv", "-c", "v100:2,k80:2", "--tenants-out", "sweep.csv"]
    assert "add --results FILE" in gavel(*sweep).err
    swept = gavel(*sweep, "--results", "cells.sqlite", "--workers", "1")
    assert swept.code == 0
    table = [line.split() for line in swept.out.split("Tenants' part of the GPUs, means over the cells\n")[1].splitlines()]
    by_policy = {str(run.labels["policy"]): {each.tenant: each for each in run.tenants} for run in gp.read_runs("cells.sqlite")}
    assert table[0] == ["tenant", "fifo", "isolated"]
    for tenant, *parts in table[1:]:
        assert parts == [f"{by_policy[name][tenant].gpu_share:.1%}" for name in ("fifo", "isolated")]
    assert [row[0] for row in table[1:]] == ["a", "b"]
    with open("sweep.csv", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    stored = gp.read_runs("cells.sqlite")
    assert [row["tenant"] for row in found] == [each.tenant for run in stored for each in run.tenants]
    again = [dataclasses.replace(each) for each in stored[0].tenants]
    gp.write_runs("again.json", stored)
    assert list(gp.read_runs("again.json")[0].tenants) == again
    damaged = (tmp_path / "again.json").read_text().replace('"weight": 1.0', '"weight": "heavy"')
    (tmp_path / "damaged.json").write_text(damaged)
    with pytest.raises(gp.InputError, match="damaged"):
        gp.read_runs("damaged.json")


@pytest.mark.deep
def test_static_solves_of_sweeps_record_the_tenants_of_the_allocation(gavel: Gavel, tmp_path: Path) -> None:
    lines = [f"j{i},A3C,2000000,{'ab'[i % 2]}" for i in range(5)]
    (tmp_path / "jobs.csv").write_text("job_id,job_type,total_steps,tenant\n" + "\n".join(lines) + "\n")
    sweep = ["sweep", "--mode", "solve", "-p", "fifo", "--trace", "jobs.csv", "-c", "v100:2", "--workers", "1"]
    assert gavel(*sweep, "--results", "cells.sqlite").code == 0
    problem = gp.AllocationProblem.from_jobs(gp.JobSet.from_file("jobs.csv"), gp.Cluster.from_inline("v100:2"), OSDI)
    assert tuple(gp.read_runs("cells.sqlite")[0].tenants) == gp.solve(problem, "fifo").tenants()
