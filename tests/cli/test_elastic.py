"""Elastic jobs on the command line: side by side with fixed gangs, in rounds, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner

JOBS = """\
job_id,job_type,num_gpus,gpu_counts,total_steps,arrival_seconds
a,"ResNet-50 (batch size 64)",1,,3e4,0
b,"LM (batch size 40)",2,,1e5,100
c,"ResNet-50 (batch size 64)",,1|2|4|8,6e4,200
"""


@pytest.fixture
def gavel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    Path("jobs.csv").write_text(JOBS)
    Path("rigid.csv").write_text(JOBS.rpartition("c,")[0])
    return runner(capsys)


@pytest.mark.deep
def test_a_trace_is_simulated_with_and_without_elastic_jobs(gavel: Gavel) -> None:
    command = ["simulate", "jobs.csv", "-c", "v100:8,k80:8", "--elastic", "--mechanism", "direct", "--restart-seconds", "30"]
    shown = gavel(*command)
    assert shown.code == 0, shown.err
    assert "(fixed gangs)" in shown.out
    assert "(elastic)" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    found = json.loads(gavel(*command, "--json").out)["policies"]
    assert [each["elastic"] for each in found] == [False, True]
    fixed, elastic = (each["summary"]["jct"]["mean"] for each in found)
    assert elastic < fixed


@pytest.mark.deep
def test_direct_is_named_instead_of_a_policy_that_it_does_not_use(gavel: Gavel) -> None:
    command = ["jobs.csv", "-c", "v100:8,k80:8", "--mechanism", "direct"]
    shown = gavel("simulate", *command, "-p", "fifo", "--run-out", "run.json", "--jobs-out", "jobs-out.csv")
    assert shown.err.startswith("warning: --mechanism direct chooses jobs without a policy; --policy fifo has no effect")
    assert "mechanism direct" in shown.out
    assert "fifo" not in shown.out
    (run,) = gp.read_runs("run.json")
    assert (run.labels["policy"], run.labels["mechanism"]) == ("mechanism direct", "direct")
    assert gavel("report", "run.json", "--out", "run.html").code == 0
    assert "A run of mechanism direct" in Path("run.html").read_text()
    for name in ("simulate", "rounds"):
        refused = gavel(name, *command, "-p", "fifo", "-p", "nash_welfare")
        assert refused.code == 2
        assert "--mechanism direct chooses jobs without a policy; leave out --policy" in refused.err
    document = json.loads(gavel("simulate", *command, "--json").out)
    assert document["policies"][0]["policy"] is None
    assert "max_min_fairness, mechanism priority" in gavel("simulate", "rigid.csv", *command[1:3], "--mechanism", "priority").out


def test_rounds_take_a_mechanism(gavel: Gavel) -> None:
    command = ["rounds", "jobs.csv", "-c", "v100:8,k80:8", "-n", "2"]
    shown = gavel(*command, "--mechanism", "direct")
    assert shown.out.startswith("Rounds under mechanism direct, without a policy.")
    assert "No time is promised; jobs got" in shown.out
    direct, deficit = (json.loads(gavel(*command, "--json", *more).out) for more in (["--mechanism", "direct"], []))
    assert (direct["policy"], direct["mechanism"]) == (None, "direct")
    assert (deficit["policy"], deficit["mechanism"]) == ("max_min_fairness", "deficit")
    assert not direct["delivery"]["promised_gpu_seconds"]
    assert deficit["delivery"]["promised_gpu_seconds"]


def test_elastic_jobs_have_rows_and_units_of_their_own(gavel: Gavel) -> None:
    shown = gavel("simulate", "jobs.csv", "-c", "v100:8,k80:8", "--jobs-out", "jobs-out.csv")
    table = shown.out[shown.out.index("Queueing delay by gang") :]
    assert [line.split()[:2] for line in table.splitlines()[2:]] == [["1", "1"], ["2", "1"], ["elastic", "1"]]
    rows = {row["job_id"]: row for row in csv.DictReader(Path("jobs-out.csv").read_text().splitlines())}
    assert [rows[job_id]["gpu_range"] for job_id in "abc"] == ["", "", "1-8"]
    assert "mean_queueing_elastic_seconds" in gavel("simulate", "jobs.csv", "-c", "v100:8,k80:8", "--csv").out
    shown = gavel("rounds", "jobs.csv", "-c", "v100:2,k80:2", "-n", "1").out
    table = shown[shown.index("Jobs furthest behind") :].splitlines()
    assert "due, GPU-s" in "".join(table[1:3])
    assert any(line.split()[0] == "c" and "1-8" in line.split() for line in table[2:])


def test_a_range_of_one_number_is_shown_as_a_number(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(JOBS.replace("1|2|4|8", "4"))
    shown = gavel("rounds", "jobs.csv", "-c", "v100:8", "-n", "1")
    assert "4-4" not in shown.out
    assert "  c    4 " in shown.out


def test_what_a_policy_does_not_support_is_said_once_before_any_simulation(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gp.Simulation, "step", lambda *_: pytest.fail("a simulation was begun"))
    command = ["simulate", "jobs.csv", "-c", "v100:8,k80:8", "--elastic"]
    refused = gavel(*command, "-p", "fifo", "-p", "max_min_fairness")
    assert refused.code == 2
    assert refused.err.count("policy fifo: solves no program") == 1
    refused = gavel(*command, "--events")
    assert len(refused.err.splitlines()) == 1


def test_elastic_does_not_go_with_learning_or_saved_states(gavel: Gavel) -> None:
    for options in (["--learn"], ["--save-state", "s.json"]):
        refused = gavel("simulate", "jobs.csv", "-c", "v100:8", "--elastic", *options)
        assert refused.code == 2
        assert "--elastic compares two runs of each policy" in refused.err


def test_rounds_show_the_numbers_of_gpus(gavel: Gavel) -> None:
    shown = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8", "--rounds", "2")
    assert shown.code == 0, shown.err
    assert "1-8" in shown.out


def test_mistakes_are_named_with_their_place(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(JOBS.replace("1|2|4|8", "1|0|4|4"))
    refused = gavel("solve", "jobs.csv", "-c", "v100:8")
    assert refused.code == 2
    assert "jobs.csv, line 4 (job 'c'): gpu_counts has 4 twice" in refused.err
    Path("jobs.csv").write_text(JOBS)
    refused = gavel("simulate", "jobs.csv", "-c", "v100:8", "--mechanism", "priority")
    assert "needs one of the mechanisms deficit, direct" in refused.err


def test_csv_and_wide_tables_have_the_numbers_of_gpus(gavel: Gavel) -> None:
    command = ["solve", "jobs.csv", "-c", "v100:4,k80:2"]
    rows = {row["job_id"]: row for row in csv.DictReader(gavel(*command, "--csv").out.splitlines())}
    document = {job["job_id"]: job for job in json.loads(gavel(*command, "--json").out)["jobs"]}
    assert rows["a"]["gpu_counts"] == ""
    stated = dict(part.split("=") for part in rows["c"]["gpu_counts"].split("|"))
    times = {f"{name}:{n}": part for name, counts in document["c"]["gpu_counts"].items() for n, part in counts.items()}
    assert {name: float(time) for name, time in stated.items()} == pytest.approx({n: t for n, t in times.items() if t > 1e-6})
    wide = gavel(*command, "--wide", "--all").out
    name, count = max(times, key=lambda each: times[each]).split(":")
    assert f"{times[f'{name}:{count}']:.1%} on {count}" in wide
    assert "gpu_counts" not in gavel("solve", "rigid.csv", *command[2:], "--csv").out


def test_missing_prices_are_named_by_type_once(gavel: Gavel) -> None:
    for policy in ("throughput_per_dollar", "min_cost,min_share=0.5"):
        refused = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8", "-p", policy)
        places = [line.removeprefix("Error: ").partition(",")[0] for line in refused.err.splitlines()]
        assert places == ["accelerator type 'v100'", "accelerator type 'k80'"]


def test_a_number_above_the_cluster_is_not_said_to_need_an_estimate(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(JOBS.replace("1|2|4|8", "1|64"))
    assert "c cannot run on 64 GPUs: no GPU type can hold that many." in gavel("solve", "jobs.csv", "-c", "v100:8,k80:8").out
    Path("jobs.csv").write_text("job_id,job_type,gpu_counts\nc,LM (batch size 40),16|32\n")
    for command in (["solve"], ["explain", "c"]):
        shown = gavel(*command, "jobs.csv", "-c", "v100:8,k80:8", "--estimate")
        assert "no number of GPUs that it can run on fits" in " ".join(shown.out.split())
        assert "measured" not in shown.out


@pytest.mark.deep
def test_numbers_of_gpus_that_a_job_cannot_have_are_named_with_the_reason(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(JOBS.replace("1|2|4|8", "1|3|4|16"))
    shown = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8")
    text = " ".join(shown.out.split())
    assert "c cannot run on 3 GPUs: the profile has no speed there; --estimate fills it in." in text
    assert "c cannot run on 16 GPUs: no GPU type can hold that many." in text
    shown = gavel("solve", "jobs.csv", "-c", "v100:8,k80:8", "--estimate")
    assert "c cannot run on 16 GPUs: no GPU type can hold that many." in shown.out
    shown = gavel("explain", "c", "jobs.csv", "-c", "v100:4,k80:2")
    assert "c cannot run on 3 GPUs" in shown.out
    Path("jobs.csv").write_text(JOBS)
    assert "cannot run on" not in gavel("solve", "jobs.csv", "-c", "v100:8,k80:8").out
