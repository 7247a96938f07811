"""Faults that are found after the files have been read still name the file, the line and the field."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py import AllocationProblem, Cluster, Job, JobSet
from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.fakes import FakeProfile, refusal

PROFILE = FakeProfile({"t": {"v100": 4.0, "k80": 1.0}})
CLUSTER = Cluster.from_counts({"v100": 2, "k80": 2})

JOBS = {
    "jobs.csv": ("job_id,job_type,allowed_accelerators\na,t,\nb,t,v100|v10\n", "line 3"),
    "jobs.json": ('[\n{"job_id": "a"},\n{"job_id": "b",\n"allowed_accelerators": "v10"}]', "line 3, entry 2"),
    "list.json": ('{"jobs":\n[{"job_id": "a"}, {"job_id": "b", "allowed_accelerators": ["v10"]}]}', "line 2, entry 2"),
    "jobs.jsonl": ('{"job_id": "a"}\n\n{"job_id": "b", "allowed_accelerators": ["v10"]}\n', "line 3"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_folder(tmp_path, monkeypatch)


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str]) -> Gavel:
    return runner(capsys)


class TestAnUnknownTypeThatAJobAllows:
    @pytest.mark.parametrize("name", JOBS)
    def test_in_a_job_set(self, name: str) -> None:
        content, line = JOBS[name]
        jobs = JobSet.from_file(written(name, content))
        assert refusal(AllocationProblem.from_jobs, jobs, CLUSTER, PROFILE) == (
            f"{name}, {line} (job 'b'), field allowed_accelerators: accelerator 'v10' is in neither the cluster nor the profile"
            "; did you mean 'v100'?"
        )

    @pytest.mark.parametrize("name", JOBS)
    def test_in_a_trace(self, name: str) -> None:
        content, line = JOBS[name]
        trace = gp.read_trace(written(name, content)).scale(2).sample(2)
        assert f"{name}, {line} (job 'b'), field allowed" in refusal(AllocationProblem.from_jobs, trace.jobs, CLUSTER, PROFILE)

    def test_in_a_scheduler(self) -> None:
        made = gp.RoundScheduler(CLUSTER, PROFILE)
        jobs = JobSet.from_file(written("jobs.csv", JOBS["jobs.csv"][0]))
        assert "jobs.csv, line 3 (job 'b'), field allowed_accelerators" in refusal(made.submit, jobs[1])

    @pytest.mark.parametrize("command", ["solve", "rounds", "simulate", "explain"])
    def test_in_the_commands(self, gavel: Gavel, command: str) -> None:
        content = "job_id,job_type,total_steps,allowed_accelerators\na,A3C,9,\nb,A3C,9,v101\n"
        first = ["a"] if command == "explain" else []
        outcome = gavel(command, *first, written("jobs.csv", content), "-c", "v100:2")
        assert outcome.code == 2
        assert "jobs.csv, line 3 (job 'b'), field allowed_accelerators: accelerator 'v101' is in neither" in outcome.err

    def test_from_standard_input(self, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
        path = written("jobs.csv", "job_id,job_type,total_steps,allowed_accelerators\na,A3C,9,v101\n")
        with open(path) as given:
            monkeypatch.setattr("sys.stdin", given)
            outcome = gavel("simulate", "-", "-c", "v100:2")
        assert "standard input, line 2 (job 'a'), field allowed_accelerators" in outcome.err


@pytest.mark.parametrize("command", ["solve", "rounds"])
def test_faults_that_a_policy_finds_name_the_columns_of_the_file(gavel: Gavel, command: str) -> None:
    path = written("jobs.csv", "job_id,job_type,total_steps\na,A3C,9\nb,A3C,\n")
    outcome = gavel(command, path, "-c", "v100:2", "-p", "min_makespan")
    assert outcome.code == 2
    assert "jobs.csv, line 3 (job 'b'), field total_steps: " in outcome.err
    assert "steps_remaining" not in outcome.err


@pytest.mark.parametrize("command", ["solve", "rounds", "simulate"])
def test_what_profiles_and_tenant_trees_lack_names_the_line_of_the_first_job(gavel: Gavel, command: str) -> None:
    path = written("jobs.csv", "job_id,job_type,total_steps,tenant\na,A3C,9,x\nb,none,9,y\nc,none,9,y\n")
    outcome = gavel(command, path, "-c", "v100:2")
    assert outcome.code == 2
    assert "field job_type: 'none' is missing, needed by job 'b' (jobs.csv, line 3)" in outcome.err
    rows = written("speeds.csv", "job_id,v100\na,1\n")
    outcome = gavel(command, path, "-c", "v100:2", "--throughputs", rows)
    assert outcome.code == 2
    assert "field job_id: has no row for job 'b' (jobs.csv, line 3)" in outcome.err
    rows = written("speeds.csv", "job_id,v100\na,1\nc,1\nb,\n")
    outcome = gavel(command, path, "-c", "v100:2", "--throughputs", rows)
    assert "speeds.csv, line 4: has no throughput on 'v100' for job 'b' (jobs.csv, line 3)" in outcome.err
    rows = written("speeds.csv", "job_id,v100\na,1\nb,1\nc,1\n")
    tree = written("tree.yaml", "tenants: {x: {}}\n")
    outcome = gavel(command, path, "-c", "v100:2", "--throughputs", rows, "-p", f"hierarchical,tenants={tree}")
    assert outcome.code == 2
    assert "Error: jobs.csv, line 3 (job" in outcome.err
    assert "field tenant: 'y' is not in the tenant tree" in outcome.err


@pytest.mark.parametrize("command", ["solve", "simulate", "trace describe", "trace import"])
def test_a_bad_value_in_a_list_of_jobs_is_an_error_everywhere(gavel: Gavel, command: str) -> None:
    path = written("jobs.csv", "job_id,job_type,total_steps,locality\na,A3C,9,None\nb,A3C,9,\n")
    outcome = gavel(*command.split(), path, *(["-c", "v100:2"] if command in ("solve", "simulate") else []))
    assert outcome.code == 2
    assert "jobs.csv, line 2 (job 'a'), field locality: must be one of" in outcome.err


@pytest.mark.parametrize(
    ("row", "field"),
    [("a,t,,2,,", "deadline_factor"), ("a,none,,,60,v100", "duration_accelerator"), ("a,t,,,60,v10", "duration_accelerator")],
)
def test_other_faults_of_jobs_that_need_the_profile(row: str, field: str) -> None:
    header = "job_id,job_type,total_steps,deadline_factor,duration_seconds,duration_accelerator"
    jobs = JobSet.from_file(written("jobs.csv", f"{header}\n{row}\n"))
    assert refusal(AllocationProblem.from_jobs, jobs, CLUSTER, PROFILE).startswith(f"jobs.csv, line 2 (job 'a'), field {field}: ")


class TestConstraints:
    def problem(self) -> AllocationProblem:
        return AllocationProblem.from_arrays(
            [[4.0, 1.0]], [1, 1], accelerator_types=["v100", "k80"], job_ids=["a"], total_steps=[9]
        )

    def solve(self, name: str, text: str) -> Any:
        return gp.solve(self.problem(), constraints=gp.read_constraints(written(name, text)))

    def test_a_budget_without_prices(self) -> None:
        text = "constraints:\n  - {kind: keep_running}\n  - {kind: cost_budget, per_hour: 3}\n"
        needs = "is unknown, but limits.yaml, line 3 (the budget of 3 per hour) needs it"
        assert refusal(self.solve, "limits.yaml", text).splitlines() == [
            f"accelerator type 'v100', field price_per_hour: {needs}",
            f"accelerator type 'k80', field price_per_hour: {needs}",
        ]

    def test_a_type_that_there_is_not(self) -> None:
        text = '{"constraints": [\n{"kind": "reserve", "accelerator": "v10",\n"gpus": 1, "min_gang": 2}]}'
        told = refusal(self.solve, "limits.json", text)
        assert told.startswith(
            "limits.json, line 2, constraints[0] (the reserve of 1 v10 GPUs for gangs of 2 or more GPUs), field "
        )

    def test_a_job_that_there_is_not_is_warned_of(self) -> None:
        with pytest.warns(gp.GavelWarning, match=r"limits\.yaml, line 2 \(the ban of job 'x'\): there is no job 'x'"):
            self.solve("limits.yaml", "constraints:\n  - {kind: forbid, job: x}\n")


def test_where_a_record_was_read_makes_no_difference_to_it() -> None:
    read, made = JobSet.from_file(written("jobs.csv", "job_id,num_gpus\na,2\n"))[0], Job("a", num_gpus=2)
    assert (read.place, made.place) == ("jobs.csv, line 2", "")
    assert (read.where, made.where) == ("jobs.csv, line 2 (job 'a')", "job 'a'")
    assert read == made
    assert hash(read) == hash(made)
    assert repr(read) == repr(made)
    assert read.model_dump() == made.model_dump()
    assert copy.deepcopy(read).place == read.model_copy(update={"weight": 2.0}).place == read.place
    (constraint,) = gp.read_constraints(written("c.yaml", "constraints: [{kind: deadline}]"))
    assert constraint == gp.Deadline()
