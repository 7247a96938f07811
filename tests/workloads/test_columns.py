"""Traces with columns of their own: `columns` and `fill` of `read_trace`, and the options of commands that read a trace."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.fakes import refusal

OWN = "job,submit,gpus,seconds,queue\na,0,1,3600,day\nb,600,2,7200,\nc,1200,1,1800,night\n"
NAMES = {"job": "job_id", "submit": "arrival_seconds", "gpus": "num_gpus", "seconds": "duration_seconds"}
FILL = {"duration_accelerator": "v100", "job_type": "Transformer (batch size 64)"}
OPTIONS = ("--columns", "job=job_id,submit=arrival_seconds", "--columns", "gpus=num_gpus,seconds=duration_seconds")
FILLED = ("--fill", "duration_accelerator=v100", "--fill", "job_type=Transformer (batch size 64)")

ROWS = [("a", 0.0, 1, 3600.0), ("b", 600.0, 2, 7200.0), ("c", 1200.0, 1, 1800.0)]


@pytest.fixture(autouse=True)
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    written("own.csv", OWN)
    return runner(capsys)


def rows_of(trace: gp.Trace) -> list[tuple[Any, ...]]:
    return [(job.job_id, job.arrival_seconds, job.num_gpus, job.duration_seconds) for job in trace.jobs]


def objects() -> list[dict[str, Any]]:
    found = csv.DictReader(io.StringIO(OWN))
    return [
        {"job": row["job"], **{name: float(row[name]) for name in ("submit", "seconds")}, "gpus": int(row["gpus"])} for row in found
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.csv", OWN.replace("queue", "recorded_label_queue")),
        ("a.json", json.dumps(objects())),
        ("b.json", json.dumps({"jobs": objects()}, indent=1)),
        ("c.jsonl", "".join(f"{json.dumps(row)}\n" for row in objects())),
    ],
)
def test_columns_are_fields_whatever_their_names(name: str, text: str) -> None:
    trace = gp.read_trace(written(name, text), columns=NAMES, fill=FILL)
    assert rows_of(trace) == ROWS
    assert {(job.duration_accelerator, job.job_type) for job in trace.jobs} == {("v100", "Transformer (batch size 64)")}


def test_parquet() -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(objects()), "own.parquet")
    assert rows_of(gp.read_trace("own.parquet", columns=NAMES, fill=FILL)) == ROWS
    said = refusal(gp.read_trace, "own.parquet", columns={"submit": "arrival_seconds"})
    assert "column 'job_id' is missing" in said


def test_recorded_fields_and_labels_are_fields_too() -> None:
    columns = NAMES | {"seconds": "recorded_run_seconds", "queue": "recorded_label_queue"}
    trace = gp.read_trace("own.csv", columns=columns)
    assert [each.run_seconds for each in trace] == [3600.0, 7200.0, 1800.0]
    assert [each.labels for each in trace] == [(("queue", "day"),), (), (("queue", "night"),)]


def test_values_of_the_file_take_precedence_over_those_for_all_rows() -> None:
    written("part.csv", "job_id,weight,tenant\na,2,\nb,,x\n")
    trace = gp.read_trace("part.csv", fill={"weight": 5, "tenant": "t"})
    assert [(job.weight, job.tenant) for job in trace.jobs] == [(2.0, "t"), (5.0, "x")]


def test_a_value_for_all_rows_of_a_trace_of_another_system() -> None:
    written("philly.csv", "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n")
    trace = gp.read_trace("philly.csv", fill={"weight": 3})
    assert (trace.report.format, trace.jobs[0].weight) == ("philly-csv", 3.0)
    said = refusal(gp.read_trace, "philly.csv", "philly-csv", columns={"duration": "duration_seconds"})
    assert said.startswith(
        "philly.csv, field format: must be 'csv', that of the file, since columns are named for files of jobs only"
    )


def test_deadlines_count_from_now() -> None:
    written("due.csv", "job,due\na,2026-12-02T08:00+00:00\n")
    columns, now = {"job": "job_id", "due": "deadline"}, datetime.fromisoformat("2026-12-01T08:00+00:00")
    assert gp.read_trace("due.csv", columns=columns, now=now).jobs[0].deadline_seconds == 86400.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"columns": NAMES | {"submitted": "weight"}, "ignore": ["queue"]},
            "own.csv, line 1: column 'submitted' is not in the file; did you mean 'submit'?",
        ),
        ({"columns": NAMES}, "own.csv, line 1: column 'queue' is not known"),
        (
            {"columns": NAMES | {"queue": "tenants"}},
            "trace, field columns: 'tenants' is not a field of a job; did you mean 'tenant'?",
        ),
        ({"columns": NAMES, "fill": {"teant": "x"}}, "trace, field fill: 'teant' is not a field of a job; did you mean 'tenant'?"),
        (
            {"columns": NAMES, "ignore": ["queue"], "fill": {"weight": "much"}},
            "own.csv, line 2 (job 'a'), field weight: must be a number",
        ),
    ],
)
def test_mistakes_name_file_and_column(options: dict[str, Any], said: str) -> None:
    assert said in refusal(gp.read_trace, "own.csv", **options)


def test_a_field_that_two_columns_would_be() -> None:
    twice = "column 'start' cannot be 'arrival_seconds', which another column is, too; leave one of them out"
    written("twice.csv", "job_id,start,arrival_seconds\na,1,2\n")
    assert refusal(gp.read_trace, "twice.csv", columns={"start": "arrival_seconds"}).startswith(f"twice.csv, line 1: {twice}")
    written("twice.json", '[{"job_id": "a", "start": 1, "arrival_seconds": 2}]')
    assert twice in refusal(gp.read_trace, "twice.json", columns={"start": "arrival_seconds"})
    swapped = gp.read_trace("twice.csv", columns={"start": "arrival_seconds", "arrival_seconds": "deadline_seconds"})
    assert (swapped.jobs[0].arrival_seconds, swapped.jobs[0].deadline_seconds) == (1.0, 2.0)
    both = refusal(gp.read_trace, "twice.csv", columns={"start": "weight", "arrival_seconds": "weight"})
    assert both.count("cannot be 'weight', which another column is, too") == 2


@pytest.mark.parametrize("command", [("import",), ("sample", "--jobs", "3"), ("scale", "--load", "1"), ("window", "--first", "0")])
def test_every_command_that_writes_a_trace_reads_it_in_this_way(gavel: Gavel, command: tuple[str, ...]) -> None:
    result = gavel("trace", command[0], "own.csv", *command[1:], *OPTIONS, "--ignore-columns", "queue", *FILLED)
    assert result.code == 0, result.err
    written("out.csv", result.out)
    assert rows_of(gp.read_trace("out.csv")) == ROWS


def simulated(gavel: Gavel, *given: str) -> str:
    """What became of each job in a simulation, as text of --jobs-out."""
    result = gavel("simulate", *given, "-c", "v100:2", "-p", "fifo", "--jobs-out", "jobs-out.csv")
    assert result.code == 0, result.err
    return Path("jobs-out.csv").read_text(encoding="utf-8")


def with_usual_names(arrivals: tuple[int, int, int]) -> str:
    """A file with the names of gavel-py, and with these arrivals."""
    rows = ["job_id,arrival_seconds,num_gpus,duration_seconds,duration_accelerator,job_type"]
    rows += [f"{row[0]},{start},{row[2]},{row[3]},v100,{FILL['job_type']}" for row, start in zip(ROWS, arrivals, strict=True)]
    return written("usual.csv", "\n".join(rows))


def test_describe_and_simulate(gavel: Gavel) -> None:
    given = ("own.csv", *OPTIONS, "--ignore-columns", "queue", *FILLED)
    assert json.loads(gavel("trace", "describe", *given, "--json").out)["num_jobs"] == 3
    assert simulated(gavel, *given) == simulated(gavel, with_usual_names((0, 600, 1200)))


def test_simulate_scales_the_load_of_the_trace(gavel: Gavel) -> None:
    given = ("own.csv", *OPTIONS, "--ignore-columns", "queue", *FILLED)
    assert simulated(gavel, *given, "--load", "2x") == simulated(gavel, with_usual_names((0, 300, 600)))
    assert simulated(gavel, *given, "--load", "1x") == simulated(gavel, with_usual_names((0, 600, 1200)))
    for text in ("2", "0x", "x", "-1x", "fast"):
        said = gavel("simulate", *given, "-c", "v100:2", f"--load={text}").err
        assert f"{text!r} is not a factor of the recorded load such as 1.5x" in said


class Here(Executor):
    """Runs each cell of a sweep at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_a_sweep_multiplies_the_load_of_a_recorded_trace(gavel: Gavel) -> None:
    """Three jobs in 1,200 s are 6 an hour; each cell has the metrics of a trace with the arrivals divided by the factor."""
    grid: dict[str, Any] = {"policies": ["fifo"], "clusters": ["v100:2"]}
    own = {"file": "own.csv", "columns": NAMES, "fill": FILL, "ignore": ["queue"]}
    rows = gp.sweep(grid | {"traces": [own], "loads": ["1x", " 2.0x "]}, executor=Here())
    assert [row["load"] for row in rows] == [6.0, 12.0]
    for row, arrivals in zip(rows, ((0, 600, 1200), (0, 300, 600)), strict=True):
        (alone,) = gp.sweep(grid | {"traces": [with_usual_names(arrivals)]}, executor=Here())
        assert {name: row[name] for name in row if "jct" in name} == {name: alone[name] for name in alone if "jct" in name}
        assert alone["load"] is None
    named = ("--trace", "own.csv", *OPTIONS, "--columns", "queue=recorded_label_queue", *FILLED, "--load", "1x", "--load", "2x")
    assert "jobs per hour: 6, 12\n" in gavel("sweep", "-p", "fifo", "-c", "v100:2", *named, "--dry-run").out


SPEC = """policies: [fifo]
clusters: ["v100:2"]
traces:
  - file: own.csv
    columns: {job: job_id, submit: arrival_seconds, gpus: num_gpus, seconds: duration_seconds}
    ignore: [queue]
    fill: {duration_accelerator: v100, job_type: Transformer (batch size 64)}
  - {generate: {jobs: 3}}
loads: [4, 1.5x]
"""


def test_the_spec_of_a_sweep_has_columns_and_loads_of_both_kinds() -> None:
    written("sweep.yaml", SPEC)
    plan = gp.plan_sweep("sweep.yaml")
    assert [(labels["trace"], labels["load"]) for labels in plan.labels] == [("own.csv", 9.0), ("3 generated jobs", 4.0)]


def test_deadlines_of_a_sweep_count_from_the_time_of_its_spec() -> None:
    written("due.csv", "job_id,job_type,total_steps,deadline\na,A3C,9,2026-12-02T08:00+00:00\n")
    grid: dict[str, Any] = {"mode": "solve", "policies": ["min_lateness"], "clusters": ["v100:1"]}
    for now, ahead in (("2026-12-01T08:00+00:00", 86400.0), ("2026-12-02T07:00+00:00", 3600.0)):
        (row,) = gp.sweep(grid | {"traces": [{"file": "due.csv", "now": now}]}, executor=Here())
        assert row["objective"] == pytest.approx(-ahead, abs=60), "the job is done within a minute"
    said = refusal(gp.sweep, grid | {"traces": [{"file": "due.csv", "now": "2026-12-01T08:00"}]}, executor=Here())
    assert "field now: " in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("  - {generate: {jobs: 3}}\n", ""),
            "sweep.yaml, line 8, field loads: apply to generated traces, but all traces are files; write factors",
        ),
        (("[4, 1.5x]", "[0x]"), "field loads.0: must be greater than 0, found "),
        (("[4, 1.5x]", "[many]"), "field loads.0: must be a number, found 'many'"),
        (("submit:", "submitted:"), "own.csv, line 1: column 'submitted' is not in the file; did you mean 'submit'?"),
        (("ignore: [queue]", "ignore: [weight]"), "'weight' is a field of a job, not an unknown column"),
    ],
)
def test_mistakes_in_the_spec(change: tuple[str, str], said: str) -> None:
    assert change[0] in SPEC
    written("sweep.yaml", SPEC.replace(*change))
    assert said in refusal(gp.plan_sweep, "sweep.yaml")


def test_factors_need_a_recorded_load(gavel: Gavel) -> None:
    grid = ("sweep", "-p", "fifo", "-c", "v100:2", "--load", "2x", "--workers", "1", "--no-progress")
    assert "as factors apply to files, but all traces are generated" in gavel(*grid, "--jobs", "3").err
    said = gavel(*grid, "--trace", with_usual_names((5, 5, 5))).err
    assert "are factors, but the jobs of usual.csv arrive all at once; remove them" in said
    assert "are about the files of --trace" in gavel(*grid, "--jobs", "3", *FILLED).err
