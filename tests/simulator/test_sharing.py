"""Simulations of jobs that share GPUs: each runs at its shared speed, and at full speed once its partner has left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.simulator.job_progress import GangStart, JobProgress
from tests.end_to_end.test_cli import Gavel, gavel
from tests.support.examples import examples
from tests.support.profiles import OSDI

__all__ = ["gavel"]

ONE = gp.Cluster.from_counts({"v100": 1})


def pair_profile(together: tuple[float, float] = (8.0, 6.0)) -> gp.ThroughputProfile:
    """A profile in which jobs of types A and B do 10 steps/s without partners."""
    alone = [gp.Measurement(job_type=name, num_gpus=1, accelerator="v100", steps_per_second=10.0) for name in "AB"]
    pair = gp.Measurement(
        job_type="A",
        num_gpus=1,
        accelerator="v100",
        steps_per_second=together[0],
        partner_job_type="B",
        partner_steps_per_second=together[1],
    )
    return gp.ThroughputProfile("pairs", [*alone, pair])


def two(steps_a: float, steps_b: float, **fields: float) -> list[gp.Job]:
    return [gp.Job("a", job_type="A", total_steps=steps_a, **fields), gp.Job("b", job_type="B", total_steps=steps_b, **fields)]


def test_a_job_runs_at_full_speed_once_its_partner_has_left() -> None:
    # Both share until a ends at 100 s; b has done 600 steps by then, and does the other 600 at 10 steps/s.
    result = gp.simulate(two(800, 1200), ONE, pair_profile(), sharing=True)
    a, b = result.jobs["a"], result.jobs["b"]
    assert (a.jct_seconds, b.jct_seconds) == pytest.approx((100.0, 160.0))
    assert (a.gpu_seconds, b.gpu_seconds) == pytest.approx((50.0, 50.0 + 60.0))
    assert result.summary.usage["v100"]["used"] == pytest.approx(160.0)


def test_partners_may_change_in_every_round() -> None:
    # The first round ends at 360 s with 2,880 and 2,160 steps done; a ends at 400 s.
    result = gp.simulate(two(3200, 3600), ONE, pair_profile(), sharing=True, restart_seconds=0.0)
    assert result.jobs["a"].jct_seconds == pytest.approx(400.0)
    assert result.jobs["b"].jct_seconds == pytest.approx(400.0 + (3600 - 2400) / 10)
    assert [job.starts for job in result.jobs.values()] == [1, 1]


def test_each_starts_at_its_own_cost() -> None:
    result = gp.simulate(two(800, 600), ONE, pair_profile(), sharing=True, restart_seconds=20.0)
    assert result.jobs["a"].jct_seconds == pytest.approx(120.0)
    assert [job.lost_gpu_seconds for job in result.jobs.values()] == pytest.approx([10.0, 10.0])


def test_the_price_of_a_gpu_is_paid_once() -> None:
    kinds = [gp.AcceleratorType(name="v100", price_per_hour=36.0)]
    cluster = gp.Cluster([gp.Node(name="n", accelerator="v100", num_gpus=1)], kinds)
    result = gp.simulate(two(800, 1200), cluster, pair_profile(), sharing=True)
    assert [job.cost for job in result.jobs.values()] == pytest.approx([0.5, 1.1])
    assert result.summary.cost == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("checkpoint", "until", "steps", "lost"),
    [
        (None, 130.0, 0.0, 50.0 + 30.0),  # since the start of the round, on half of the GPU and then on all of it
        (30.0, 130.0, 100 * 6.0 + 20 * 10.0, 10.0),  # the last checkpoint is at 120 s
        (30.0, 110.0, 90 * 6.0, 5.0 + 10.0),  # the last checkpoint is at 90 s
        (300.0, 130.0, 0.0, 50.0 + 30.0),
    ],
)
def test_an_interrupted_job_loses_its_work_since_the_last_checkpoint(
    checkpoint: float | None, until: float, steps: float, lost: float
) -> None:
    """A job does 6 steps/s beside a partner for 100 s, and then 10 steps/s without one."""
    progress = JobProgress(gp.Submission(gp.Job("b", total_steps=5000)), 5000.0, (), 5000.0, None)
    progress.start(0.0, 0.0, GangStart(0, 10.0, 0.0, 1, False))
    progress.set_partners(("a",), 6.0, 0.5, 0.0, 0.0, checkpoint)
    progress.advance(100.0)
    progress.set_partners((), 10.0, 1.0, 100.0, 0.0, checkpoint)
    progress.interrupt(0.0, until, checkpoint)
    record = progress.record(gp.Outcome.ACTIVE, until, None)
    assert (record.steps_done, record.lost_gpu_seconds) == pytest.approx((steps, lost))
    assert record.gpu_seconds == pytest.approx(50.0 + until - 100.0)


@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.floats(2.0, 10.0),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([None, 60.0]),
    st.booleans(),
)
@settings(max_examples=examples(15, costly=True), suppress_health_check=[HealthCheck.too_slow])
def test_time_of_gpus_is_conserved(
    seed: int, nodes: int, load: float, failures: float, checkpoint: float | None, between: bool
) -> None:
    """Used + idle + down is the total, used is the sum over jobs, and finished jobs have done all steps."""
    cluster = gp.Cluster(
        [gp.Node(name=f"{t}-{n}", accelerator=t, num_gpus=4) for t in ("v100", "p100", "k80") for n in range(nodes)]
    )
    durations = gp.LogUniform(((1, 600, 3600),))
    trace = gp.generate_trace(8, OSDI, jobs_per_hour=load, gang_mix={1: 0.7, 2: 0.2, 4: 0.1}, durations=durations, seed=seed)
    result = gp.simulate(
        trace,
        cluster,
        OSDI,
        sharing=True,
        restart_seconds=15.0,
        job_failures=failures,
        checkpoint_seconds=checkpoint,
        starts_between_rounds=between,
        node_failures=gp.NodeFailures(21600.0, 1800.0),
        seed=seed,
        until_seconds=2e6,
    )
    usage, jobs = result.summary.usage, result.jobs.values()
    for kind in usage.values():
        assert kind["used"] + kind["idle"] + kind["down"] == pytest.approx(kind["gpu_seconds"])
        assert -1e-6 <= kind["used"] <= kind["gpu_seconds"] + 1e-6
        assert kind["idle"] >= -1e-6
    assert sum(job.gpu_seconds for job in jobs) == pytest.approx(sum(kind["used"] for kind in usage.values()))
    assert all(-1e-6 <= job.lost_gpu_seconds <= job.gpu_seconds + 1e-6 for job in jobs)
    assert all(job.steps_done == job.total_steps for job in jobs if job.outcome == "finished")
    assert len(jobs) == 8


@pytest.mark.deep
def test_a_saved_simulation_continues_with_the_same_partners(tmp_path: Path) -> None:
    cluster = gp.Cluster([gp.Node(name=f"{t}-0", accelerator=t, num_gpus=2) for t in ("v100", "p100", "k80")])
    durations = gp.LogUniform(((1, 1800, 3600),))
    trace = gp.generate_trace(14, OSDI, jobs_per_hour=12, gang_mix={1: 1.0}, durations=durations, seed=5)
    settings = {"sharing": True, "restart_seconds": 10.0}
    whole = gp.Simulation(trace, cluster, OSDI, **settings)
    half = gp.Simulation(trace, cluster, OSDI, **settings)
    for _ in range(8):
        half.step()
    assert any(held.shared_with for held in half.scheduler.running.values())
    half.save(tmp_path / "state")
    again = gp.Simulation.load(tmp_path / "state", trace, OSDI)
    expected, found = whole.run(), again.run()
    assert [job.to_dict() for job in found.jobs.values()] == [job.to_dict() for job in expected.jobs.values()]


def test_the_command_simulates_sharing(tmp_path: Path, gavel: Gavel) -> None:
    rows = ["job_id,job_type,total_steps", "a,LM (batch size 80),40000", "b,ResNet-18 (batch size 64),40000"]
    (tmp_path / "jobs.csv").write_text("\n".join(rows) + "\n")
    arguments = ["simulate", "jobs.csv", "--cluster", "v100:1", "-p", "max_min_fairness", "--json"]
    alone, together = (json.loads(gavel(*arguments, *more, "--timeline-out", "time.csv").out) for more in ([], ["--sharing"]))
    times = [document["policies"][0]["summary"]["makespan_seconds"] for document in (alone, together)]
    assert times[1] < times[0]
    assert together["settings"]["sharing"] is True
    used = [line.split(",")[5] for line in (tmp_path / "time.csv").read_text().splitlines()[1:]]
    assert set(used) == {"1"}
