"""A measured window of jobs has the figures that these jobs have in a simulation of the whole trace."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.commands import Gavel, runner
from tests.support.examples import examples
from tests.support.fakes import refusal

CLUSTER = gp.Cluster.from_inline("v100:4/2,k80:2/2")
NUMBER = st.integers(0, 9)


def job(number: int, arrival: float, steps: float, **fields: Any) -> gp.Job:
    return gp.Job(f"j{number}", arrival_seconds=arrival, total_steps=steps, **fields)


def speeds(count: int) -> Any:
    ids = [f"j{number}" for number in range(count)]
    return gp.ThroughputProfile.from_matrix([[2.0, 1.0]] * count, job_ids=ids, accelerators=["v100", "k80"])


def simulation(trace: Any, count: int = 20, policy: str = "max_min_fairness", **options: Any) -> gp.Simulation:
    return gp.Simulation(trace, CLUSTER, speeds(count), policy, **options)


def some(count: int = 12) -> list[gp.Submission]:
    jobs = (job(n, 150.0 * n, 900 + 200 * (n % 4), num_gpus=1 + n % 3, deadline_seconds=150.0 * n + 1500) for n in range(count))
    return [gp.Submission(each, failed_attempts=int(n % 4 == 1)) for n, each in enumerate(jobs)]


def told(summary: gp.Summary) -> dict[str, Any]:
    """The summary without computing times."""
    return replace(summary, solver_seconds=0.0, wall_seconds=0.0).to_dict()


@st.composite
def traces(draw: st.DrawFn) -> list[gp.Submission]:
    found, arrival = [], 0.0
    for number in range(10):
        arrival += draw(st.sampled_from([0.0, 40.0, 300.0, 360.0, 2000.0]))
        fields = {
            "num_gpus": draw(st.sampled_from([1, 1, 2, 4])),
            "max_retries": 1,
            "deadline_factor": draw(st.sampled_from([None, 2])),
        }
        fields["steps_done"] = draw(st.sampled_from([0.0, 0.0, 0.0, 100.0]))
        cancelled = draw(st.sampled_from([None, None, arrival + 500.0]))
        each = job(number, arrival, draw(st.floats(100, 4000)), **fields)
        found.append(gp.Submission(each, cancelled_seconds=cancelled, failed_attempts=draw(st.integers(0, 2))))
    return found


@pytest.mark.deep
@settings(max_examples=examples(40, costly=True), suppress_health_check=[HealthCheck.too_slow])
@given(
    trace=traces(),
    window=st.tuples(NUMBER, NUMBER).map(lambda ends: (min(ends), max(ends) + 1)),
    policy=st.sampled_from(["max_min_fairness", "fifo", "isolated"]),
    by_events=st.booleans(),
    failing=st.booleans(),
    between=st.booleans(),
)
def test_measured_figures_equal_those_of_the_jobs_in_a_full_run(
    trace: list[gp.Submission], window: tuple[int, int], policy: str, by_events: bool, failing: bool, between: bool
) -> None:
    options: dict[str, Any] = {"seed": 1, "restart_seconds": 20.0, "starts_between_rounds": between and not by_events}
    if by_events:
        policy, options["round_seconds"] = "fifo", None
    if failing:
        options |= {"job_failures": "recorded", "node_failures": gp.NodeFailures(4000, 700)}
    whole = simulation(trace, policy=policy, **options)
    clock = [(whole.now, whole.used_gpu_seconds, 0)]
    gone: list[gp.JobRecord] = []
    ids = [each.job.job_id for each in trace]
    first, last = window[0], window[1] - 1
    begins = ends = None
    while whole.step():
        gone += [record for record in whole.records.values() if record not in gone]
        left = {record.job_id for record in gone}
        there = left | {record.job_id for record in whole.result().jobs.values()}
        begins = len(clock) - 1 if begins is None and ids[first] in there else begins
        ends = len(clock) if ends is None and left.issuperset(ids[first : last + 1]) else ends
        clock.append((whole.now, whole.used_gpu_seconds, len(there)))
    full = whole.result()
    ends = len(clock) - 1 if ends is None else ends
    measured = gp.simulate(trace, CLUSTER, speeds(20), policy, measure_jobs=window, **options)
    summary = measured.summary

    expected = [full.jobs[each] for each in ids[first : last + 1]]
    records = [measured.jobs[each] for each in ids[first : last + 1]]
    assert records == expected
    assert {each for each, record in measured.jobs.items() if record.measured} == set(ids[first : last + 1])
    finished = [record for record in expected if record.outcome is gp.Outcome.FINISHED]
    assert summary.jct.count == len(finished) == len(expected) - summary.unfinished
    if finished:
        assert summary.jct.mean == pytest.approx(sum(record.jct_seconds or 0 for record in finished) / len(finished))
        assert summary.queueing.mean == pytest.approx(sum(record.queueing_seconds for record in finished) / len(finished))
    for name in ("starts", "preemptions", "failures"):
        assert getattr(summary, name) == sum(getattr(record, name) for record in expected)
    assert summary.late == sum(bool(record.late_seconds) for record in expected)
    stopped = [record.end_seconds for record in expected if record.end_seconds is not None]
    if len(stopped) == len(expected):
        assert summary.makespan_seconds == pytest.approx(max(stopped) - trace[first].job.arrival_seconds)
    assert summary.promised_gpu_seconds == pytest.approx(sum(record.promised_seconds * record.num_gpus for record in expected))
    # GPUs are measured from the round in which the first measured job is submitted to the one in which the last one leaves.
    assert begins is not None
    (start, used_before, _), (end, used_after, _) = clock[begins], clock[ends]
    seconds = end - start
    for index, (name, gpus) in enumerate(zip(CLUSTER.accelerator_names, CLUSTER.capacities, strict=True)):
        usage = summary.usage[name]
        assert usage["gpu_seconds"] == pytest.approx(gpus * seconds)
        assert usage["used"] == pytest.approx(used_after[index] - used_before[index], abs=1e-6)
        assert usage["used"] + usage["idle"] + usage["down"] == pytest.approx(usage["gpu_seconds"], abs=1e-6)


def test_four_jobs_by_hand() -> None:
    """Two GPUs, fifo, one step a second: jobs of 100 s arrive every 50 s, and none waits."""
    jobs = [gp.Job(f"j{n}", arrival_seconds=50.0 * n, total_steps=100) for n in range(6)]
    profile = gp.ThroughputProfile.from_matrix([[1.0]] * 6, job_ids=[each.job_id for each in jobs], accelerators=["v100"])
    cluster = gp.Cluster.from_inline("v100:2")
    result = gp.simulate(jobs, cluster, profile, "fifo", round_seconds=None, measure_jobs=(1, 3))
    summary = result.summary
    assert (summary.jct.count, summary.jct.mean, summary.unfinished, summary.makespan_seconds) == (2, 100, 0, 150)
    assert summary.outcomes == {"finished": 2, "failed": 0, "cancelled": 0, "active": 0}
    # from 50 to 200: both GPUs are held all the time
    assert summary.usage["v100"] == {"gpu_seconds": 300, "used": 300, "idle": 0, "down": 0, "utilization": 1}
    assert (summary.measure_jobs, summary.ended_after_arrivals) == ((1, 3), 0)
    assert {each: record.measured for each, record in result.jobs.items()} == {
        "j0": False, "j1": True, "j2": True, "j3": False
    }  # fmt: skip


def test_without_a_window_all_jobs_are_measured() -> None:
    summary = simulation(some()).run().summary
    everything = simulation(some(), measure_jobs=(0, 12)).run().summary
    assert told(summary) == told(replace(everything, measure_jobs=None, ended_after_arrivals=0))
    assert (summary.measure_jobs, summary.unfinished, everything.measure_jobs) == (None, 0, (0, 12))
    assert everything.ended_after_arrivals > 0


def test_arrivals_continue_until_all_measured_jobs_have_ended() -> None:
    taken = []

    def endless() -> Iterator[gp.Job]:
        for number in itertools.count():
            taken.append(number)
            yield job(number, 100.0 * number, 4000 if number == 5 else 200)

    result = simulation(endless(), 1000, measure_jobs=(4, 8)).run()
    last = max(record.end_seconds or 0 for record in result.jobs.values() if record.measured)
    assert result.jobs["j5"].end_seconds == last > 2000
    assert last - 360 <= 100 * taken[-1] <= last + 100  # jobs that arrive within the last round are not taken
    assert result.summary.ended_after_arrivals == 0


def test_the_simulation_ends_with_the_last_measured_job() -> None:
    played = simulation(some(), measure_jobs=(0, 2))
    before = told(played.run().summary)
    assert played.active > 0
    assert (played.step(), told(played.run().summary)) == (False, before)


def test_before_the_first_measured_job_nothing_is_measured() -> None:
    summary = simulation(some(), measure_jobs=(6, 8)).run(until_seconds=400).summary
    assert (sum(summary.outcomes.values()), summary.unfinished, summary.makespan_seconds) == (0, 2, 0)
    assert {usage["gpu_seconds"] for usage in summary.usage.values()} == {0}
    assert (summary.job_rounds, summary.spread_job_rounds) == (0, 0)
    assert summary.rounds > 0


def test_unfinished_jobs_are_counted() -> None:
    trace = some(8)
    trace[3] = gp.Submission(job(3, 450.0, 500, num_gpus=64))  # never fits
    trace[4] = gp.Submission(job(4, 600.0, 5e4), cancelled_seconds=1000)
    played = simulation(trace, measure_jobs=(3, 6)).run()
    assert played.summary.outcomes == {"finished": 1, "failed": 0, "cancelled": 1, "active": 1}
    assert (played.summary.unfinished, played.summary.jct.count) == (2, 1)
    assert played.jobs["j3"].reason
    early = simulation(some(), measure_jobs=(3, 9)).run(until_seconds=1000).summary
    assert early.unfinished == 6 - early.outcomes["finished"]
    assert sum(early.outcomes.values()) < 6


@pytest.mark.parametrize("window", [(2, 12), (5, 9), (11, 12)])
def test_too_few_jobs(window: tuple[int, int]) -> None:
    simulation(some(12), measure_jobs=window).run()
    text = f"simulation, field measure_jobs: must end within the trace, which has {{}} jobs, found {window[0]}:{window[1]}"
    short = some(window[1] - 1)
    assert refusal(lambda: simulation(short, measure_jobs=window)) == text.format(len(short))
    # The length of a generator is known only at its end, after its jobs have been simulated.
    assert refusal(simulation(iter(short), measure_jobs=window).run) == text.format(len(short))
    assert refusal(lambda: simulation(iter([]), measure_jobs=window)) == text.format(0)


@pytest.mark.parametrize("window", [(3, 3), (4, 3), (-1, 3), (0,), (0, 1, 2), (0.5, 3), "0:3", 3, (True, 3), ("0", "3")])
def test_invalid_windows_are_refused(window: Any) -> None:
    assert refusal(lambda: simulation(some(), measure_jobs=window)) == (
        "simulation, field measure_jobs: must be two whole numbers, the first job by arrival (from 0) and the one after the last, "
        f"as in (4000, 5000), found {window!r}"
    )


@pytest.mark.deep
def test_a_loaded_simulation_continues_measuring(tmp_path: Path) -> None:
    options: dict[str, Any] = {"measure_jobs": [3, 7], "node_failures": gp.NodeFailures(4000, 700), "job_failures": "recorded"}
    whole = simulation(some(), **options).run()
    played = simulation(some(), **options)
    steps = 0
    while played.step():
        played.save(tmp_path / "state")
        played = gp.Simulation.load(tmp_path / "state", iter(some()), speeds(20))
        steps += 1
    assert steps > 5
    assert played.measure_jobs == (3, 7)
    assert told(played.result().summary) == told(whole.summary)
    assert played.result().jobs == whole.jobs
    saved = gp.SimulationResult.from_dict(json.loads(json.dumps(whole.to_dict())))
    assert (saved.summary, saved.jobs) == (whole.summary, whole.jobs)
    refused = refusal(lambda: gp.Simulation.load(tmp_path / "state", some(6), speeds(20)))
    assert refused.endswith("must end within the trace, which has 6 jobs, found 3:7")


def test_finish_time_fairness_is_of_the_measured_jobs() -> None:
    window = (3, 8)
    isolated = simulation(some(), policy="isolated", measure_jobs=window).run()
    result = simulation(some(), measure_jobs=window).run()
    assert sorted(result.finish_time_fairness(isolated)) == [f"j{number}" for number in range(*window)]


def test_a_run_is_of_the_measured_jobs() -> None:
    options: dict[str, Any] = {"measure_jobs": (3, 8)}
    isolated = {f"j{number}": 1000.0 for number in range(12)}
    result = simulation(some(), **options).run()
    run = gp.record_run(some(), CLUSTER, speeds(20), labels={"seed": 3}, isolated=isolated, stays=True, **options)
    assert run.labels == {"policy": "max_min_fairness", "seed": 3, "measure_jobs": "3:8"}
    assert (run.metrics["mean_jct_seconds"], len(run.jct_seconds), len(run.fairness)) == (result.summary.jct.mean, 5, 5)
    assert (run.metrics["unfinished"], run.metrics["finished"]) == (0, 5)
    measured = [record for record in result.jobs.values() if record.measured]
    parts = sum(record.running_seconds for record in measured) / sum(record.jct_seconds or 0 for record in measured)
    assert sum(run.shares[""].values()) == pytest.approx(parts)
    # stays and curves are of all jobs
    assert {stay.job_id for stay in run.stays} > {record.job_id for record in measured}
    assert run.over_time is not None
    assert run.over_time.seconds[0] == 0
    assert "unfinished" not in gp.record_run(some(), CLUSTER, speeds(20)).metrics


TRACE = "job_id,num_gpus,total_steps,arrival_seconds\n" + "".join(
    f"j{n},{1 + n % 3},{900 + 200 * (n % 4)},{150 * n}\n" for n in range(12)
)
SPEEDS = "job_id,v100,k80\n" + "".join(f"j{n},2,1\n" for n in range(12))


class TestCommand:
    @pytest.fixture
    def simulate(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gavel:
        monkeypatch.chdir(tmp_path)
        Path("jobs.csv").write_text(TRACE)
        Path("speeds.csv").write_text(SPEEDS)
        return runner(capsys, "simulate", "jobs.csv", "-c", "v100:4/2,k80:2/2", "--throughputs", "speeds.csv")

    def test_the_output_names_the_window(self, simulate: Gavel) -> None:
        window = ("--measure-jobs", "3:8", "-p", "max_min_fairness", "-p", "isolated")
        rows = {
            tuple(line.split("  ")[1:2]): line.split()[-2:] for line in simulate(*window).out.splitlines() if line.startswith("  ")
        }
        assert rows["jobs measured",] == ["5", "5"]
        assert rows["jobs finished",] == ["5", "5"]
        assert rows["measured jobs not finished",] == ["0", "0"]
        document = json.loads(simulate(*window, "--json", "--jobs-out", "done.csv").out)
        assert document["settings"]["measure_jobs"] == [3, 8]
        result = gp.simulate(
            gp.read_trace("jobs.csv"), CLUSTER, gp.ThroughputProfile.from_matrix("speeds.csv"), measure_jobs=(3, 8)
        )
        summary = document["policies"][0]["summary"]
        assert summary["jct"] == result.summary.jct.to_dict()
        assert (summary["measure_jobs"], summary["unfinished"]) == ([3, 8], 0)
        assert document["policies"][0]["finish_time_fairness"]["jobs"] == 5
        header, *lines = Path("done.csv").read_text().splitlines()
        assert header.endswith(",reason,measured")
        flags = {line.split(",")[1]: line.split(",")[-1] for line in lines if line.startswith("max")}
        assert {each for each, flag in flags.items() if flag == "True"} == {f"j{number}" for number in range(3, 8)}
        assert set(flags.values()) == {"True", "False"}
        table = simulate(*window, "--csv").out.splitlines()[0].split(",")
        assert {"measured", "unfinished", "ended_after_arrivals"} <= set(table)

    def test_without_a_window_the_output_does_not_mention_it(self, simulate: Gavel) -> None:
        assert "measured" not in simulate("--jobs-out", "done.csv").out
        assert {line.split(",")[-1] for line in Path("done.csv").read_text().splitlines()[1:]} == {"True"}
        assert "measured" not in simulate("--csv").out
        assert json.loads(simulate("--json").out)["settings"]["measure_jobs"] is None

    def test_a_measured_simulation_continues_from_its_state(self, simulate: Gavel) -> None:
        window = ("--measure-jobs", "3:8", "--csv")
        whole = simulate(*window, "--jobs-out", "whole.csv")
        simulate(*window, "--until", "1200", "--save-state", "state", "--state-every", "1round", "--jobs-out", "part.csv")
        again = simulate(*window, "--continue", "state", "--jobs-out", "part.csv")
        (told,), (expected,) = ([*csv.DictReader(io.StringIO(outcome.out))] for outcome in (again, whole))
        clocks = {"solver_seconds", "wall_seconds"}
        assert {name: told[name] for name in expected.keys() - clocks} == {
            name: expected[name] for name in expected.keys() - clocks
        }
        assert Path("part.csv").read_text() == Path("whole.csv").read_text()
        other = simulate("--measure-jobs", "2:8", "--continue", "state", "--jobs-out", "part.csv")
        assert "field measure_jobs: was [3, 8] when the state was saved, but is [2, 8] now" in other.err

    @pytest.mark.parametrize(
        ("window", "said"),
        [
            ("4000:5000", "field measure_jobs: must end within the trace, which has 12 jobs, found 4000:5000"),
            ("5000", "'5000' is not of the form FIRST:END"),
            ("5:5", "'5:5' is not of the form FIRST:END"),
            ("8:5", "is not of the form FIRST:END"),
            ("-1:5", "is not of the form FIRST:END"),
            ("a:b", "is not of the form FIRST:END"),
        ],
    )
    def test_invalid_windows_on_the_command_line(self, simulate: Gavel, window: str, said: str) -> None:
        outcome = simulate("--measure-jobs", window, "--jobs-out", "done.csv")
        assert (outcome.code, outcome.out) == (2, "")
        assert said in outcome.err
        assert not Path("done.csv").exists()
