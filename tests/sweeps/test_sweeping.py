"""Results of sweeps: rows, runs and the store; cells that fail, and processes that die."""

from __future__ import annotations

import csv
import os
import sqlite3
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.sweeps import dispatcher
from gavel_py.sweeps.dispatcher import PAUSE_SECONDS, ExecutorError
from gavel_py.sweeps.planning import DurationEstimate
from tests.support.profiles import OSDI
from tests.sweeps.support import Dying, Failing, Leaving, simulations, solves, timeless


@pytest.fixture(scope="module")
def threads() -> ThreadPoolExecutor:
    """An executor of threads, for cells that do not kill their process; it starts no processes."""
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.guard
def test_a_cell_equals_the_simulation(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    spec = simulations("fifo", "max_min_fairness", seeds=1, round_seconds=[360, 720], results=str(tmp_path / "s.sqlite"))
    rows = gp.sweep(spec, executor=threads)
    assert [(row["policy"], row["round_seconds"]) for row in rows] == [
        ("fifo", 360),
        ("max_min_fairness", 360),
        ("fifo", 720),
        ("max_min_fairness", 720),
    ]
    trace = gp.generate_trace(
        8, OSDI, jobs_per_hour=4, gang_mix={1: 0.5, 2: 0.5}, durations=gp.LogUniform(((1, 600, 7200),)), seed=0
    )
    cluster = gp.Cluster.from_counts({"v100": 4, "k80": 4})
    runs = gp.read_runs(tmp_path / "s.sqlite")
    for row, run in zip(rows, runs, strict=True):
        alone = gp.record_run(trace, cluster, OSDI, row["policy"], round_seconds=row["round_seconds"])
        assert run.labels == {name: row[name] for name in ("policy", "trace", "load", "cluster", "seed", "round_seconds")}
        assert timeless([run.metrics]) == timeless([alone.metrics])
        assert run.shares == alone.shares
        np.testing.assert_array_equal(run.jct_seconds, alone.jct_seconds)
        assert run.over_time is not None
        assert alone.over_time is not None
        for part in ("used", "prices"):
            for name, curve in getattr(alone.over_time, part).items():
                np.testing.assert_array_equal(getattr(run.over_time, part)[name], curve)


@pytest.mark.deep
def test_a_window_of_jobs_is_measured_in_each_cell(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    spec = simulations("fifo", "max_min_fairness", seeds=1, fairness=True, results=str(tmp_path / "s.sqlite"))
    rows = gp.sweep(spec, executor=threads, measure_jobs=(2, 6))
    trace = gp.generate_trace(
        8, OSDI, jobs_per_hour=4, gang_mix={1: 0.5, 2: 0.5}, durations=gp.LogUniform(((1, 600, 7200),)), seed=0
    )
    cluster = gp.Cluster.from_counts({"v100": 4, "k80": 4})
    isolated = gp.simulate(trace, cluster, OSDI, "isolated", measure_jobs=(2, 6))
    for row, run in zip(rows, gp.read_runs(tmp_path / "s.sqlite"), strict=True):
        result = gp.simulate(trace, cluster, OSDI, row["policy"], measure_jobs=(2, 6))
        ratios = result.finish_time_fairness(isolated)
        assert (row["measure_jobs"], row["finished"], row["unfinished"]) == ("2:6", 4, 0)
        assert row["mean_jct_seconds"] == result.summary.jct.mean
        assert row["finish_time_fairness"] == pytest.approx(sum(ratios.values()) / 4)
        assert run.labels["measure_jobs"] == "2:6"
        assert (len(run.jct_seconds), len(run.fairness)) == (4, 4)
    # Another window makes other cells; without one, rows have no such column.
    assert gp.plan_sweep(spec, measure_jobs=(2, 6)).kept()["done"] == 3
    assert gp.plan_sweep(spec, measure_jobs=(2, 7)).kept()["done"] == 0
    assert "measure_jobs" not in gp.sweep(spec, executor=threads)[0]


def test_a_static_cell_equals_solve(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    rows = gp.sweep(solves("max_min_fairness", "fifo", seeds=1), executor=threads, results=str(tmp_path / "s.sqlite"))
    trace = gp.generate_trace(5, OSDI, jobs_per_hour=None, gang_mix={1: 0.5, 2: 0.5}, seed=0)
    problem = gp.AllocationProblem.from_jobs(trace.jobs, gp.Cluster.from_counts({"v100": 4, "k80": 4}), OSDI)
    allocation = gp.solve(problem, "max_min_fairness")
    assert rows[0]["objective"] == pytest.approx(allocation.objective_value)
    assert rows[1]["objective"] is None
    shares = gp.read_runs(tmp_path / "s.sqlite")[0].shares
    types = {submission.job.job_id: submission.job.job_type for submission in trace}
    for name, share in shares.items():
        of_type = [types[job_id] == name for job_id in allocation.job_ids]
        assert list(share.values()) == pytest.approx(allocation.time_fractions[of_type].mean(axis=0).tolist())


@pytest.mark.deep
def test_policies_with_and_without_sharing_run_side_by_side(threads: ThreadPoolExecutor) -> None:
    shared = {"policy": "max_min_fairness", "sharing": True}
    spec = simulations("fifo", "max_min_fairness", shared, seeds=1, fairness=True, settings={"min_gain": 1.1})
    spec["clusters"] = [{"v100": 2}]
    rows = {row["policy"]: row for row in gp.sweep(spec, executor=threads)}
    assert list(rows) == ["fifo", "max_min_fairness", "max_min_fairness, sharing"]
    trace = gp.generate_trace(
        8, OSDI, jobs_per_hour=4, gang_mix={1: 0.5, 2: 0.5}, durations=gp.LogUniform(((1, 600, 7200),)), seed=0
    )
    cluster = gp.Cluster.from_counts({"v100": 2})
    for label, settings in {"max_min_fairness": {}, "max_min_fairness, sharing": {"sharing": True, "min_gain": 1.1}}.items():
        alone = gp.simulate(trace, cluster, OSDI, "max_min_fairness", **settings)
        assert rows[label]["mean_jct_seconds"] == alone.summary.jct.mean
    assert rows["max_min_fairness"]["mean_jct_seconds"] != rows["max_min_fairness, sharing"]["mean_jct_seconds"]
    # Without sharing, min_gain has no effect and makes no other cells.
    plain = (
        gp.plan_sweep(simulations("fifo", seeds=1)),
        gp.plan_sweep(simulations("fifo", shared, seeds=1, settings={"min_gain": 1.1})),
    )
    assert plain[0]._cells[0].key == plain[1]._cells[0].key


def test_a_static_cell_with_sharing_equals_solve(threads: ThreadPoolExecutor) -> None:
    spec = solves("max_min_fairness", {"policy": "max_min_fairness", "sharing": False, "name": "alone"}, seeds=1)
    rows = gp.sweep(spec, executor=threads, settings={"sharing": True, "min_gain": 1.2})
    trace = gp.generate_trace(5, OSDI, jobs_per_hour=None, gang_mix={1: 0.5, 2: 0.5}, seed=0)
    given = trace.jobs, gp.Cluster.from_counts({"v100": 4, "k80": 4}), OSDI
    problems = [gp.AllocationProblem.from_jobs(*given, sharing=sharing, min_gain=1.2) for sharing in (True, False)]
    assert [row["objective"] for row in rows] == pytest.approx([gp.solve(each).objective_value for each in problems])


@pytest.mark.deep
def test_fractions_of_gpus_interfere_as_in_a_simulation(threads: ThreadPoolExecutor) -> None:
    jobs = [gp.Job(f"j{n}", job_type="A3C", num_gpus=0.5, total_steps=1e5) for n in range(2)]
    spec = {"policies": "fifo", "traces": [gp.Trace(map(gp.Submission, jobs))], "clusters": "v100:1"}
    slow, fast = (gp.sweep(spec, executor=threads, settings=each)[0] for each in ({"interference": 0.5}, {}))
    alone = gp.simulate(jobs, gp.Cluster.from_counts({"v100": 1}), OSDI, "fifo", interference=0.5)
    assert slow["mean_jct_seconds"] == alone.summary.jct.mean
    assert slow["mean_jct_seconds"] == pytest.approx(2 * float(str(fast["mean_jct_seconds"])))


@pytest.mark.deep
def test_fairness_is_relative_to_isolated_which_runs_once(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    spec = simulations("fifo", "isolated", seeds=2, fairness=True, results=str(tmp_path / "s.sqlite"))
    plan = gp.plan_sweep(spec)
    assert (len(plan), plan.yardsticks, len(plan.labels)) == (6, 2, 4)
    rows = plan.play(threads)
    assert len(rows) == 4
    fifo, isolated = gp.read_runs(tmp_path / "s.sqlite")[:2]
    assert (isolated.fairness == 1).all()
    assert fifo.metrics["finish_time_fairness"] == pytest.approx(fifo.fairness.mean())
    assert len(fifo.fairness) == 8


def test_equal_cells_run_once(threads: ThreadPoolExecutor) -> None:
    """A trace without random draws is the same for all seeds, and a policy with two names is one."""
    trace = gp.Trace([gp.Submission(gp.Job("a", job_type="ResNet-50 (batch size 64)", total_steps=1e5))])
    spec = simulations("fifo", {"policy": "fifo", "name": "first"}, seeds=3, traces=[trace], loads=None)
    plan = gp.plan_sweep(spec)
    assert len(plan) == 1
    rows = plan.play(threads)
    assert [(row["policy"], row["seed"]) for row in rows] == [("fifo", None), ("first", None)]
    assert len({row["mean_jct_seconds"] for row in rows}) == 1


@pytest.mark.deep
def test_a_failed_cell_has_its_error_and_the_others_continue(tmp_path: Path) -> None:
    spec = solves("fifo", Failing(), "isolated", Leaving()) | {"results": str(tmp_path / "s.sqlite")}
    rows = gp.sweep(spec, workers=1)
    said = {row["policy"]: (row["status"], (row["error"] or "").splitlines()[-1:]) for row in rows}
    assert said == {
        "fifo": ("done", []),
        "failing": ("failed", ["ValueError: a slip"]),
        "isolated": ("done", []),
        "leaving": ("failed", ["SystemExit: 3"]),
    }
    assert [run.labels["policy"] for run in gp.read_runs(spec["results"])] == ["fifo", "isolated"] * 3
    told = []
    again = gp.sweep(spec, on_progress=told.append)
    assert again == rows  # no cell was run again, not even the failed one
    assert [(each.done, each.failed, each.kept, each.left) for each in told] == [(6, 6, 12, 0)]
    assert timeless(gp.sweep(spec, workers=1, retry_failed=True)) == timeless(rows)


def test_a_cell_that_ended_just_before_an_interrupt_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes when the second cell is submitted, which waits for the first; by themselves, results wait for longer."""

    class Interrupted(ThreadPoolExecutor):
        calls = 0

        def submit(self, *args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().submit(*args, **options)

    monkeypatch.setattr(dispatcher, "PAUSE_SECONDS", 600.0)
    spec = simulations("fifo", seeds=1, fairness=True, results=str(tmp_path / "s.sqlite"))
    with Interrupted(1) as executor, pytest.raises(KeyboardInterrupt):
        gp.sweep(spec, executor=executor)
    assert gp.plan_sweep(spec).kept() == {"done": 1, "failed": 0}


@pytest.mark.guard
def test_failed_cells_remain_only_if_they_are_retried(tmp_path: Path) -> None:
    plan = gp.plan_sweep(solves(Failing(), seeds=2) | {"results": str(tmp_path / "s.sqlite")})
    assert plan.estimate(8).workers == 2  # no more processes than cells
    plan.play(workers=1)
    assert plan.estimate(8) == DurationEstimate(0.0, 1, "nothing is left")
    assert plan.estimate(8, retry_failed=True).cell_seconds > 0


@pytest.mark.parametrize("policy", [Failing(), Leaving()])
def test_a_policy_that_fails_does_not_stop_the_estimate(policy: gp.Policy) -> None:
    assert 0 < gp.plan_sweep(simulations(policy, seeds=1)).estimate(1).cell_seconds < 60


@pytest.mark.filterwarnings("error::gavel_py.GavelWarning")
def test_warnings_of_the_plan_are_not_repeated_by_the_estimate() -> None:
    clusters = [{"v100": gpus, "t4": 1} for gpus in range(1, 13)]
    with pytest.warns(gp.GavelWarning, match="1 GPU is ignored"):
        plan = gp.plan_sweep(simulations("fifo", seeds=1, clusters=clusters), allow_unknown_types=True)
    assert plan.estimate(1).cell_seconds > 0


def test_progress_is_reported_at_most_ten_times_a_second(threads: ThreadPoolExecutor) -> None:
    told: list[gp.Progress] = []
    gp.sweep(solves(seeds=25), executor=threads, on_progress=told.append)
    assert (told[-1].done, told[-1].left) == (50, 0)
    assert len(told) <= told[-1].seconds / PAUSE_SECONDS + 3  # plus those at the beginning and at the end


@pytest.mark.deep
@pytest.mark.parametrize(("times", "status", "attempts"), [(1, "done", 2), (2, "failed", 2)])
def test_the_cell_of_a_dead_process_is_tried_once_more(times: int, status: str, attempts: int, tmp_path: Path) -> None:
    dying = Dying(mark=str(tmp_path / "mark"), times=times)
    rows = gp.sweep(solves("fifo", dying, "isolated", seeds=1) | {"seeds": [0, 1]}, workers=2)
    found = {(row["policy"], row["seed"]): (row["status"], row["attempts"]) for row in rows}
    died = {key: value for key, value in found.items() if value != ("done", 1)}
    assert all(policy.startswith("dying") for policy, _ in died)
    assert sum(number - 1 for _, number in died.values()) == (1 if times == 1 else len(died))
    if times == 1:
        assert list(died.values()) == [(status, attempts)]
    else:  # the two deaths may have met one cell twice, or two cells once
        assert sorted(died.values()) in ([("failed", 2)], [("done", 2), ("done", 2)])


@pytest.mark.deep
def test_a_cell_whose_process_dies_each_time_fails(tmp_path: Path) -> None:
    rows = gp.sweep(solves("fifo", Dying(mark=str(tmp_path / "mark")), "isolated", seeds=1), workers=2)
    found = {(row["policy"].partition(",")[0], row["status"], row["attempts"]) for row in rows}
    assert found == {("fifo", "done", 1), ("dying", "failed", 2), ("isolated", "done", 1)}
    assert {row["error"] for row in rows if row["status"] == "failed"} == {
        "its process died 2 times: it was killed, ran out of memory, or crashed"
    }


@pytest.mark.deep
def test_a_broken_executor_of_the_user_is_an_error_and_the_sweep_can_be_continued(tmp_path: Path) -> None:
    spec = solves("fifo", Dying(mark=str(tmp_path / "mark"), times=1), seeds=2) | {"results": str(tmp_path / "s.sqlite")}
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own,
        pytest.raises(ExecutorError, match="run the same sweep again to continue"),
    ):
        gp.sweep(spec, executor=own)
    assert [row["status"] for row in gp.sweep(spec, workers=1)] == ["done"] * 4


@pytest.mark.deep
def test_a_changed_spec_keeps_stored_cells_and_returns_its_own(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sqlite")
    first = gp.sweep(solves("fifo", "isolated", seeds=2), executor=threads, results=path)
    told: list[gp.Progress] = []
    second = gp.sweep(solves("isolated", "proportional", seeds=2), executor=threads, results=path, on_progress=told.append)
    assert (told[0].kept, told[0].total) == (2, 4)
    assert [row["policy"] for row in second] == ["isolated", "proportional"] * 2
    assert [run.labels["policy"] for run in gp.read_runs(path)] == ["isolated", "proportional"] * 2
    told.clear()
    assert gp.sweep(solves("fifo", "isolated", seeds=2), executor=threads, results=path, on_progress=told.append) == first
    assert told[0].left == 0


def test_a_changed_input_file_makes_another_cell(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    spec = simulations("fifo", seeds=1, traces=[str(trace)], loads=None, results=str(tmp_path / "s.sqlite"))
    jcts = []
    for steps in (100_000, 200_000):
        trace.write_text(f"job_id,job_type,total_steps\na,ResNet-50 (batch size 64),{steps}\n")
        jcts += [row["mean_jct_seconds"] for row in gp.sweep(spec, executor=threads)]
    assert jcts[1] == pytest.approx(2 * jcts[0])


def test_the_store_records_the_spec_and_the_versions(threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    gp.sweep(solves("fifo", seeds=1), executor=threads, results=str(tmp_path / "s.sqlite"))
    connection = sqlite3.connect(tmp_path / "s.sqlite")
    ((spec, versions),) = connection.execute("SELECT spec, versions FROM sessions").fetchall()
    ((content,),) = connection.execute("SELECT content FROM cells").fetchall()
    connection.close()
    assert '"policies": ["fifo"]' in spec
    assert f'"gavel-py": "{gp.__version__}"' in versions
    assert "highspy" in versions
    assert '"seed":0' in content


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
@pytest.mark.parametrize("spec", [solves("fifo", Failing(), seeds=1), simulations("fifo", seeds=1, measure_jobs=[1, 4])])
def test_rows_are_tables(name: str, spec: dict[str, Any], threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    rows = gp.sweep(spec, executor=threads)
    gp.write_table(tmp_path / name, rows)
    if name.endswith("csv"):
        with open(tmp_path / name) as file:
            found = [dict(row) for row in csv.DictReader(file)]
        assert found == [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table(tmp_path / name).to_pylist() == rows


def test_processes_use_one_thread_for_linear_algebra_and_keep_the_environment() -> None:
    from gavel_py.sweeps.local import THREADS, LocalProcesses

    before = dict(os.environ)
    given = {name: os.environ.get(name, "1") for name in THREADS}
    with LocalProcesses(1) as processes:
        assert processes.submit(os.getenv, "OMP_NUM_THREADS").result() == given["OMP_NUM_THREADS"]
        assert processes.submit(os.getpid).result() != os.getpid()
    assert dict(os.environ) == before
