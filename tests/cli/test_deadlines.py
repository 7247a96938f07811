"""Deadlines in every command: late jobs by name, columns, counts, and what the constraint would change."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written

SMALL = ["jobs.csv", "-c", "v100:1,k80:1", "--throughputs", "speeds.csv"]
BY_RATE = {"bert": 200 / 2.0 - 60, "resnet": 0.0}
"""{job: seconds after its deadline}: at the level of 0.8, bert does 0.8 · 2.5 steps/s, and resnet 0.8 · 1.5."""


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Gavel:
    enter_folder(tmp_path, monkeypatch)  # type: ignore[arg-type]
    monkeypatch.setenv("COLUMNS", "100")
    written("speeds.csv", "job_id,v100,k80\nbert,4,1\nresnet,2,1\nlstm,1,1\n")
    written("jobs.csv", "job_id,total_steps,deadline_seconds\nbert,200,60\nresnet,60,100\nlstm,60,\n")
    return runner(capsys)


def test_solve_names_the_late_jobs_in_all_its_forms(gavel: Gavel) -> None:
    text = gavel("solve", *SMALL).out
    assert "Deadlines met at these speeds: 1 of 2; late: bert by 40 s." in text
    head = next(line for line in text.splitlines() if line.split()[:1] == ["job"])
    assert head.split()[-2:] == ["deadline", "late"]
    document = json.loads(gavel("solve", *SMALL, "--json").out)
    assert document["deadlines"] == {"met": 1, "missed": 1, "unknown": 0}
    rows = {row["job_id"]: row for row in csv.DictReader(io.StringIO(gavel("solve", *SMALL, "--csv").out))}
    for job in document["jobs"]:
        own, late = rows[job["job_id"]], BY_RATE.get(job["job_id"])
        assert job["late"] == (None if late is None else pytest.approx(late))
        assert own["late"] == ("" if late is None else str(job["late"]))
        assert own["deadline"] == {"bert": "60.0", "resnet": "100.0", "lstm": ""}[job["job_id"]]
    written("free.csv", "job_id,total_steps\nbert,200\n")
    without = gavel("solve", "free.csv", *SMALL[1:])
    assert "deadline" not in without.out
    assert "late" not in without.out
    assert json.loads(gavel("solve", "free.csv", *SMALL[1:], "--json").out)["deadlines"] is None


def test_jobs_that_wait_miss_their_deadlines_and_unknown_steps_are_not_counted(gavel: Gavel) -> None:
    written("jobs.csv", "job_id,total_steps,deadline_seconds\nbert,200,60\nresnet,60,100\nlstm,,9\n")
    small = ["jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "-p", "fifo"]
    text = " ".join(gavel("solve", *small).out.split())
    assert "Deadlines met at these speeds: 1 of 3; late: resnet waits; 1 cannot be checked, since total_steps is unknown." in text
    start = "resnet waits, and without GPU time misses its deadline; 1 of 3 are met."
    assert gavel("explain", "resnet", *small).out.startswith(start)
    start = "lstm has a deadline, but its total_steps is unknown; 1 of 3 are met."
    assert gavel("explain", "lstm", *small).out.startswith(start)


def test_equal_jobs_with_other_deadlines_have_rows_of_their_own(gavel: Gavel) -> None:
    written("jobs.csv", "job_id,job_type,total_steps,deadline_seconds\na,A3C,99,60\nb,A3C,99,60\nc,A3C,99,70\nd,A3C,99,\n")
    text = gavel("solve", "jobs.csv", "-c", "v100:2").out
    assert [line.split()[0] for line in text.splitlines() if " A3C " in line] == ["a", "c", "d"]


def test_what_ifs_and_compared_policies_count_deadlines(gavel: Gavel) -> None:
    text = gavel("solve", *SMALL, "--what-if", "v100+1", "--what-if", "k80=0").out
    cells = next(re.findall(r"\d of 2", line) for line in text.splitlines() if line.strip().startswith("deadlines met"))
    document = json.loads(gavel("solve", *SMALL, "--what-if", "v100+1", "--what-if", "k80=0", "--json").out)
    by_cluster = {"as it is": document, **{each["change"]: each["allocation"] for each in document["what_if"]}}
    for cell, found in zip(cells, by_cluster.values(), strict=True):
        speeds = {job["job_id"]: job["throughput"] for job in found["jobs"]}
        met = (200 / speeds["bert"] <= 60) + (60 / speeds["resnet"] <= 100)
        assert found["deadlines"]["met"] == met
        assert cell == f"{met} of 2"
    assert {each["deadlines"]["met"] for each in by_cluster.values()} == {1, 2}
    assert "deadlines met" in gavel("solve", *SMALL, "-p", "fifo", "-p", "isolated").out


def test_rounds_until_done_count_deadlines(gavel: Gavel) -> None:
    """The jobs run for whole rounds of 6 minutes, so nobody meets a deadline of 1 second, and all meet one of 10 hours."""
    written("jobs.csv", "job_id,total_steps,deadline_seconds\nbert,2000,1\nresnet,60,36000\nlstm,,50\n")
    given = ["rounds", *SMALL, "--until-done"]
    document = json.loads(gavel(*given, "--json").out)
    jobs = {each["job_id"]: each for each in document["jobs"]}
    assert document["deadlines"] == {"met": 1, "missed": 1, "unknown": 1}
    assert jobs["bert"]["late"] == pytest.approx(jobs["bert"]["end_seconds"] - 1)
    assert [jobs[name]["late"] for name in ("resnet", "lstm")] == [0, None]
    assert [jobs[name]["deadline"] for name in ("bert", "resnet", "lstm")] == [1, 36000, 50]
    text = " ".join(gavel(*given).out.split())
    assert "Deadlines met in this forecast: 1 of 3; late: bert by " in text
    assert "1 cannot be checked, since total_steps is unknown." in text
    assert gavel(*given, "--csv").out.splitlines()[0].endswith("end_seconds,deadline,late,cost,reason")


def test_explain_begins_with_the_deadline_and_what_the_constraint_would_change(gavel: Gavel) -> None:
    def first(job: str, *more: str) -> str:
        return " ".join(gavel("explain", job, *SMALL, *more).out.split(" bert runs ")[0].split(" resnet runs ")[0].split("\n")[0:1])

    start = "bert misses its deadline by 40 s at this speed; with `deadline` as a constraint 2 of 2 are met."
    assert first("bert") == start
    document = json.loads(gavel("explain", "bert", *SMALL, "--json").out)
    assert document["with_deadlines"] == {"met": 2, "conflict": []}
    assert (document["deadline"], document["late"]) == (60, pytest.approx(40))
    assert document["deadlines"] == {"met": 1, "missed": 1, "unknown": 0}
    assert first("resnet").startswith("resnet meets its deadline at this speed; with `deadline` as a constraint 2 of 2 are met.")
    assert "deadline" not in gavel("explain", "lstm", *SMALL).out, "lstm has none"
    written("jobs.csv", "job_id,total_steps,deadline_seconds\nbert,400,60\nresnet,60,100\nlstm,60,\n")
    text = " ".join(gavel("explain", "bert", *SMALL).out.split())
    late = "bert misses its deadline by 2.33 minutes at this speed; with `deadline` as a constraint not all can be met: "
    assert text.startswith(f"{late}the deadline of job 'bert' in 60 s")


def test_a_forecast_agrees_with_the_constraint_on_whether_deadlines_are_met() -> None:
    """An allocation under hard deadlines, many of them just met, has no late job; otherwise, late is the end less the deadline."""
    numbers = np.random.default_rng(5)
    for _ in range(20):
        speeds, steps = numbers.uniform(1, 5, (6, 2)), numbers.uniform(50, 500, 6)
        free = gp.AllocationProblem.from_arrays(speeds, [3, 3], total_steps=steps)
        ends = steps / gp.solve(free, "max_min_fairness").throughputs
        due = np.where([True] * 5 + [False], ends * numbers.uniform(0.9, 1.3, 6), np.nan)
        problem = gp.AllocationProblem.from_arrays(speeds, [3, 3], total_steps=steps, deadlines_seconds=due)
        found = gp.solve(problem, "max_min_fairness").forecast()
        expected = np.maximum(found.end_seconds - due, 0)
        np.testing.assert_allclose(found.late, expected, rtol=1e-5, atol=2e-6 * np.nanmax(due))
        assert sum(found.deadlines) == found.deadlines.all == 5
        try:
            kept = gp.solve(problem, "max_min_fairness", constraints=[gp.Deadline()])
        except gp.ConflictError:
            continue
        assert kept.forecast().deadlines == (5, 0, 0)
        assert kept.metrics()["late"] == 0
