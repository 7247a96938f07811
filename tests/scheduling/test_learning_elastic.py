"""Schedulers that learn the throughputs of elastic jobs by number of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

import gavel_py as gp
from tests.scheduling.test_elastic_rounds import CLUSTER, PROFILE, SIZES, elastic

Entry = gp.throughput_profiles.Entry

SECONDS = 100.0


def play(scheduler: gp.RoundScheduler, rounds: int, done: dict[str, float]) -> list[dict[str, tuple[str, int]]]:
    """Run rounds in which jobs progress at the speeds of `PROFILE`; return {job: (type, GPUs)} of each round."""
    found = []
    types = {job.job_id: job.job_type for job in scheduler.jobs}
    for _ in range(rounds):
        held = {i: (each.accelerator, len(each.gpus)) for i, each in scheduler.next_round().assignments.items()}
        for job_id, (name, gpus) in held.items():
            done[job_id] = done.get(job_id, 0.0) + SECONDS * PROFILE.throughput(types[job_id], gpus, name)
        scheduler.report_all({job_id: done[job_id] for job_id in held})
        found.append(held)
    return found


def learning(learner: gp.ThroughputLearner, count: int = 3) -> gp.RoundScheduler:
    made = gp.RoundScheduler(CLUSTER, learner, round_seconds=SECONDS)
    for job in elastic(count):
        made.submit(job)
    return made


def test_rates_are_observed_by_number_of_gpus() -> None:
    learner = gp.ThroughputLearner()
    scheduler = learning(learner)
    play(scheduler, 25, {})
    assert len({entry.num_gpus for entry in learner.observations}) > 2, "several numbers were tried"
    for entry, seen in learner.observations.items():
        assert seen.rate == pytest.approx(PROFILE.throughput(*entry[:3])), entry
    assert not learner.contradictions


@pytest.mark.deep
def test_jobs_that_learn_end_little_later_and_much_before_fixed_gangs() -> None:
    kinds = [("resnet", "bert", "lm")[n % 3] for n in range(8)]
    work = [
        {"total_steps": PROFILE.throughput(k, 1, "v100") * 1500 * (1 + n % 4), "arrival_seconds": 200.0 * n}
        for n, k in enumerate(kinds)
    ]
    free, fixed = (
        [gp.Job(f"e{n}", job_type=k, **size, **work[n]) for n, k in enumerate(kinds)]  # type: ignore[arg-type]
        for size in ({"gpu_counts": SIZES}, {"num_gpus": 2})
    )
    runs = [(free, {}), (free, {"learn": "median"}), (fixed, {})]
    jcts = [gp.simulate(jobs, CLUSTER, PROFILE, round_seconds=SECONDS, **learn).summary.jct for jobs, learn in runs]  # type: ignore[arg-type]
    known, learned, gangs = (jct.mean for jct in jcts if jct is not None)
    assert learned < 1.1 * known
    assert learned < 0.8 * gangs


@pytest.mark.deep
def test_gpus_that_are_set_aside_measure_numbers_of_gpus_as_well() -> None:
    learner = gp.ThroughputLearner(explore=0.3)
    scheduler = learning(learner, 3)
    held = play(scheduler, 24, {})
    observed = {(entry.job_type, entry.accelerator, entry.num_gpus) for entry in learner.observations}
    least = [("resnet", name, gpus) for name, most in (("v100", 4), ("k80", 2)) for gpus in SIZES if gpus <= most]
    assert observed.issuperset(least), "of 7 GPUs, up to 4 measure at a time"
    assert len(held[-1]) == 4, "all jobs run"


@pytest.mark.deep
def test_a_scheduler_goes_on_with_the_same_rounds_after_loading(tmp_path: Path) -> None:
    learner, done = gp.ThroughputLearner(explore=0.3), dict[str, float]()
    first = learning(learner)
    play(first, 8, done)
    first.save(tmp_path / "state.json")
    second = gp.RoundScheduler.load(tmp_path / "state.json", gp.ThroughputLearner(explore=0.3))
    assert play(first, 10, dict(done)) == play(second, 10, dict(done))


@pytest.mark.deep
def test_elastic_jobs_are_simulated_with_the_numbers_that_the_true_profile_has() -> None:
    jobs = [job.model_copy(update={"total_steps": 2000.0}) for job in elastic(5)]
    jobs.append(gp.Job("range", job_type="lm", min_gpus=2, max_gpus=16, total_steps=2000.0))
    known = gp.simulate(jobs, CLUSTER, PROFILE, round_seconds=SECONDS)
    learner = gp.ThroughputLearner()
    learned = gp.simulate(jobs, CLUSTER, PROFILE, round_seconds=SECONDS, learn=learner)
    assert learned.summary.outcomes["finished"] == known.summary.outcomes["finished"] == len(jobs)
    for entry, seen in learner.observations.items():
        assert seen.rate == pytest.approx(PROFILE.throughput(*entry[:3]))
    assert Entry("lm", 16, "v100") not in learner.observations, "k80 has no 16, which could have been chosen there"
    odd = gp.Job("odd", job_type="lm", gpu_counts=(3, 16), total_steps=1.0)
    with pytest.raises(gp.InputError, match=r"gpu_counts: the profile 'mine' has no throughput of 'lm' on the same number of GPUs"):
        gp.simulate([odd], CLUSTER, PROFILE, round_seconds=SECONDS, learn="median")
