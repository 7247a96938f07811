"""Durations and dates on the command line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written

SMALL = ["jobs.csv", "-c", "v100:1", "--throughputs", "speeds.csv"]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    written("speeds.csv", "job_id,v100\na,4\nb,2\n")
    written("jobs.csv", "job_id,total_steps,deadline\na,100,2026-12-03T08:00+01:00\nb,100,1d12h\n")
    return runner(capsys)


def test_dates_count_from_now(gavel: Gavel) -> None:
    def deadlines(*more: str) -> dict[str, str]:
        outcome = gavel("solve", *SMALL, "--csv", *more)
        assert outcome.code == 0
        return {row["job_id"]: row["deadline"] for row in csv.DictReader(io.StringIO(outcome.out))}

    assert deadlines("--now", "2026-12-02T20:00Z") == {"a": "39600.0", "b": "129600.0"}
    assert deadlines("--now", "2026-12-01T07:00+00:00") == {"a": "172800.0", "b": "129600.0"}
    late = gavel("solve", *SMALL, "--now", "2026-12-03T09:00+01:00")
    assert late.code == 2
    assert "jobs.csv, line 2 (job 'a'), field deadline: has passed: 2026-12-03T08:00+01:00 is 1.0 h before" in late.err
    wrong = gavel("solve", *SMALL, "--now", "noon")
    assert "Invalid value for '--now': 'noon' is not a date such as 2026-12-01T08:00+01:00" in wrong.err
    assert gavel("explain", "b", *SMALL, "--now", "2026-12-02T20:00Z").out.startswith("b meets its deadline at this speed")
    assert gavel("rounds", *SMALL, "--until-done", "--now", "2026-12-02T20:00Z").code == 0


def test_options_in_seconds_take_durations(gavel: Gavel) -> None:
    written("jobs.csv", "job_id,total_steps\na,10000\nb,5000\n")
    for given, same in {"2h": "7200", "1h 30m": "5400", "90s": "90"}.items():
        one, other = (gavel("rounds", *SMALL, "-n", "2", "--csv", "--round-seconds", each).out for each in (given, same))
        assert one == other
        assert f"1,{float(same)}," in one
    wrong = gavel("rounds", *SMALL, "--round-seconds", "2x")
    assert wrong.code == 2
    assert "'2x' is not a valid number of seconds, or duration such as 2d4h" in wrong.err
    assert gavel("solve", *SMALL, "--time-limit", "1m").code == 0
    options = gp.SchedulerOptions(round_seconds="2m", restart_seconds="1m30s")  # type: ignore[arg-type]
    assert (options.round_seconds, options.restart_seconds) == (120, 90)


def test_constraints_and_traces_take_durations(gavel: Gavel) -> None:
    rules = written("rules.yaml", "constraints:\n  - {kind: deadline, job: a, seconds: 1m}\n")
    given = [*SMALL, "--now", "2026-12-02T20:00Z", "-p", "min_makespan"]
    one = gavel("solve", *given, "--constraints", rules).out
    assert "the deadline of job 'a' in 60 s" in one
    trace = written("trace.csv", "job_id,total_steps,arrival_seconds,deadline\na,100,0,30s\nb,1000,10m,2h\n")
    found = [each.job for each in gp.read_trace(trace)]
    assert [(job.arrival_seconds, job.deadline_seconds) for job in found] == [(0, 30), (600, 7200)]
    outcome = gavel("simulate", trace, *SMALL[1:], "--round-seconds", "30s")
    assert "deadlines met" in outcome.out
