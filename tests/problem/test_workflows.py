"""Jobs that wait for other jobs: how they are written, what is refused, and questions about the graph."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.problem.workflows import WorkflowGraph, check_parents, dependencies_of


def _chain(*names: str) -> list[gp.Job]:
    """Each job waits for the one before it."""
    return [gp.Job(name, depends_on=names[n - 1 : n] if n else ()) for n, name in enumerate(names)]


def test_a_dependency_is_written_as_in_slurm():
    job = gp.Job("train", depends_on="prepare|afterany:probe|afternotok:backup|singleton", workflow="nightly")
    assert [tuple(each) for each in dependencies_of(job)] == [
        ("afterok", "prepare"),
        ("afterany", "probe"),
        ("afternotok", "backup"),
        ("singleton", ""),
    ]


@pytest.mark.parametrize(
    ("depends_on", "message"),
    [
        (["train"], "must not name the job itself"),
        (["afterany:train"], "must not name the job itself"),
        (["a", "afternotok:a"], "list each job once"),
        (["afterok:"], "names no job"),
        (["after:a"], "'after' is not supported"),
        (["aftercorr:a"], "'aftercorr' is not supported"),
        (["afterok:a?afterok:b"], "'?' (any one of several jobs) is not supported"),
        (["singleton"], "needs a workflow"),
    ],
)
def test_what_cannot_be_meant_is_refused(depends_on, message):
    with pytest.raises(gp.InputError, match="train") as error:
        gp.Job("train", depends_on=depends_on)
    assert message in str(error.value)


def test_one_error_names_the_jobs_of_a_cycle():
    jobs = [gp.Job("first"), gp.Job("a", depends_on=["c", "first"]), gp.Job("b", depends_on="a"), gp.Job("c", depends_on="b")]
    with pytest.raises(gp.InputError) as error:
        gp.JobSet(jobs)
    assert "job 'a', field depends_on: is a cycle: it waits for 'c', which waits for 'b', which waits for 'a'" in str(error.value)


def test_a_file_names_an_unknown_job_with_its_line(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,depends_on\nprepare,\ntrain,prepar\n")
    with pytest.raises(gp.InputError, match=r"line 3.*'prepar', which does not exist; did you mean 'prepare'"):
        gp.JobSet.from_file(path)


@pytest.mark.parametrize(
    ("depends_on", "hint"),
    [
        ("a,b", "several jobs are separated by |: a|b"),
        ("afterany:a:b", "several jobs are separated by |: afterany:a|afterany:b"),
        ("afterok:a,afterok:b", "several jobs are separated by |: a|b"),
        ("afterok:a,afterany:b,singleton", "several jobs are separated by |: a|afterany:b|singleton"),
        ("a?b", "'?' (any one of several jobs) is not supported"),
        ("AfterOK:a", "conditions are written in lower case: afterok:a"),
        ("c", "which does not exist; known: a, b, d"),
    ],
)
def test_a_job_that_does_not_exist_may_be_several_or_a_condition(depends_on, hint):
    with pytest.raises(gp.InputError, match="which does not exist") as error:
        check_parents([gp.Job("a"), gp.Job("b"), gp.Job("d", depends_on=[depends_on])])
    assert str(error.value).endswith(hint)


def test_a_cycle_and_an_unknown_job_are_both_named(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,depends_on\na,b\nb,a\nc,d\n")
    with pytest.raises(gp.InputError, match=r"(?s)is a cycle.*'d', which does not exist"):
        gp.JobSet.from_file(path)


def test_a_job_named_twice_is_named_in_the_message():
    with pytest.raises(gp.InputError, match=r"job 'b': depends_on has 'a' twice; list each job once"):
        gp.Job("b", depends_on=["a", "afterany:a"])


def test_an_id_that_occurs_twice_is_refused_with_dependencies_too():
    with pytest.raises(gp.InputError, match="twice"):
        gp.JobSet([gp.Job("a"), gp.Job("a"), gp.Job("b", depends_on="a")])


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_files_and_traces_keep_dependencies(tmp_path, form):
    jobs = [gp.Job("prepare", workflow="w"), gp.Job("probe"), gp.Job("train", depends_on="prepare|afterany:probe", workflow="w")]
    trace = gp.Trace(map(gp.Submission, jobs))
    path = tmp_path / f"jobs.{form}"
    path.write_text(gp.trace_text(trace, form))
    assert list(gp.JobSet.from_file(path)) == jobs
    assert gp.read_trace(path) == trace


def test_columns_keep_dependencies():
    jobs = gp.JobSet([*_chain("a", "b"), gp.Job("c", depends_on=["a", "afterany:b"])])
    assert gp.JobSet.from_columns(jobs.to_columns()) == jobs
    assert json.loads(json.dumps(jobs[2].model_dump()))["depends_on"] == ["a", "afterany:b"]


def test_a_sample_counts_missing_parents_as_ended():
    trace = gp.Trace(gp.Submission(job) for job in _chain("a", "b", "c")).window(first=1)
    assert [submission.job.depends_on for submission in trace] == [(), ("b",)]
    assert "Jobs that wait for jobs which the trace lacks; those count as ended: 1." in trace.report.assumptions


def test_of_jobs_that_arrive_together_parents_come_first():
    child, parent = gp.Job("child", depends_on="parent"), gp.Job("parent")
    assert [each.job.job_id for each in gp.Trace([gp.Submission(child), gp.Submission(parent)])] == ["parent", "child"]


def test_a_blocked_job_gets_no_time_and_counts_for_nothing():
    jobs = gp.JobSet([gp.Job("other"), *_chain("prepare", "train"), gp.Job("report", depends_on=["train", "other"])])
    speeds = gp.ThroughputProfile.from_matrix(
        [[2.0], [1.0], [3.0], [1.0]], job_ids=[job.job_id for job in jobs], accelerators=["v100"]
    )
    cluster = gp.Cluster.from_counts({"v100": 1})
    problem = gp.AllocationProblem.from_jobs(jobs, cluster, speeds)
    allocation = gp.solve(problem, "max_min_fairness")
    assert allocation.excluded == {"train": "it waits for 'prepare'", "report": "it waits for 'train' and 'other'"}
    alone = gp.solve(gp.AllocationProblem.from_jobs(jobs[:2], cluster, speeds), "max_min_fairness")
    np.testing.assert_allclose(allocation.time_fractions[:2], alone.time_fractions)
    assert not allocation.time_fractions[2:].any()
    assert gp.AllocationProblem.from_jobs(jobs[2:3], cluster, speeds).excluded == {}  # its parent has left


def test_a_finished_parent_blocks_nothing():
    jobs = [gp.Job("prepare", total_steps=5, steps_done=5), gp.Job("train", depends_on="prepare", total_steps=5)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0], [1.0]], job_ids=["prepare", "train"], accelerators=["v100"])
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 1}), speeds)
    assert list(problem.excluded) == ["prepare"]


def test_jobs_that_need_the_failure_of_a_finished_job_can_never_start():
    jobs = [gp.Job("a", total_steps=5, steps_done=5), gp.Job("b", depends_on="a"), gp.Job("c", depends_on="afternotok:a")]
    jobs += [gp.Job("d", depends_on="c"), gp.Job("e", depends_on="afterany:c"), gp.Job("f", depends_on="afternotok:d")]
    jobs += [gp.Job("g", depends_on=["c", "b"]), gp.Job("h", depends_on=["afterany:c", "b"])]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 8, job_ids=list("abcdefgh"), accelerators=["v100"])
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 1}), speeds)
    assert problem.excluded == {
        "a": "it has finished: no steps remain",
        "c": "it can never start: 'a', for whose failure it waits, has finished",
        "d": "it can never start: 'c', for which it waits, can never start",
        "g": "it can never start: 'c', for which it waits, can never start",
        "h": "it waits for 'b'",
    }
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds)
    scheduler.submit_all(jobs)
    scheduler.complete("a")
    assert {job.job_id for job in scheduler.jobs} == {"b", "e", "f"}
    assert scheduler.blocked == {"h": ("b",)}


def test_a_named_job_keeps_its_condition_beside_a_singleton():
    same = {"workflow": "w"}
    jobs = [gp.Job("a", total_steps=5, steps_done=5, **same), gp.Job("b", depends_on=["afternotok:a", "singleton"], **same)]
    speeds = gp.ThroughputProfile.from_matrix([[1.0]] * 2, job_ids=["a", "b"], accelerators=["v100"])
    problem = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_counts({"v100": 1}), speeds)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), speeds)
    scheduler.submit_all(jobs)
    scheduler.complete("a")
    assert list(problem.excluded) == ["a", "b"]
    assert scheduler.take_unblocked().cancelled == ("b",)


def test_a_singleton_waits_for_earlier_jobs_of_its_workflow_and_tenant():
    same = {"workflow": "w", "tenant": "t"}
    jobs = [gp.Job("a", **same), gp.Job("b", workflow="w"), gp.Job("c", **same), gp.Job("d", depends_on="singleton", **same)]
    jobs += [gp.Job("e", **same), gp.Job("f", depends_on="singleton", **same)]
    assert WorkflowGraph(jobs).parents == [[], [], [], [0, 2], [], [3, 4]]


@given(
    st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))))
)
def test_longest_paths_are_those_of_all_paths(drawn):
    size, edges = drawn
    parents = [sorted({u for u, v in edges if u < v == row}) for row in range(size)]
    jobs = [gp.Job(f"{row}", depends_on=[f"{u}" for u in parents[row]]) for row in range(size)]
    seconds = [1.0 + row % 3 for row in range(size)]

    def longest(row: int) -> float:
        return seconds[row] + max((longest(v) for v in range(size) if row in parents[v]), default=0.0)

    assert WorkflowGraph(jobs).longest_paths(seconds) == [longest(row) for row in range(size)]
