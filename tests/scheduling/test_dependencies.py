"""Jobs that wait for other jobs in the round scheduler."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.workflows import layered_workflow


def _scheduler(gpus: int = 2, names: int = 40, **options: Any) -> gp.RoundScheduler:
    speeds = gp.ThroughputProfile.from_matrix(np.ones((names, 1)), job_ids=[f"j{n}" for n in range(names)], accelerators=["v100"])
    return gp.RoundScheduler(gp.Cluster.from_counts({"v100": gpus}), speeds, options.pop("policy", "fifo"), **options)


def _job(number: int, *depends_on: str, **fields: Any) -> gp.Job:
    return gp.Job(f"j{number}", depends_on=depends_on, total_steps=100, **fields)


def test_a_job_that_waits_is_in_no_round_until_the_other_has_finished():
    scheduler = _scheduler()
    scheduler.submit_all([_job(0), _job(1, "j0"), _job(2, "j1", "afterany:j0")])
    assert scheduler.blocked == {"j1": ("j0",), "j2": ("j1", "afterany:j0")}
    assert list(scheduler.next_round().assignments) == ["j0"]
    assert scheduler.allocation is not None
    assert list(scheduler.allocation.job_ids) == ["j0"]
    scheduler.complete("j0")
    assert scheduler.take_unblocked() == (("j1",), ())
    assert scheduler.blocked == {"j2": ("j1",)}
    assert list(scheduler.next_round().assignments) == ["j1"]
    assert [job.job_id for job in scheduler.jobs] == ["j1"]


def test_the_end_of_a_job_makes_others_ready_at_that_instant_in_event_mode():
    scheduler = _scheduler(by_events=True)
    scheduler.submit_all([_job(0), _job(1, "j0"), _job(2, "j0")])
    assert list(scheduler.next_round(0.0).assignments) == ["j0"]
    scheduler.complete("j0")
    assert list(scheduler.next_round(17.5).assignments) == ["j1", "j2"]


def test_a_retried_job_has_not_failed_yet_and_a_failure_for_good_cancels_what_needs_its_success():
    scheduler = _scheduler()
    jobs = [_job(0, max_retries=1), _job(1, "j0"), _job(2, "j1"), _job(3, "afternotok:j1"), _job(4, "afterany:j2")]
    scheduler.submit_all(jobs)
    scheduler.next_round()
    assert scheduler.job_failed("j0")
    assert set(scheduler.blocked) == {"j1", "j2", "j3", "j4"}
    scheduler.next_round()
    assert not scheduler.job_failed("j0")
    assert scheduler.take_unblocked() == (("j3", "j4"), ("j1", "j2"))
    assert scheduler.blocked == {}
    assert list(scheduler.next_round().assignments) == ["j3", "j4"]
    with pytest.raises(gp.UnknownNameError, match="was cancelled"):
        scheduler.complete("j1")


def test_success_cancels_what_needs_a_failure():
    scheduler = _scheduler()
    scheduler.submit_all([_job(0), _job(1, "afternotok:j0")])
    scheduler.complete("j0")
    assert scheduler.take_unblocked() == ((), ("j1",))


def test_a_job_may_wait_for_one_that_has_left():
    scheduler = _scheduler()
    scheduler.submit_all([_job(0), _job(1)])
    scheduler.next_round()
    scheduler.complete("j0")
    scheduler.cancel("j1")
    scheduler.submit_all([_job(2, "j0"), _job(3, "j1"), _job(4, "afterany:j1"), _job(5, "j3")])
    assert scheduler.take_unblocked() == ((), ("j5", "j3"))
    assert list(scheduler.next_round().assignments) == ["j2", "j4"]


def test_an_unknown_or_forgotten_job_is_refused_and_nothing_changes():
    scheduler = _scheduler()
    scheduler.submit(_job(0))
    scheduler.next_round()
    scheduler.complete("j0")
    scheduler.next_round()
    scheduler.forget("j0")
    with pytest.raises(gp.InputError, match="'j0', which does not exist"):
        scheduler.submit_all([_job(1), _job(2, "j0")])
    assert scheduler.jobs == ()
    with pytest.raises(gp.InputError, match="cycle"):
        scheduler.submit_all([_job(1, "j2"), _job(2, "j1")])
    scheduler.submit_all([_job(1), _job(2, "j1")])
    with pytest.raises(gp.InputError, match="was submitted before"):
        scheduler.submit(_job(2))


def test_a_singleton_waits_for_all_earlier_jobs_of_its_workflow():
    scheduler = _scheduler(gpus=4)
    scheduler.submit_all([_job(0, workflow="w"), _job(1, workflow="w"), _job(2, workflow="other")])
    scheduler.submit(_job(3, "singleton", workflow="w"))
    assert scheduler.blocked == {"j3": ("afterany:j0", "afterany:j1")}
    scheduler.cancel("j0")
    scheduler.complete("j1")
    assert scheduler.blocked == {}
    scheduler.submit(_job(4, "singleton", workflow="third"))
    assert not scheduler.is_blocked("j4")


def test_a_blocked_job_can_be_changed_and_cancelled():
    scheduler = _scheduler()
    scheduler.submit_all([_job(0), _job(1, "j0"), _job(2, "afterany:j1"), _job(3, "j0")])
    scheduler.update("j3", weight=2.0)
    with pytest.raises(gp.InputError, match="is settled when the job is submitted"):
        scheduler.update("j3", depends_on=())
    scheduler.cancel("j1")
    assert scheduler.take_unblocked() == (("j2",), ())
    scheduler.complete("j0")
    assert {job.job_id: job.weight for job in scheduler.jobs} == {"j2": 1.0, "j3": 2.0}


def test_time_for_which_a_job_was_blocked_is_not_time_for_which_it_waits():
    scheduler = _scheduler(policy="max_min_fairness")
    scheduler.submit_all([_job(0), _job(1, "j0")])
    for _ in range(5):
        scheduler.next_round()
    scheduler.complete("j0")
    table = scheduler._state.table
    assert table.columns["waiting_since_seconds"][table.known("j1")] == 4 * 360.0


def test_a_saved_scheduler_keeps_the_news_of_jobs_that_no_longer_wait(tmp_path: Path):
    scheduler = _scheduler()
    scheduler.submit_all([_job(0), _job(1, "j0"), _job(2, "afternotok:j0"), _job(3, "j1")])
    for leave, job_id, news in ((scheduler.complete, "j0", (("j1",), ("j2",))), (scheduler.complete, "j1", (("j3",), ()))):
        leave(job_id)
        scheduler.save(tmp_path / "state")
        document = scheduler.to_dict()
        loaded = gp.RoundScheduler.load(tmp_path / "state", scheduler.profile)
        assert loaded.to_dict() == document
        assert scheduler.take_unblocked() == loaded.take_unblocked() == news
        assert loaded.take_unblocked() == ((), ())
    assert "blocked" not in scheduler.to_dict()["scheduler"]


@pytest.mark.parametrize("by_events", [False, True])
def test_a_saved_scheduler_keeps_what_is_blocked(tmp_path: Path, by_events: bool):
    scheduler = _scheduler(by_events=by_events)
    scheduler.submit_all([_job(0, workflow="w"), _job(1, "j0", workflow="w"), _job(2, "afternotok:j1"), _job(3)])
    scheduler.next_round(0.0)
    scheduler.save(tmp_path / "state")
    loaded = gp.RoundScheduler.load(tmp_path / "state", scheduler.profile)
    assert loaded.blocked == scheduler.blocked == {"j1": ("j0",), "j2": ("afternotok:j1",)}
    for each in (scheduler, loaded):
        each.submit(_job(4, "singleton", workflow="w"))
        assert each.blocked["j4"] == ("afterany:j0", "afterany:j1")
        each.complete("j0")
    assert loaded.next_round(10.0).to_dict() == scheduler.next_round(10.0).to_dict()
    for each in (scheduler, loaded):
        each.cancel("j1")
        assert each.take_unblocked() == (("j2", "j4"), ())


class _Model:
    """When jobs may start, by the definition: the state of each job is looked up anew each time."""

    def __init__(self, jobs: list[gp.Job]) -> None:
        self.jobs, self.ended = {job.job_id: job for job in jobs}, dict[str, bool]()
        self.cancel()

    def cancel(self) -> None:
        while True:
            never = [name for name in self.jobs.keys() - self.ended.keys() if "never" in self._states(name)]
            if not never:
                return
            self.ended |= dict.fromkeys(never, False)

    def _states(self, name: str) -> set[str]:
        found = set()
        for text in self.jobs[name].depends_on:
            word, _, parent = text.rpartition(":")
            if parent not in self.ended:
                found.add("open")
            elif (word == "" and not self.ended[parent]) or (word == "afternotok" and self.ended[parent]):
                found.add("never")
        return found

    @property
    def ready(self) -> set[str]:
        return {name for name in self.jobs.keys() - self.ended.keys() if not self._states(name)}

    @property
    def blocked(self) -> set[str]:
        return self.jobs.keys() - self.ended.keys() - self.ready


@st.composite
def _graphs(draw: st.DrawFn) -> list[gp.Job]:
    size = draw(st.integers(2, 9))
    words = st.sampled_from(["", "", "afterany:", "afternotok:"])
    jobs = []
    for number in range(size):
        parents = [parent for parent in range(number) if draw(st.integers(0, 2)) == 0]
        jobs.append(_job(number, *(f"{draw(words)}j{parent}" for parent in parents), max_retries=0))
    return jobs


@settings(deadline=None)
@given(_graphs(), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_blocked_jobs_are_in_no_problem_whatever_happens(jobs: list[gp.Job], by_events: bool, saved: bool, chance: Any):
    scheduler, model, now = _scheduler(by_events=by_events), _Model(jobs), 0.0
    scheduler.submit_all(chance.sample(jobs, len(jobs)))
    while model.ready:
        current = scheduler.next_round(now)
        now += 360.0
        if saved:
            scheduler = gp.RoundScheduler.from_dict(scheduler.to_dict(), scheduler.profile)
        assert set(scheduler.blocked) == model.blocked
        assert {job.job_id for job in scheduler.jobs} == model.ready
        assert scheduler.allocation is not None
        assert set(scheduler.allocation.job_ids) == model.ready
        assert current.assignments.keys() <= model.ready
        leaving = chance.choice(sorted(current.assignments))
        ended_well = chance.random() < 0.6
        (scheduler.complete if ended_well else chance.choice([scheduler.cancel, scheduler.job_failed]))(leaving)
        model.ended[leaving] = ended_well
        model.cancel()
    assert not scheduler.blocked
    assert not scheduler.jobs


@pytest.mark.deep
@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.deep)])
def test_blocked_jobs_of_random_workflows_are_in_no_problem(count: int):
    for seed in range(count):
        chance = np.random.default_rng(seed)
        parents = layered_workflow(chance, int(chance.integers(2, 25)))
        scheduler, ended, now = _scheduler(gpus=4, policy=str(chance.choice(["fifo", "max_min_fairness"]))), set[int](), 0.0
        scheduler.submit_all([_job(n, *(f"j{each}" for each in sorted(before)), workflow="w") for n, before in enumerate(parents)])
        while len(ended) < len(parents):
            scheduler.next_round(now)
            ready = {f"j{n}" for n, before in enumerate(parents) if n not in ended and before <= ended}
            current = scheduler._state.current_allocation
            assert current is not None
            assert set(current.problem.job_ids) == ready
            assert len(current.problem.throughputs) == len(current.fractions) == len(ready)
            assert scheduler.blocked.keys() == {f"j{n}" for n in range(len(parents)) if n not in ended} - ready
            for job_id in sorted(scheduler.running)[: int(chance.integers(1, 4))]:
                scheduler.complete(job_id)
                ended.add(int(job_id[1:]))
            now += 360.0


def test_a_job_that_waits_for_others_is_in_the_system_but_has_no_progress() -> None:
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["a", "b"], accelerators=["v100"])
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:4"), speeds)
    made.submit_all([gp.Job("a"), gp.Job("b", depends_on="a")])
    for call in (lambda: made.report("b", steps_done=3.0), lambda: made.report_all({"a": 1.0, "b": 3.0}), lambda: made.lease("b")):
        with pytest.raises(gp.UnknownNameError, match="waits for other jobs, so it neither runs nor makes progress yet"):
            call()
    assert [each.steps_done for each in made.jobs if each.job_id == "a"] == [0]
    with pytest.raises(gp.InputError, match="is still in the system; complete or cancel it first"):
        made.forget("b")
