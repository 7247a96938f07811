"""Options of a scheduler that is in use are checked as when it is made; what is refused changes nothing."""

from __future__ import annotations

from functools import partial
from threading import Thread
from typing import Any

import pytest

import gavel_py as gp
from tests.scheduling.schedulers import PROFILE, busy, goes_on, job, refused, scheduler
from tests.scheduling.test_elastic_rounds import elastic
from tests.scheduling.test_elastic_rounds import scheduler as elastic_scheduler


def refusal(made: gp.RoundScheduler, name: str, value: object) -> str:
    """Return the message of a write that is refused, after which the scheduler is what it was."""
    before, had = made.to_dict(), getattr(made, name)
    message = refused(partial(setattr, made, name), value)
    assert getattr(made, name) == had
    assert made.to_dict() == before
    return message


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({}, "by_events", True),
        ({"policy": "fifo", "by_events": True}, "solve_seconds", 20),
        ({}, "mechanism", "nonsense"),
        ({}, "mechanism", 3),
        ({"sharing": True}, "mechanism", "direct"),
        ({"mechanism": "direct"}, "sharing", True),
        ({"policy": gp.resolve_policy("max_min_fairness", constraints=[gp.MaxGpus(3)])}, "mechanism", "direct"),
        ({}, "round_seconds", 0),
        ({}, "time_limit_seconds", 0),
    ],
)
def test_an_option_is_refused_as_when_the_scheduler_is_made(options: dict[str, Any], name: str, value: object) -> None:
    made = scheduler(jobs=[job("a"), job("b")], **options)
    made.next_round()
    assert refusal(made, name, value) == refused(scheduler, **options | {name: value})


@pytest.mark.parametrize("is_blocked", [False, True])
@pytest.mark.parametrize(("name", "value"), [("mechanism", "priority"), ("mechanism", lambda demand: demand), ("sharing", True)])
def test_an_option_is_refused_that_refuses_jobs_in_the_system(name: str, value: object, is_blocked: bool) -> None:
    last = elastic(1)[0].model_copy(update={"job_id": "last", "depends_on": ("first",) if is_blocked else ()})
    first = gp.Job("first", job_type="lm", total_steps=1e7)
    expected = refused(elastic_scheduler, [first, last], **{name: value})
    assert refusal(elastic_scheduler([first, last]), name, value) == expected


def test_a_job_does_not_wait_for_the_next_change_once_another_mechanism_is_set() -> None:
    """`direct` promises nothing ahead, so that its allocation must not be delivered by another mechanism."""
    made = scheduler(jobs=[job("a"), job("b")], mechanism="direct")
    made.next_round()
    made.mechanism = "deficit"
    assert set(made.next_round().assignments)
    assert made.allocation is not None
    assert made.allocation.time_fractions.sum() > 0


def test_parts_of_gpus_refuse_the_mechanism_direct() -> None:
    made = elastic_scheduler([gp.Job("half", job_type="lm", num_gpus=0.5, total_steps=1.0)])
    assert refusal(made, "mechanism", "direct") == (
        "job 'half', field num_gpus: must be a whole number with the mechanism direct, found 0.5"
    )


def test_parts_of_gpus_and_elastic_jobs_exclude_each_other_also_while_they_are_blocked() -> None:
    made = elastic_scheduler([gp.Job("first", job_type="lm", total_steps=1e7)])
    made.submit(elastic(1)[0].model_copy(update={"depends_on": ("first",)}))
    half = gp.Job("half", job_type="lm", num_gpus=0.5, total_steps=1.0)
    assert "cannot be combined with fractions of a GPU" in refused(made.submit, half)


def test_a_policy_may_be_replaced_before_the_elastic_jobs_are_that_it_cannot_serve() -> None:
    made = elastic_scheduler(elastic(1))
    made.policy = "fifo"  # type: ignore[assignment]
    made.mechanism, made.retry_seconds = "deficit", 0.0
    made.update("e0", num_gpus=1)
    assert set(made.next_round().assignments) == {"e0", "fixed"}


def test_a_new_time_limit_is_that_of_the_next_solve() -> None:
    made = scheduler(jobs=[job("a"), job("b")])
    made.next_round()
    made.time_limit_seconds = 1e-9
    made.submit(job("c"))
    assert any("time limit of 1e-09 s" in note for note in made.next_round().notes)
    made.time_limit_seconds = None
    assert not made.next_round().notes


def test_a_new_time_limit_does_not_change_from_where_solves_start() -> None:
    made, other = busy(), busy()
    made.time_limit_seconds = 1e6
    assert goes_on(made) == goes_on(other)
    assert made.to_dict()["solver"] == other.to_dict()["solver"]


def test_a_scheduler_whose_options_were_changed_can_be_loaded() -> None:
    made = busy()
    made.policy = "fifo"  # type: ignore[assignment]
    for name, value in {"by_events": True, "time_limit_seconds": 5, "retry_seconds": 7, "min_run_seconds": 3}.items():
        setattr(made, name, value)
    loaded = gp.RoundScheduler.from_dict(made.to_dict(), PROFILE)
    assert goes_on(loaded) == goes_on(made)


def test_options_can_be_read_while_a_round_is_decided() -> None:
    """Whoever shows the settings of a scheduler does not wait for a solve."""
    seen: list[float] = []

    def read_beside(demand: gp.RoundDemand) -> Any:
        reader = Thread(target=lambda: seen.append(made.round_seconds))
        reader.start()
        reader.join(10)
        assert seen, "the reader waits"
        return gp.scheduling.choose_jobs(demand)

    made = scheduler(jobs=[job("a"), job("b")], mechanism=read_beside)
    made.next_round()
    assert seen == [360.0]
