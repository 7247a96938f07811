"""Constraints from files and on the command line: valid files, faults with their places, and reported outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.policies.constraints.compiling import KINDS
from tests.support.commands import runner
from tests.support.fakes import refusal

Gavel = Callable[..., tuple[int, str, str]]

EVERY_KIND = """\
constraints:
  - {kind: min_throughput, job: bert, rate: 2.5}
  - {kind: deadline}
  - {kind: deadline, job: bert, seconds: 3600, soft: 0.5}
  - kind: cost_budget
    per_hour: 12
  - {kind: max_gpus, gpus: 4, tenant: a, accelerator: v100}
  - {kind: quota, tenant: a, share: 0.5}
  - {kind: quota, tenant: b, gpus: 3, guaranteed: false, borrowable: no, soft: null}
  - {kind: reserve, accelerator: v100, gpus: 2, reserved_for: [a, bert], min_gang: 4}
  - {kind: pin, job: bert, accelerators: [v100, p100]}
  - {kind: pin, job: 7, accelerators: v100}
  - {kind: forbid, job: lstm}
  - {kind: forbid, job: lstm, accelerators: k80}
  - {kind: keep_running}
  - {kind: keep_running, jobs: [bert]}
  - {kind: switch_cost, cost: 0.01}
"""

SAME = (
    gp.MinThroughput("bert", 2.5),
    gp.Deadline(),
    gp.Deadline("bert", 3600).soft(0.5),
    gp.CostBudget(12),
    gp.MaxGpus(4, tenant="a", accelerator="v100"),
    gp.Quota("a", 0.5),
    gp.Quota("b", gpus=3, guaranteed=False, borrowable=False),
    gp.Reserve("v100", 2, ["a", "bert"], 4),
    gp.Pin("bert", ["v100", "p100"]),
    gp.Pin("7", "v100"),
    gp.Forbid("lstm"),
    gp.Forbid("lstm", "k80"),
    gp.KeepRunning(),
    gp.KeepRunning(["bert"]),
    gp.SwitchCost(0.01),
)


@pytest.fixture(autouse=True)
def _cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))


def file(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_every_kind_is_read_from_yaml() -> None:
    assert gp.read_constraints(file("all.yaml", EVERY_KIND)) == SAME
    assert {each.kind for each in SAME} == set(KINDS)


def test_json_has_the_same_content() -> None:
    import yaml

    assert gp.read_constraints(file("all.json", json.dumps(yaml.safe_load(EVERY_KIND)))) == SAME


def test_a_list_may_be_empty() -> None:
    assert gp.read_constraints(file("none.yml", "constraints: []\n")) == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "constraints:\n", "constraints: {kind: deadline}", "7", "quota: 1"])
def test_another_structure_is_refused(text: str) -> None:
    message = "c.yaml, line 1: must be a mapping with the key constraints for a list of constraints"
    assert refusal(gp.read_constraints, file("c.yaml", text)) == message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{job: bert}", "line 2, field kind: is required; one of min_throughput, deadline, cost_budget, max_gpus, quota, reserve, "
         "pin, forbid, keep_running, switch_cost"),
        ("{kind: min_throughputs}",
         "line 2, field kind: 'min_throughputs' is not a kind of constraint; did you mean 'min_throughput'?"),
        ("{kind: [quota]}", "line 2, field kind: ['quota'] is not a kind of constraint; did you mean 'quota'?"),
        ("quota", "line 2: must be a mapping of field to value, found 'quota'"),
        ("null", "line 2: must be a mapping of field to value, found None"),
        ("{kind: quota, tenant: a, share: 1.5}", "line 2 (constraint quota), field share: must be at most 1, found 1.5"),
        ("{kind: quota, tenant: a, share: half}", "line 2 (constraint quota), field share: must be a number, found 'half'"),
        ("{kind: quota, tenant: a, share: yes}", "line 2 (constraint quota), field share: must be a number, found 'yes'"),
        ("{kind: quota, tenant: a, gpu: 1}", "line 2 (constraint quota), field gpu: is not known; did you mean 'gpus'?"),
        ("{kind: quota, tenant: a}", "line 2 (constraint quota): either share (0.5 for half of all GPUs) or gpus must be given"),
        ("{kind: min_throughput, job: null, rate: 1}", "line 2 (constraint min_throughput), field job: is required"),
        ("{kind: max_gpus, tenant: , gpus: 1}",
         "line 2 (constraint max_gpus), field tenant: is empty; give a value, or leave the field out"),
        ("{kind: forbid, job: a, accelerators: null}",
         "line 2 (constraint forbid), field accelerators: is empty; give a value, or leave the field out"),
        ("{kind: cost_budget, per_hour: -3}", "line 2 (constraint cost_budget), field per_hour: must be at least 0, found -3"),
        ("{kind: cost_budget, per_hour: .inf}",
         "line 2 (constraint cost_budget), field per_hour: must be a finite number, found inf"),
        ("{kind: deadline, soft: -1}", "line 2 (constraint deadline), field soft: must be greater than 0, found -1"),
        ("{kind: deadline, penalty: 1}", "line 2 (constraint deadline), field penalty: is not known; use soft instead"),
        ("{kind: pin, job: a, accelerators: k80, soft: 1}",
         "line 2 (constraint pin), field soft: cannot be used with the pin of job 'a' to k80, which either holds or does not"),
        ("{kind: reserve, accelerator: v100, gpus: 1, min_gang: 2.5}",
         "line 2 (constraint reserve), field min_gang: must be a whole number, found 2.5"),
        ("{kind: deadline, job: a, job: b}", "line 2: key 'job' appears twice in one mapping"),
    ],
)  # fmt: skip
def test_wrong_entries_are_refused_with_their_line(entry: str, message: str) -> None:
    assert refusal(gp.read_constraints, file("c.yaml", f"constraints:\n  - {entry}\n")) == f"c.yaml, {message}"


def test_all_faults_come_together_each_on_its_line() -> None:
    text = """\
version: 1
constraints:
  - kind: quota
    tenant: a
    share: 0
    borowable: true
  - {kind: pim, job: a}
  - {kind: deadline, seconds: soon}
"""
    assert refusal(gp.read_constraints, file("c.yaml", text)).splitlines() == [
        "c.yaml, line 1: key 'version' is not known; known: constraints",
        "c.yaml, line 5 (constraint quota), field share: must be greater than 0, found 0",
        "c.yaml, line 6 (constraint quota), field borowable: is not known; did you mean 'borrowable'?",
        "c.yaml, line 7, field kind: 'pim' is not a kind of constraint; did you mean 'pin'?",
        "c.yaml, line 8 (constraint deadline), field seconds: must be a number, found 'soon'",
    ]


def test_json_faults_name_the_entry() -> None:
    text = '{"constraints": [{"kind": "deadline"}, {"kind": "quota", "tenant": "a", "share": 2}]}'
    message = "c.json, line 1, constraints[1] (constraint quota), field share: must be at most 1, found 2"
    assert refusal(gp.read_constraints, file("c.json", text)) == message
    twice = '{"constraints": [], "constraints": []}'
    assert refusal(gp.read_constraints, file("c.json", twice)) == "c.json, line 1: key 'constraints' appears twice in one object"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("c.toml", "c.toml: cannot determine the format from the name; it must end in .yaml, .yml, .json"),
        ("nowhere.yaml", "nowhere.yaml: cannot be read: No such file or directory"),
    ],
)
def test_files_that_cannot_be_read_are_named(name: str, message: str) -> None:
    assert refusal(gp.read_constraints, name) == message


class TestCommand:
    JOBS = "job_id,total_steps,tenant\nbert,240,a\nresnet,60,a\nlstm,60,b\n"
    SPEEDS = "job_id,v100,k80\nbert,4,1\nresnet,2,1\nlstm,1,1\n"

    @pytest.fixture
    def gavel(self, capsys: pytest.CaptureFixture[str]) -> Gavel:
        file("jobs.csv", self.JOBS)
        file("speeds.csv", self.SPEEDS)

        def run(command: str, *arguments: str) -> tuple[int, str, str]:
            done = runner(capsys, command, "jobs.csv", "--cluster", "v100:1,k80:1", "--throughputs", "speeds.csv")(*arguments)
            return done.code, done.out, done.err

        return run

    def test_constraints_of_all_files_hold_for_every_policy(self, gavel: Gavel) -> None:
        limit = file("limit.yaml", "constraints: [{kind: max_gpus, gpus: 1.5}]")
        rate = file("rate.json", '{"constraints": [{"kind": "min_throughput", "job": "lstm", "rate": 0.5}]}')
        policies = ["-p", "max_min_fairness", "-p", "max_total_throughput"]
        code, out, err = gavel("solve", *policies, "--constraints", limit, "--constraints", rate, "--json")
        assert (code, err) == (0, "")
        for document in json.loads(out):
            assert sum(sum(job["time_fractions"].values()) for job in document["jobs"]) == pytest.approx(1.5)
            assert document["jobs"][2]["throughput"] >= 0.5 * (1 - 1e-9)
            assert [each["constraint"] for each in document["constraints"]] == [
                "the limit of 1.5 GPUs",
                "the throughput of 0.5 steps/s for job 'lstm'",
            ]
            assert all(each["kept"] for each in document["constraints"])

    def test_the_table_shows_misses_and_their_cost(self, gavel: Gavel) -> None:
        soft = file("soft.yaml", "constraints: [{kind: deadline, seconds: 60, soft: 0.01}, {kind: max_gpus, gpus: 1}]")
        code, out, _ = gavel("solve", "-p", "max_total_throughput", "--constraints", soft)
        assert code == 0
        rows = [line.split() for line in out.splitlines()]
        assert ["the", "deadlines", "of", "all", "jobs", "in", "60", "s", "no", "2", "0.02", "-"] in rows
        assert ["the", "limit", "of", "1", "GPUs", "yes", "-", "-", "1"] in [[*row[:8], "1"] for row in rows]
        assert "the deadlines of all jobs in 60 s: missed by resnet (100.0%), lstm (100.0%)" in out

    def test_deadlines_that_cannot_be_met_are_missed(self, gavel: Gavel) -> None:
        """bert does 4 of the 8 steps/s that 240 steps in 30 s ask for; 60 steps in 60 s are no trouble alone."""
        soft = file("soft.yaml", "constraints: [{kind: deadline, job: bert, seconds: 30, soft: 1}]")
        past = file("past.yaml", "constraints: [{kind: deadline, job: lstm, seconds: -60, soft: 1}]")
        command = ["solve", "-p", "max_total_throughput", "--constraints", soft, "--constraints", past]
        code, out, _ = gavel(*command, "--json")
        assert code == 0
        near, passed = json.loads(out)["constraints"]
        assert (near["kept"], near["missed_by"]) == (False, pytest.approx(0.5))
        assert (passed["kept"], passed["missed_by"], passed["jobs"]) == (False, 1.0, {"lstm": 1.0})
        out = gavel(*command)[1]
        assert "the deadline of job 'bert' in 30 s: missed by bert (50.0%)" in out
        assert "the deadline of job 'lstm' in -60 s: missed by lstm (100.0%)" in out

    def test_without_constraints_nothing_is_said(self, gavel: Gavel) -> None:
        assert "onstraint" not in gavel("solve")[1]

    def test_rounds_keep_constraints_and_report_them(self, gavel: Gavel) -> None:
        ban = file("pin.yaml", "constraints: [{kind: pin, job: bert, accelerators: k80}]")
        document = json.loads(gavel("rounds", "--constraints", ban, "-n", "3", "--json")[1])
        assert [each["constraint"] for each in document["constraints"]] == ["the pin of job 'bert' to k80"]
        assert all(r["assignments"].get("bert", {"accelerator": "k80"})["accelerator"] == "k80" for r in document["rounds"])

    def test_faults_of_all_files_come_together(self, gavel: Gavel) -> None:
        one, other = file("one.yaml", "constraints: [{kind: deadlin}]"), file("other.json", "[]")
        code, out, err = gavel("solve", "--constraints", one, "--constraints", other)
        assert (code, out) == (2, "")
        assert err.splitlines() == [
            "Error: one.yaml, line 1, field kind: 'deadlin' is not a kind of constraint; did you mean 'deadline'?",
            "other.json, line 1: must be a mapping with the key constraints for a list of constraints",
        ]

    def test_a_conflict_is_no_crash(self, gavel: Gavel) -> None:
        both = "constraints: [{kind: min_throughput, job: bert, rate: 4}, {kind: min_throughput, job: resnet, rate: 2}]"
        code, out, err = gavel("solve", "--constraints", file("both.yaml", both))
        assert (code, out) == (2, "")
        assert err == (
            "Error: these constraints cannot all hold, but would if any one of them were removed or made soft:\n"
            "  the throughput of 4 steps/s for job 'bert'\n"
            "  the throughput of 2 steps/s for job 'resnet'\n"
        )

    def test_an_unknown_job_is_reported_once(self, gavel: Gavel) -> None:
        typo = file("typo.yaml", "constraints: [{kind: forbid, job: lstn}, {kind: quota, tenant: c, share: 0.5}]")
        _, _, err = gavel("solve", "-p", "fifo", "-p", "min_makespan", "--constraints", typo)
        assert sorted(err.splitlines()) == [
            "warning: typo.yaml, line 1 (the ban of job 'lstn'): there is no job 'lstn'; did you mean 'lstm'?",
            "warning: typo.yaml, line 1 (the quota of 0.5 of all GPUs for 'c'): tenant 'c' has no jobs; known: a, b",
        ]
