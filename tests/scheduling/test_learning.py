"""A scheduler that learns: what it observes, when it swaps the profile, measuring, and saving."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.support.profiles import OSDI

CLUSTER = gp.Cluster.from_counts({"v100": 2, "k80": 2})
TYPES = ("ResNet-50 (batch size 64)", "A3C")


def scheduler_of(learner: gp.ThroughputLearner, **options: object) -> gp.RoundScheduler:
    scheduler = gp.RoundScheduler(CLUSTER, learner, **options)  # type: ignore[arg-type]
    for number in range(3):
        scheduler.submit(gp.Job(str(number), job_type=TYPES[number % 2], total_steps=1e9))
    return scheduler


def run(
    scheduler: gp.RoundScheduler, rounds: int, progress: dict[str, float] | None = None, loading: float = 0.0
) -> dict[str, float]:
    """Play rounds in which jobs do the steps of the true profile, after `loading` seconds of a start."""
    done = {} if progress is None else progress
    for _ in range(rounds):
        round_ = scheduler.next_round()
        for job_id, held in round_.assignments.items():
            job = next(job for job in scheduler.jobs if job.job_id == job_id)
            seconds = 360.0 - (loading if job_id in round_.started else 0.0)
            done[job_id] = done.get(job_id, 0.0) + OSDI.job_throughput(job, held.accelerator) * seconds
        scheduler.report_all({job_id: done[job_id] for job_id in round_.assignments})
    return done


def test_rates_are_those_of_full_rounds_after_the_first_one() -> None:
    learner = gp.ThroughputLearner()
    scheduler = scheduler_of(learner)
    done = run(scheduler, 1, loading=300.0)
    assert not learner.observations  # the first round holds loading
    run(scheduler, 12, done, loading=300.0)
    assert scheduler.learner is learner
    assert learner.observations
    for entry, seen in learner.observations.items():
        truth = OSDI.throughput(entry.job_type, entry.num_gpus, entry.accelerator)
        assert seen.rate == pytest.approx(truth)
        assert seen.log_variance == pytest.approx(0, abs=1e-12)
    assert not learner.contradictions


def test_the_profile_is_swapped_between_rounds_and_the_allocation_follows() -> None:
    learner = gp.ThroughputLearner()
    scheduler = scheduler_of(learner)
    before = scheduler.profile
    run(scheduler, 12)
    assert scheduler.profile is learner.profile is not before
    assert scheduler.allocation is not None
    jobs, types = list(scheduler.jobs), ["v100", "k80"]
    found = learner.profile.matrix(jobs, types)
    assert np.abs(np.log(found / OSDI.matrix(jobs, types))).min() < 0.02
    run(scheduler, 3)
    assert scheduler.profile is learner.profile


@pytest.mark.deep
@pytest.mark.parametrize("start", [None, OSDI])
def test_a_round_with_many_new_rates_makes_one_profile(start: gp.ThroughputProfile | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = 0, gp.ThroughputLearner._given

    def counting(*arguments: Any) -> gp.EstimatedProfile:
        nonlocal made
        made += 1
        return given(*arguments)

    learner = gp.ThroughputLearner(start)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 20, "k80": 20}), learner)
    for number in range(40):
        scheduler.submit(gp.Job(str(number), job_type=f"model {number} (batch size 8)", total_steps=1e9))
    for number in range(1, 3):
        scheduler.next_round()
        scheduler.report_all(dict.fromkeys(scheduler.running, 720.0 * number))
    monkeypatch.setattr(gp.ThroughputLearner, "_given", counting)
    scheduler.next_round()
    assert len(learner.observations) == 40
    assert made <= 2, "nothing to compare with, and then all rates together"


def test_late_reports_count_for_all_rounds_since_the_last_one() -> None:
    learner = gp.ThroughputLearner(OSDI)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), learner)
    scheduler.submit(gp.Job("a", job_type=TYPES[0], total_steps=1e9))
    rate = OSDI.throughput(TYPES[0], 1, "v100")
    for number in range(9):
        scheduler.next_round()
        if number % 3 == 2:
            scheduler.report("a", steps_done=rate * 360 * (number + 1))
    scheduler.next_round()
    (seen,) = learner.observations.values()
    assert seen.count == pytest.approx(2, abs=0.01)
    assert seen.rate == pytest.approx(rate)


def test_restarts_longer_than_a_round_are_left_out() -> None:
    learner = gp.ThroughputLearner(OSDI)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), learner, restart_seconds=1000.0)
    scheduler.submit(gp.Job("a", job_type=TYPES[0], total_steps=1e9))
    rate = OSDI.throughput(TYPES[0], 1, "v100")
    for number in range(6):
        scheduler.next_round()
        scheduler.report("a", steps_done=rate * max(0.0, 360.0 * (number + 1) - 1000.0))
    scheduler.next_round()
    (seen,) = learner.observations.values()
    assert (seen.count, seen.rate) == (pytest.approx(3, abs=0.01), pytest.approx(rate))


@pytest.mark.deep
def test_reports_count_as_far_as_they_are_trusted() -> None:
    rate = OSDI.throughput(TYPES[0], 1, "v100")

    def observed(trust: float | None, factor: float) -> int:
        learner = gp.ThroughputLearner(gp.ThroughputProfile("other", [m for m in OSDI.measurements if m.accelerator == "p100"]))
        scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), learner)
        scheduler.submit(gp.Job("a", job_type=TYPES[0], total_steps=1e9))
        for number in range(1, 4):
            scheduler.next_round()
            scheduler.report("a", steps_done=factor * rate * 360 * number, trust=trust)
        scheduler.next_round()
        return len(learner.observations)

    assert [observed(trust, 1.0) for trust in (None, 10.0, 0.0)] == [1, 1, 0]
    with pytest.warns(gp.GavelWarning, match="it was not averaged"):
        assert observed(2.0, 4.0) == 0
    for trust in (-1.0, 0.5, math.nan):
        with pytest.raises(gp.InputError, match="must be 0, or at least 1, found"):
            observed(trust, 1.0)
    with pytest.raises(gp.InputError, match=r"must be at least 1, found 0\.5"):
        gp.ThroughputLearner().observe((TYPES[0], 1, "v100"), steps=1, seconds=1, trust=0.5)


def test_lost_steps_and_moves_are_no_rates() -> None:
    learner = gp.ThroughputLearner(OSDI)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1, "k80": 1}), learner)
    scheduler.submit(gp.Job("a", job_type=TYPES[0], total_steps=1e9))
    a_round = OSDI.throughput(TYPES[0], 1, "v100") * 360
    for rounds in (1.0, 2.0, 0.5):
        scheduler.next_round()
        scheduler.report("a", steps_done=rounds * a_round)
    scheduler.node_down("v100-0")
    scheduler.next_round()
    scheduler.report("a", steps_done=0.6 * a_round)
    scheduler.next_round()
    assert {entry.accelerator: seen.count for entry, seen in learner.observations.items()} == {"v100": 1}


def test_a_share_of_the_gpus_measures_each_entry_once() -> None:
    learner = gp.ThroughputLearner(explore=0.25)
    scheduler = gp.RoundScheduler(CLUSTER, learner)
    for number in range(6):
        scheduler.submit(gp.Job(str(number), job_type=TYPES[number % 2], total_steps=1e9))
    run(scheduler, 30)
    assert set(learner.observations) == {gp.throughput_profiles.Entry(name, 1, gpu) for name in TYPES for gpu in ("v100", "k80")}
    assert learner.deviations(list(learner.observations)) == [0.0] * 4


def test_scheduler_continues_from_a_file_with_what_the_learner_knows(tmp_path: Path) -> None:
    learner = gp.ThroughputLearner()
    scheduler = scheduler_of(learner)
    done = run(scheduler, 5)
    scheduler.save(tmp_path / "state")
    later = gp.ThroughputLearner(observations=learner.observations)
    again = gp.RoundScheduler.load(tmp_path / "state", later)
    assert again.learner is later
    run(again, 5, done)
    assert sum(each.count for each in later.observations.values()) > sum(each.count for each in learner.observations.values())


@pytest.mark.deep
def test_a_new_learner_takes_over_what_was_saved(tmp_path: Path) -> None:
    learner = gp.ThroughputLearner(OSDI, 0.25)
    scheduler = scheduler_of(learner)
    run(scheduler, 3)
    with pytest.warns(gp.GavelWarning, match="cannot run there"):
        learner.observe(("ResNet-50 (batch size 128)", 2, "k80"), steps=100, seconds=1)  # which does not fit
    scheduler.save(tmp_path / "state")
    new = gp.ThroughputLearner(OSDI, 0.25)
    again = gp.RoundScheduler.load(tmp_path / "state", new)
    assert new.to_dict() == learner.to_dict()
    assert new.contradictions == learner.contradictions
    assert again.next_round() == scheduler.next_round()


def test_a_learner_that_began_otherwise_takes_over_the_observations_alone(tmp_path: Path) -> None:
    learner = gp.ThroughputLearner()
    run(scheduler := scheduler_of(learner), 5)
    scheduler.save(tmp_path / "state")
    half = gp.ThroughputProfile("half", [m for m in OSDI.measurements if m.job_type == TYPES[0]])
    other = gp.ThroughputLearner(half, "median")
    again = gp.RoundScheduler.load(tmp_path / "state", other)
    assert other.observations == learner.observations
    assert again.profile is other.profile
    assert other.profile.throughput(TYPES[0], 1, "v100") == half.throughput(TYPES[0], 1, "v100")
    again.next_round()


def test_a_learner_that_has_observed_something_since_stays_as_it_is(tmp_path: Path) -> None:
    learner = gp.ThroughputLearner()
    run(scheduler := scheduler_of(learner), 3)
    scheduler.save(tmp_path / "state")
    run(scheduler, 6)
    before = learner.to_dict()
    again = gp.RoundScheduler.load(tmp_path / "state", learner)
    assert (again.learner, learner.to_dict()) == (learner, before)


def test_what_was_learned_is_not_lost_on_a_plain_profile(tmp_path: Path) -> None:
    scheduler_of(gp.ThroughputLearner(OSDI)).save(tmp_path / "state")
    with pytest.raises(gp.InputError, match="pass a ThroughputLearner made like the one it had"):
        gp.RoundScheduler.load(tmp_path / "state", OSDI)


def test_copies_observe_on_their_own() -> None:
    learner = gp.ThroughputLearner()
    scheduler = scheduler_of(learner)
    done = run(scheduler, 3)
    other = copy.deepcopy(scheduler)
    assert other.learner is learner
    run(other, 2, dict(done))
    run(scheduler, 2, done)
    assert not learner.contradictions


def test_a_learner_replaces_a_profile_and_the_other_way_round() -> None:
    scheduler = gp.RoundScheduler(CLUSTER, OSDI)
    learner = gp.ThroughputLearner(OSDI)
    scheduler.profile = learner  # type: ignore[assignment]
    assert (scheduler.learner, scheduler.profile) == (learner, learner.profile)
    scheduler.profile = OSDI
    assert scheduler.learner is None


def test_estimated_profiles_know_jobs_by_type() -> None:
    scheduler = gp.RoundScheduler(CLUSTER, OSDI.with_estimates())
    scheduler.submit_all([gp.Job(str(number), job_type=TYPES[0]) for number in range(5)])
    assert len(scheduler._state.table.gang_numbers.models) == 1


def test_a_cluster_keeps_its_names_of_accelerators() -> None:
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"A100": 1, "H100 80GB HBM3": 1}), gp.ThroughputLearner())
    assert scheduler.cluster.accelerator_names == ("A100", "H100 80GB HBM3")
    with pytest.raises(gp.UnknownNameError, match="abacus"):
        gp.RoundScheduler(gp.Cluster.from_counts({"abacus": 1}), gp.ThroughputLearner())
