"""Simulations in which throughputs are learned: the price of not knowing, and what is known in spite of it."""

from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from tests.support.profiles import OSDI

TYPES = sorted({m.job_type for m in OSDI.measurements if m.num_gpus == 1})[::3]
CLUSTER = gp.Cluster.from_counts({"k80": 3, "p100": 3, "v100": 3})


def trace(count: int, seed: int = 0, **fields: object) -> list[gp.Job]:
    chance = np.random.default_rng(seed)
    arrivals = np.cumsum(chance.exponential(1800, count))
    kinds, hours = chance.integers(len(TYPES), size=count), 10 ** chance.uniform(-0.7, 1.0, count)
    return [
        gp.Job(
            f"j{n}",
            job_type=TYPES[kinds[n]],
            arrival_seconds=float(arrivals[n]),
            **(fields or {"total_steps": hours[n] * 3600 * OSDI.throughput(TYPES[kinds[n]], 1, "v100")}),  # type: ignore[arg-type]
        )
        for n in range(count)
    ]


def mean_jct(result: gp.SimulationResult) -> float:
    assert result.summary.jct is not None
    return result.summary.jct.mean


@pytest.mark.deep
def test_learning_costs_little_and_agnosticism_much() -> None:
    jobs = trace(60)
    known = mean_jct(gp.simulate(jobs, CLUSTER, OSDI))
    learned = mean_jct(gp.simulate(jobs, CLUSTER, OSDI, learn="optimistic"))
    agnostic = mean_jct(gp.simulate(jobs, CLUSTER, OSDI, gp.policy_class("max_min_fairness")(agnostic=True)))
    assert learned < known * 1.06
    assert agnostic > known * 1.2


@pytest.mark.deep
def test_a_learner_that_knows_all_changes_nothing() -> None:
    jobs = trace(30)
    learner = gp.ThroughputLearner(OSDI)
    known, learned = gp.simulate(jobs, CLUSTER, OSDI), gp.simulate(jobs, CLUSTER, OSDI, learn=learner)
    assert {j: r.end_seconds for j, r in known.jobs.items()} == {j: r.end_seconds for j, r in learned.jobs.items()}
    assert learner.observations
    assert not learner.contradictions
    for entry, seen in learner.observations.items():
        assert seen.rate == pytest.approx(OSDI.throughput(*entry[:3]))


@pytest.mark.deep
@pytest.mark.parametrize("learn", ["median", 0.2])
def test_jobs_finish_with_all_their_steps(learn: str | float) -> None:
    jobs = trace(20)
    result = gp.simulate(jobs, CLUSTER, OSDI, learn=learn)
    assert result.summary.outcomes["finished"] == 20
    assert all(result.jobs[job.job_id].steps_done == job.total_steps for job in jobs)


def test_durations_are_those_of_the_true_profile() -> None:
    jobs = trace(5, duration_seconds=3600.0, duration_accelerator="v100")
    result = gp.simulate(jobs, gp.Cluster.from_counts({"v100": 5}), OSDI, learn="optimistic")
    assert [record.running_seconds for record in result.jobs.values()] == pytest.approx([3600.0] * 5)


def test_accelerators_without_specifications_can_be_learned() -> None:
    profile = gp.ThroughputProfile(
        "mine",
        [
            gp.Measurement(job_type=kind, num_gpus=1, accelerator=name, steps_per_second=speed)
            for kind, name, speed in (("a", "abacus", 1.0), ("a", "quipu", 3.0), ("b", "abacus", 2.0), ("b", "quipu", 2.5))
        ],
    )
    jobs = [gp.Job(f"{kind}{n}", job_type=kind, total_steps=10_000.0) for kind in "ab" for n in range(3)]
    learner = gp.simulate(jobs, gp.Cluster.from_counts({"abacus": 2, "quipu": 2}), profile, learn="optimistic")
    assert learner.summary.outcomes["finished"] == 6


@pytest.mark.deep
@pytest.mark.parametrize(("learn", "every"), [("optimistic", 4), ("median", 7), (0.2, 5)])
def test_a_simulation_that_learns_continues_bit_for_bit(tmp_path: Path, learn: str | float, every: int) -> None:
    jobs, state = trace(8), tmp_path / "state"
    whole = gp.Simulation(jobs, CLUSTER, OSDI, learn=learn, restart_seconds=30.0)
    parts = gp.Simulation(jobs, CLUSTER, OSDI, learn=learn, restart_seconds=30.0)
    steps = 0
    while whole.step():
        assert parts.step()
        assert parts.scheduler.running == whole.scheduler.running
        steps += 1
        if steps % every == 0:
            parts.save(state)
            parts = gp.Simulation.load(state, jobs, OSDI, learn=learn)
    assert steps > 20
    assert parts.result().jobs == whole.result().jobs
    one, other = whole.scheduler.learner, parts.scheduler.learner
    assert one is not None
    assert other is not None
    assert len(one.observations) > 5
    assert other.to_dict() == one.to_dict()  # observations, and every estimate to its last digit


def test_a_simulation_that_learns_needs_a_learner(tmp_path: Path) -> None:
    simulation = gp.Simulation(trace(3), CLUSTER, OSDI, learn="median")
    simulation.step()
    simulation.save(tmp_path / "state")
    with pytest.raises(gp.InputError, match="was written by a scheduler that learns throughputs; pass a ThroughputLearner"):
        gp.Simulation.load(tmp_path / "state", trace(3), OSDI)


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
def test_accelerators_keep_the_names_of_the_true_profile() -> None:
    rows = [
        gp.Measurement(job_type="a", num_gpus=1, accelerator=n, steps_per_second=s) for n, s in (("a100", 2), ("H100 80GB HBM3", 4))
    ]
    profile, cluster = gp.ThroughputProfile("mine", rows), gp.Cluster.from_counts({"a100": 1, "H100 80GB HBM3": 1})
    jobs = [gp.Job("1", job_type="a", total_steps=9000.0)]
    assert gp.simulate(jobs, cluster, profile, learn="optimistic").summary.outcomes["finished"] == 1
    assert gp.simulate(jobs, cluster, profile, learn=gp.ThroughputLearner()).summary.outcomes["finished"] == 1
    other = gp.ThroughputProfile("known", [rows[1].model_copy(update={"accelerator": "h100"})])
    with pytest.raises(gp.InputError, match="is 'h100' in the profile of the learner"):
        gp.simulate(jobs, cluster, profile, learn=gp.ThroughputLearner(other))
