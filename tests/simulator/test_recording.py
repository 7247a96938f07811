"""A simulation as a run: the recorded data agree with the records of the jobs and the usage of GPUs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.report.runs.run import MAX_INTERVALS, OverTimeCollector
from gavel_py.simulator.recorder import run_and_record
from tests.support.commands import Gavel, runner
from tests.support.examples import examples
from tests.support.profiles import OSDI

CLUSTER = gp.Cluster.from_inline("v100:6/4,p100:4/2,k80:4/4")


def trace(jobs: int = 24, seed: int = 0) -> gp.Trace:
    durations = gp.LogUniform(((1, 600, 20000),))
    return gp.generate_trace(jobs, OSDI, jobs_per_hour=12, gang_mix={1: 0.6, 2: 0.3, 4: 0.1}, durations=durations, seed=seed)


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo", "isolated"])
@pytest.mark.parametrize("mode", ["rounds", "between", "events"])
def test_the_run_agrees_with_the_records_and_the_usage(policy: str, mode: str) -> None:
    events = mode == "events"
    if events and policy != "fifo":
        return
    options: dict[str, Any] = {"round_seconds": None} if events else {"starts_between_rounds": mode == "between"}
    result = gp.simulate(trace(), CLUSTER, OSDI, policy, **options)
    run = gp.record_run(trace(), CLUSTER, OSDI, policy, labels={"trace": "t", "seed": 0}, stays=True, **options)
    summary, over_time = result.summary, run.over_time
    assert over_time is not None
    assert run.labels == {"policy": policy, "trace": "t", "seed": 0}
    assert run.metrics["mean_jct_seconds"] == summary.jct.mean
    assert (run.metrics["undelivered_share"] is None) == events
    np.testing.assert_array_equal(run.jct_seconds, sorted(job.jct_seconds or 0.0 for job in result.jobs.values()))
    # GPU-seconds of the curves, the stays, the shares, the records and the summary
    lengths = np.diff(over_time.seconds)
    for name, gpus in zip(CLUSTER.accelerator_names, CLUSTER.capacities, strict=True):
        used = summary.usage[name]["used"]
        assert (over_time.used[name] * lengths).sum() * gpus == pytest.approx(used)
        stays = [stay for stay in run.stays if stay.accelerator == name]
        assert sum(stay.gpus * (stay.end_seconds - stay.start_seconds) for stay in stays) == pytest.approx(used)
    by_type: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for job in result.jobs.values():
        by_type[job.job_type][0] += job.running_seconds
        by_type[job.job_type][1] += job.jct_seconds or 0.0
    assert {name: sum(shares.values()) for name, shares in run.shares.items()} == pytest.approx(
        {name: running / there for name, (running, there) in by_type.items()}
    )


@pytest.mark.guard
def test_no_node_holds_more_gangs_than_it_has_gpus() -> None:
    stays = gp.record_run(trace(), CLUSTER, OSDI, "max_min_fairness", stays=True).stays
    sizes = {node.name: node.num_gpus for node in CLUSTER.nodes}
    held = dict.fromkeys(sizes, 0)
    changes = [(stay.end_seconds, 0, stay.node, -stay.gpus) for stay in stays]
    changes += [(stay.start_seconds, 1, stay.node, stay.gpus) for stay in stays]
    for _, _, node, change in sorted(changes):
        held[node] += change
        assert 0 <= held[node] <= sizes[node]


@pytest.mark.deep
def test_jobs_in_the_system_and_promises_over_time() -> None:
    run = gp.record_run(trace(), CLUSTER, OSDI, "max_min_fairness")
    over_time = run.over_time
    assert over_time is not None
    lengths = np.diff(over_time.seconds)
    # each job is counted from the round after its arrival to the end of its last round
    there = float(sum(run.jct_seconds))
    assert (over_time.active_jobs * lengths).sum() == pytest.approx(there, abs=len(run.jct_seconds) * 360)
    assert (over_time.promised_gpu_seconds <= CLUSTER.num_gpus * lengths * (1 + 1e-9)).all()
    assert over_time.promised_gpu_seconds.sum() <= over_time.delivered_gpu_seconds.sum() * 1.1
    known = ~np.isnan(over_time.prices["v100"])
    assert known.any()
    assert all((over_time.prices[name][known] >= 0).all() for name in CLUSTER.accelerator_names)


def test_time_until_an_arrival_has_no_jobs() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    jobs = [gp.Job("a", total_steps=360), gp.Job("b", total_steps=720, arrival_seconds=7200)]
    over_time = gp.record_run(jobs, gp.Cluster.from_counts({"v100": 2}), speeds, "fifo").over_time
    assert over_time is not None
    assert over_time.seconds.tolist() == [0, 360, 7200, 7560, 7920]
    assert over_time.used["v100"].tolist() == [0.5, 0, 0.5, 0.5]
    assert over_time.active_jobs.tolist() == [1, 0, 1, 1]
    assert over_time.delivered_gpu_seconds.tolist() == [360, 0, 360, 360]


@pytest.mark.deep
def test_the_run_agrees_if_nodes_and_jobs_fail() -> None:
    options = {"job_failures": 0.3, "node_failures": gp.NodeFailures(20000, 3000), "seed": 3, "restart_seconds": 30}
    result = gp.simulate(trace(), CLUSTER, OSDI, "fifo", **options)
    run = gp.record_run(trace(), CLUSTER, OSDI, "fifo", stays=True, **options)
    held = sum(stay.gpus * (stay.end_seconds - stay.start_seconds) for stay in run.stays)
    used = sum(each["used"] for each in result.summary.usage.values())
    assert used <= held <= used * 1.1  # GPUs lost within a round count to its end


@pytest.mark.deep
def test_finish_time_fairness_is_that_of_the_results() -> None:
    isolated = gp.simulate(trace(), CLUSTER, OSDI, "isolated")
    rho = gp.simulate(trace(), CLUSTER, OSDI, "fifo").finish_time_fairness(isolated)
    jcts = {job_id: job.jct_seconds for job_id, job in isolated.jobs.items()}
    run = gp.record_run(trace(), CLUSTER, OSDI, "fifo", isolated=jcts)
    np.testing.assert_allclose(run.fairness, sorted(rho.values()))
    assert run.metrics["finish_time_fairness"] == pytest.approx(np.mean(list(rho.values())))


def test_jobs_in_the_system_at_the_end_count() -> None:
    recorder: gp.RunRecorder
    simulation = gp.Simulation(trace(), CLUSTER, OSDI, "fifo", on_round=lambda begun: recorder.round(begun))
    recorder = gp.RunRecorder(simulation, stays=True)
    run_and_record(simulation, recorder, 7200.0)
    run = recorder.run({}, simulation.result().summary)
    assert run.metrics["active"]
    assert max(stay.end_seconds for stay in run.stays) == simulation.now
    assert len(run.jct_seconds) == run.metrics["finished"]


@settings(max_examples=examples(20))
@given(st.sampled_from([0, 1, 200, 201, 401, 1999]) | st.integers(0, 2000), st.integers(0, 5))
def test_curves_keep_their_sums_however_many_spans_there_are(spans: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    gpus = np.array([4.0, 2.0])
    curves = OverTimeCollector(5.0, ["a", "b"], gpus)
    now, used, active, promised = 5.0, np.zeros(2), 0.0, 0.0
    for _ in range(spans):
        seconds, share, jobs = chance.exponential(10), chance.random(2), float(chance.integers(9))
        now += seconds
        curves.add(now, share * gpus * seconds, np.array([np.nan, 2.0]), jobs, 3.0, 2.0)
        used, active, promised = used + share * gpus * seconds, active + jobs * seconds, promised + 3.0 * seconds
    found = curves.over_time()
    lengths = np.diff(found.seconds)
    assert len(lengths) == spans if spans <= MAX_INTERVALS else MAX_INTERVALS / 2 <= len(lengths) <= MAX_INTERVALS
    assert (lengths > 0).all()
    assert found.seconds[0] == 5.0
    assert math.isclose(found.seconds[-1], now)
    assert np.isclose([(found.used[name] * lengths).sum() for name in "ab"], used / gpus).all()
    assert math.isclose((found.active_jobs * lengths).sum(), active, abs_tol=1e-9)
    assert math.isclose(found.promised_gpu_seconds.sum(), promised, abs_tol=1e-9)
    assert np.isnan(found.prices["a"]).all()
    np.testing.assert_allclose(found.prices["b"], 2.0)


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(gp.trace_text(trace(12)))
    return runner(capsys, "simulate", "t.csv", "-c", "v100:6/4,p100:4/2,k80:4/4")


def test_the_command_writes_the_runs_of_its_policies(gavel: Gavel) -> None:
    assert gavel("-p", "fifo", "-p", "isolated", "--run-out", "runs.json").code == 0
    fifo, isolated = gp.read_runs("runs.json")
    assert fifo.labels["policy"] == "fifo"
    assert fifo.labels["trace"] == "t.csv"
    whole = gp.record_run(trace(12), CLUSTER, OSDI, "fifo", stays=True)
    assert fifo.stays == whole.stays
    assert fifo.over_time is not None
    assert whole.over_time is not None
    np.testing.assert_array_equal(fifo.over_time.active_jobs, whole.over_time.active_jobs)
    assert (isolated.fairness == 1).all()
    assert fifo.metrics["finish_time_fairness"] is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--run-out", "no/folder/r.json"], "no/folder/r.json: cannot be written: there is no folder"),
        (["--run-out", "r.json", "--continue", "state"], "--run-out records a run from its beginning"),
        (["--run-out", "r.json", "--jobs-out", "r.json"], "--jobs-out r.json and --run-out r.json are the same file"),
    ],
)
def test_an_invalid_file_is_refused_before_the_simulation(gavel: Gavel, options: list[str], said: str) -> None:
    outcome = gavel(*options)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.out == ""


@pytest.mark.deep
def test_the_file_is_json_without_nan(gavel: Gavel) -> None:
    gavel("-p", "fifo", "--until", "0", "--run-out", "runs.json")
    assert json.loads(Path("runs.json").read_text(), parse_constant=pytest.fail)["runs"][0]["labels"]["policy"] == "fifo"
