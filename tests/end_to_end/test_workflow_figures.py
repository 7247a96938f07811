"""The benchmark of workflows, in small: the workflow as the unit, and what dependencies cost."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.support.benchmarks import imported


@pytest.fixture(scope="module")
def workflows() -> Iterator[ModuleType]:
    with imported("workflows") as made:
        yield made


@pytest.mark.deep
@pytest.mark.parametrize(("policy", "seeds", "least"), [("shortest_job_first", 2, 0.12), ("max_min_fairness", 1, 0.10)])
def test_workflows_end_earlier_if_they_are_the_unit(workflows: ModuleType, policy: str, seeds: int, least: float) -> None:
    by_job, by_workflow, _ = workflows.gains(policy, range(seeds), 16)
    assert 1 - by_workflow / by_job >= least


def test_first_come_first_served_is_by_workflow_anyway(workflows: ModuleType) -> None:
    by_job, by_workflow, _ = workflows.gains("fifo", range(1), 10)
    assert by_job == by_workflow


def test_jobs_without_dependencies_arrive_when_their_namesakes_were_ready(workflows: ModuleType) -> None:
    jobs = workflows.arriving(3, jobs=60)
    result, _ = workflows.simulated(jobs, 1, "fifo")
    alone = workflows.without_dependencies(jobs, result)
    ready = {name: record.arrival_seconds + record.blocked_seconds for name, record in result.jobs.items()}
    assert {job.job_id: job.arrival_seconds for job in alone} == pytest.approx(ready)
    assert not any(job.depends_on or job.workflow for job in alone)
    assert result.summary.blocked_seconds > 0
