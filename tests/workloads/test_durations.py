"""Durations predicted from finished runs."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.workloads.durations import predictions
from tests.support.commands import Gavel, runner
from tests.support.fakes import refusal
from tests.support.shared_data import SHARED, needs_shared_data
from tests.workloads.support import file, read

Row = tuple[int, int, int, int | None, str]

rows = st.tuples(
    st.integers(0, 60),
    st.integers(0, 9),
    st.integers(1, 3),
    st.none() | st.integers(0, 40),
    st.sampled_from(["ann", "bob"]),
)


def trace_of(given: list[Row]) -> gp.Trace:
    return gp.Trace(
        gp.Submission(
            gp.Job(str(number), arrival_seconds=at, num_gpus=gpus), run_seconds=run, wait_seconds=wait, labels=(("user", user),)
        )
        for number, (at, wait, gpus, run, user) in enumerate(given)
    )


def end_of(submission: gp.Submission) -> float:
    return submission.job.arrival_seconds + (submission.wait_seconds or 0) + (submission.run_seconds or 0)


@given(jobs=st.lists(rows, min_size=1, max_size=30), last=st.integers(1, 5), enough=st.integers(1, 3))
def test_predictions_are_the_medians_of_the_last_runs_that_ended_before(jobs: list[Row], last: int, enough: int) -> None:
    """Compared with a search through all earlier jobs for each of them."""
    trace, enough = trace_of(jobs), min(enough, last)
    found = list(predictions(trace, gp.DurationPredictor(["user", "num_gpus"], last=last, enough=enough)))
    for job, prediction in zip(trace, found, strict=True):
        order = {id(other): position for position, other in enumerate(trace)}
        ended = [s for s in trace if s.run_seconds is not None and end_of(s) < job.job.arrival_seconds]
        ended.sort(key=lambda s: (end_of(s), order[id(s)]))
        same_user = [s for s in ended if s.labels == job.labels]
        same = [s for s in same_user if s.job.num_gpus == job.job.num_gpus]
        levels = [(("user", "num_gpus"), same), (("user",), same_user), ((), ended)]
        wanted = next(((columns, group[-last:]) for columns, group in levels if len(group) >= enough), None)
        if wanted is None or prediction is None:
            assert wanted is prediction
            continue
        columns, group = wanted
        assert prediction.group == columns
        logs = [math.log(max(s.run_seconds or 0, 1)) for s in group]
        assert prediction.median_seconds == pytest.approx(math.exp(median(logs)))


@given(jobs=st.lists(rows, min_size=1, max_size=30), data=st.data())
def test_nothing_that_ends_later_changes_a_prediction(jobs: list[Row], data: st.DataObject) -> None:
    trace = trace_of(jobs)
    now = data.draw(st.sampled_from([submission.job.arrival_seconds for submission in trace]))
    known = [
        submission
        if end_of(submission) < now
        else replace(submission, run_seconds=data.draw(st.none() | st.integers(200, 300)), wait_seconds=60)
        for submission in trace
    ]
    before = trace.with_predicted_durations(["user", "num_gpus"], enough=1)
    after = gp.Trace(known).with_predicted_durations(["user", "num_gpus"], enough=1)
    for first, second in zip(before, after, strict=True):
        if first.job.arrival_seconds <= now:
            assert first.estimate_seconds == second.estimate_seconds


@given(jobs=st.lists(rows, min_size=1, max_size=30))
def test_a_run_at_a_time_gives_what_the_whole_trace_gives(jobs: list[Row]) -> None:
    trace = trace_of(jobs).with_predicted_durations(["user"])
    online, running = gp.DurationPredictor(["user"]), list(trace)
    running.sort(key=end_of)
    for submission in trace:
        while running and end_of(running[0]) < submission.job.arrival_seconds:
            ended = running.pop(0)
            if ended.run_seconds is not None:
                online.observe({"user": dict(ended.labels)["user"]}, ended.run_seconds)
        prediction = online.predict({"user": dict(submission.labels)["user"]})
        assert submission.estimate_seconds == (prediction and prediction.median_seconds)


def test_the_quantiles_of_alike_runs_hold() -> None:
    """The k-th of n runs exceeds the next one with probability k / (n + 1), whatever the distribution."""
    chance = np.random.default_rng(0)
    trace = gp.Trace(
        gp.Submission(gp.Job(str(n), arrival_seconds=1e6 * n), run_seconds=float(seconds))
        for n, seconds in enumerate(chance.lognormal(7, 2, 8000))
    )
    found = gp.describe_predictability(trace, [])
    assert (found.num_groups, found.num_tested, found.num_predicted) == (1, 4000, 4000)
    assert found.quantile_coverage == pytest.approx({0.1: 0.1, 0.25: 0.25, 0.5: 0.5, 0.75: 0.75, 0.9: 0.9}, abs=0.03)
    assert found.rank_correlation == pytest.approx(0, abs=0.05)


def test_quantiles_between_runs_and_beyond_them() -> None:
    prediction = gp.DurationPrediction((), (10.0, 100.0, 1000.0))
    assert [prediction.quantile(level) for level in (0, 0.25, 0.375, 0.5, 0.75, 1)] == pytest.approx(
        [10, 10, 10**1.5, 100, 1000, 1000]
    )
    assert refusal(prediction.quantile, 1.5) == "duration prediction, field level: must be a finite number from 0 to 1, found 1.5"


def test_a_job_that_repeats_exactly_is_predicted_exactly() -> None:
    trace = gp.Trace(
        gp.Submission(gp.Job(f"{user}-{n}", arrival_seconds=10_000 * n), run_seconds=seconds, labels=(("user", user),))
        for user, seconds in (("ann", 60), ("bob", 600))
        for n in range(20)
    )
    by_user = gp.describe_predictability(trace, ["user"])
    assert (by_user.num_groups, by_user.within_25_percent, by_user.within_factor_2, by_user.median_error) == (2, 1, 1, 0)
    assert by_user.rank_correlation == pytest.approx(1)
    assert (alike := gp.describe_predictability(trace, [])).within_25_percent == 0
    assert alike.rank_correlation is None


def test_runs_that_were_cancelled_end_then() -> None:
    late = gp.Submission(gp.Job("late"), run_seconds=10, cancelled_seconds=500, status="killed")
    later = [gp.Submission(gp.Job(str(at), arrival_seconds=at)) for at in (400, 501)]
    first, second = gp.Trace([late, *later]).with_predicted_durations([], enough=1)[1:]
    assert (first.estimate_seconds, second.estimate_seconds) == (None, 10)


def test_jobs_without_history_keep_their_estimate_and_are_counted() -> None:
    trace = gp.Trace(gp.Submission(gp.Job(str(n), arrival_seconds=100 * n), run_seconds=50, estimate_seconds=900) for n in range(5))
    predicted = trace.with_predicted_durations(["num_gpus"])
    assert [submission.estimate_seconds for submission in predicted] == [900, 900, 900, 50, 50]
    assert predicted.report.assumptions[-1] == (
        "The estimated duration is the median of the last 20 finished runs of jobs with the same num_gpus: 2 of 5 jobs."
    )
    assert trace.with_predicted_durations([], quantile=0.9).report.assumptions[-1] == (
        "The estimated duration is the 0.9 quantile of the last 20 finished runs of all jobs: 2 of 5 jobs."
    )


def test_virtual_clusters_and_accounts_are_tenants() -> None:
    job = gp.Job("a", tenant="x", allowed_accelerators=["v100"])
    predictor = gp.DurationPredictor(["virtual_cluster", "allowed_accelerators"], enough=1)
    predictor.observe(job, 7)
    found = predictor.predict(gp.Submission(job))
    assert found is not None
    assert (found.group, found.median_seconds) == (("virtual_cluster", "allowed_accelerators"), 7)
    assert found == gp.DurationPrediction(("virtual_cluster", "allowed_accelerators"), (7,))


@pytest.mark.parametrize("column", ["usr", "total_steps", "run_seconds", "gpu_memory_gb", "job_id", "accelerator"])
def test_columns_that_are_unknown_or_follow_from_the_run_are_refused(column: str) -> None:
    trace = trace_of([(0, 0, 1, 5, "ann")])
    for call in (gp.describe_predictability, gp.Trace.with_predicted_durations):
        with pytest.raises(gp.UnknownNameError, match=f"'{column}' is not a column by which jobs can be grouped"):
            call(trace, [column])


def test_wrong_arguments_are_refused() -> None:
    assert refusal(gp.DurationPredictor, ["user", "user"]) == "duration predictor, field group: names a column twice: user, user"
    assert refusal(gp.DurationPredictor, last=2) == "duration predictor, field enough: must be from 1 to last, 2, found 3"
    assert "must be a finite number of at least 0, found nan" in refusal(gp.DurationPredictor().observe, {}, math.nan)


def test_traces_with_nothing_to_predict() -> None:
    for trace in (gp.Trace([]), trace_of([(0, 0, 1, None, "ann")] * 5), trace_of([(0, 0, 1, 5, "ann")] * 5)):
        found = gp.describe_predictability(trace)
        assert (found.num_predicted, found.within_25_percent, found.quantile_coverage) == (0, None, None)
        assert len(trace.with_predicted_durations()) == len(trace)


SACCT = "JobID|User|JobName|Submit|Start|End|Elapsed|State|AllocTRES\n" + "".join(
    f"{n}|ann|{name}|2024-05-{day:02}T08:00:00|2024-05-{day:02}T08:00:00|2024-05-{day:02}T{8 + hours:02}:00:00|{hours}:00:00"
    "|COMPLETED|gres/gpu=1\n"
    for n, (day, (name, hours)) in enumerate(itertools.product(range(1, 13), (("train", 8), ("test", 1))))
)


def test_accounting_of_slurm_is_predicted_by_user_and_job_name() -> None:
    trace = read("sacct.txt", SACCT)
    found = gp.describe_predictability(trace, ["user", "job_name"])
    assert (found.num_groups, found.within_25_percent, found.rank_correlation) == (2, 1, pytest.approx(1))


@pytest.fixture
def trace_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    return runner(capsys, "trace")


def test_describe_shows_how_well_durations_are_predicted(trace_command: Gavel) -> None:
    name = file("sacct.txt", SACCT)
    outcome = trace_command("describe", name, "--predictability", "--group", "user,job_name", "--periods", "1")
    assert outcome.code == 0, outcome.err
    *_, shares, quantiles = outcome.out.split("\n\n")
    assert shares.splitlines()[0] == "Durations predicted from finished runs, the last 12 jobs tested"
    assert [line.split() for line in shares.splitlines()[-3:]] == [
        ["(all", "jobs)", "1", "100.0%", "0.0%", "0.0%", "123.7%", "-"],
        ["user", "1", "100.0%", "0.0%", "0.0%", "123.7%", "-"],
        ["+", "job_name", "2", "100.0%", "100.0%", "100.0%", "0.0%", "1.00"],
    ]
    assert max(map(len, shares.splitlines() + quantiles.splitlines())) <= 80
    assert quantiles.startswith("Jobs that run no longer than the predicted quantile")
    document = json.loads(trace_command("describe", name, "--predictability", "--group", "user,job_name", "--json").out)
    assert [each["group"] for each in document["predictability"]] == [[], ["user"], ["user", "job_name"]]
    assert "predictability" not in json.loads(trace_command("describe", name, "--json").out)


def test_describe_says_when_nothing_can_be_predicted(trace_command: Gavel) -> None:
    outcome = trace_command("describe", file("jobs.csv", "job_id\na\n"), "--predictability")
    assert "is unknown: no job arrives after enough runs have ended." in outcome.out


def test_import_fills_in_predicted_durations(trace_command: Gavel) -> None:
    name = file("sacct.txt", SACCT)
    outcome = trace_command("import", name, "--predict-durations", "--group", "user,job_name", "--out", "jobs.csv")
    assert "finished runs of jobs with the same user, job_name: 20 of 24 jobs." in outcome.out
    again = gp.read_trace("jobs.csv")
    assert again[-2].estimate_seconds == again[-2].run_seconds == 8 * 3600


def test_a_group_needs_what_uses_it(trace_command: Gavel) -> None:
    name = file("sacct.txt", SACCT)
    assert "--group needs --predictability" in trace_command("describe", name, "--group", "user").err
    assert "--group needs --predict-durations" in trace_command("import", name, "--group", "user").err
    outcome = trace_command("describe", name, "--predictability", "--group", "users")
    assert (outcome.code, "did you mean 'user'" in outcome.err) == (2, True)


@pytest.mark.deep
@needs_shared_data
def test_figures_of_philly() -> None:
    """Those of docs/workloads.md; a program of its own on tables gave 38 %, 63 % and .49 in 43 groups."""
    trace = gp.read_trace(SHARED / "philly" / "philly_jobs.csv").window(first=0, last=40_000)
    found = gp.describe_predictability(trace, ["virtual_cluster", "num_gpus"])
    assert (found.num_groups, found.num_tested, found.num_predicted) == (43, 20_000, 20_000)
    assert (found.within_25_percent, found.within_factor_2) == (pytest.approx(0.38, abs=0.005), pytest.approx(0.63, abs=0.005))
    assert found.rank_correlation == pytest.approx(0.49, abs=0.005)


@needs_shared_data
def test_figures_of_openb() -> None:
    """Those of docs/workloads.md; on another of the published lists, a program of its own gave 20 %, 42 % and .47."""
    trace = gp.read_trace(SHARED / "openb" / "openb_pod_list_gpuspec33.csv")
    found = gp.describe_predictability(trace, ["num_gpus", "cpus_per_gpu", "memory_gb_per_gpu", "qos"])
    assert (found.num_groups, found.num_tested, found.num_predicted) == (134, 3102, 3102)
    assert (found.within_25_percent, found.within_factor_2) == (pytest.approx(0.20, abs=0.005), pytest.approx(0.42, abs=0.005))
    assert found.rank_correlation == pytest.approx(0.47, abs=0.005)
