"""The command gavel trace: options, output and error messages."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, runner
from tests.workloads.support import file

GAVEL = "LM (batch size 5)\tpython3 main.py\tlm\t-n\t1\t100\t2\t1\t-1\t60\nA3C\tpython3 main.py\tlm\t-n\t1\t50\t1\t1\t-1\t0\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-10 00:00:30,66.0,16,66.0,a\n2017-10-10 00:02:30,5.0,1,5.0,b\n"
BROKEN = PHILLY + "soon,66,1,66,a\n"


@pytest.fixture
def trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """Run `gavel trace` with an empty store."""
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    return runner(capsys, "trace")


def test_import_writes_jobs_and_prints_the_report(trace: Gavel) -> None:
    outcome = trace("import", file("a.trace", GAVEL), "--out", "jobs.csv")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "a.trace (gavel): 2 jobs of 2 entries read.\n"
    assert gp.JobSet.from_file("jobs.csv")[0] == gp.Job("1", job_type="A3C", total_steps=50)


def test_without_a_file_the_jobs_go_to_standard_output(trace: Gavel) -> None:
    outcome = trace("import", file("a.trace", GAVEL))
    assert outcome.out.splitlines()[0] == "job_id,job_type,num_gpus,total_steps,arrival_seconds"
    assert outcome.err.startswith("a.trace (gavel): 2 jobs")


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_the_suffix_decides_the_output_format(trace: Gavel, suffix: str) -> None:
    trace("import", file("a.trace", GAVEL), "--out", f"jobs.{suffix}")
    assert gp.read_trace(f"jobs.{suffix}").report.format == suffix
    assert len(gp.JobSet.from_file(f"jobs.{suffix}")) == 2


def test_an_unknown_suffix_is_refused(trace: Gavel) -> None:
    outcome = trace("import", file("a.trace", GAVEL), "--out", "jobs.xls")
    assert outcome.code == 2
    assert "jobs.xls: cannot determine the format from the name; it must end in .csv, .json, .jsonl, .ndjson" in outcome.err
    assert not Path("jobs.xls").exists()


def test_broken_lines_are_reported_and_with_strict_refused(trace: Gavel) -> None:
    outcome = trace("import", file("p.csv", BROKEN), "--out", "jobs.csv")
    assert outcome.code == 0
    assert "p.csv (philly-csv): 2 jobs of 3 entries read.\nIgnored 1 with errors:\n" in outcome.out
    assert "p.csv, line 4, field timestamp: must be a time such as 2017-10-09 07:01:55, found 'soon'" in outcome.out
    strict = trace("import", "p.csv", "--out", "strict.csv", "--strict")
    assert (strict.code, strict.out) == (2, "")
    assert strict.err.startswith("Error: p.csv, line 4, field timestamp: must be a time")
    assert not Path("strict.csv").exists()


def test_job_types_and_estimates(trace: Gavel) -> None:
    name = file("p.csv", PHILLY)
    refused = trace("import", name, "--out", "jobs.csv", "--profile", "gavel-osdi20")
    assert refused.code == 2
    assert "has no job type for the gangs of 1 of 2 jobs" in refused.err
    outcome = trace("import", name, "--out", "jobs.csv", "--profile", "gavel-osdi20", "--extrapolate", "--profile-out", "more.csv")
    assert outcome.code == 0
    assert "Assumed: Throughputs of gangs of 16 GPUs are estimated" in outcome.out
    profile = gp.ThroughputProfile.from_file("more.csv")
    for submission in gp.read_trace("jobs.csv"):
        speed = profile.job_throughput(submission.job, "v100")
        assert submission.job.total_steps == pytest.approx((submission.run_seconds or 0) * speed)


def test_the_report_as_json(trace: Gavel) -> None:
    document = json.loads(trace("import", file("p.csv", BROKEN), "--out", "jobs.csv", "--json").out)
    assert (document["records"], document["jobs"], document["broken"]) == (3, 2, 1)
    assert document["faults"][0]["where"] == "p.csv, line 4"
    described = json.loads(trace("describe", "p.csv", "--json").out)
    assert described["num_jobs"] == 2
    assert [gang["num_gpus"] for gang in described["gangs"]] == [1, 16]
    assert "philly-csv" in json.loads(trace("formats", "--json").out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "p.csv", "--extrapolate"], "need --profile"),
        (["import", "p.csv", "--profile", "gavel-osdi20", "--extrapolate"], "--extrapolate needs --profile-out FILE"),
        (["import", "p.csv", "--map-accelerator", "v100"], "--map-accelerator 'v100' is not of the form OLD=NEW"),
        (["import", "p.csv", "--format", "filly"], "'filly' is not a trace format; did you mean 'philly'"),
        (["import", "absent.csv"], "absent.csv: cannot be read: No such file or directory"),
        (["window", "p.csv"], "select jobs with --from, --to, --first, --last"),
        (["window", "p.csv", "--from", "9", "--to", "3"], "window, field end: must be after the start, 9 s, found 3 s"),
        (["sample", "p.csv", "--jobs", "5"], "sample, field jobs: must be a fraction below 1"),
        (["scale", "p.csv", "--load", "0"], "scale, field load: must be a finite number greater than 0"),
        (["generate", "--jobs", "5"], "give the arrivals"),
        (["generate", "--jobs", "5", "--static", "--jobs-per-hour", "5"], "--static and --jobs-per-hour exclude each other"),
        (["generate", "--jobs", "5", "--static", "--gangs", "one"], "--gangs 'one' is not of the form GPUS:PART"),
        (["generate", "--jobs", "5", "--static", "--gangs", "1:0.2,2:0.5,1.0:0.3"], "gives 1 GPUs twice; give each size once"),
        (["generate", "--jobs", "5", "--static", "--burstiness", "3"], "--static and --burstiness exclude each other"),
        (["generate", "--jobs", "3", "--jobs-per-hour", "1e-320"], "field jobs_per_hour: is so small that arrivals are later"),
        (["sample", "p.csv", "--jobs", "0.0001"], "the jobs of the trace, found 0.0001, which is less than one of 2 jobs"),
        (["window", "p.csv", "--to", "nan"], "window, field end: must be a finite number, or None, found nan"),
        (["window", "p.csv", "--from", "inf"], "window, field start: must be a finite number, or None, found inf"),
        (["generate", "--jobs", "5", "--static", "--durations", "1:2"], "--durations '1:2' is neither a file nor of the form"),
        (["generate", "--jobs", "5", "--static", "--durations", "1:9-2"], "0 < shortest <= longest"),
    ],
)
def test_usage_errors_have_a_message(trace: Gavel, arguments: list[str], said: str) -> None:
    file("p.csv", PHILLY)
    outcome = trace(*arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_standard_input(trace: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BROKEN.encode())))
    outcome = trace("scale", "-", "--load", "2")
    assert outcome.code == 0
    assert "standard input (philly-csv): 2 jobs of 3 entries read." in outcome.err
    assert "standard input, line 4, field timestamp" in outcome.err
    assert [line.split(",")[3] for line in outcome.out.splitlines()[1:]] == ["0", "60"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    assert trace("scale", "-", "--load", "2").err.startswith("Error: standard input: has no known format")


def test_sample_scale_and_window(trace: Gavel) -> None:
    file("p.csv", PHILLY)
    assert trace("window", "p.csv", "--from", "60").out.splitlines()[1].startswith("2,,1,60,")
    assert trace("window", "p.csv", "--first", "1", "--keep-clock").out.splitlines()[1].startswith("2,,1,120,")
    assert len(trace("sample", "p.csv", "--jobs", "0.5").out.splitlines()) == 2


def test_generate_gives_the_same_bytes(trace: Gavel) -> None:
    arguments = ["generate", "--jobs", "20", "--jobs-per-hour", "4", "--burstiness", "3", "--seed", "5", "--heavy-share", "0.5"]
    assert trace(*arguments).out == trace(*arguments).out
    trace(*arguments, "--out", "g.csv")
    drawn = trace("generate", "--jobs", "9", "--static", "--gangs", "1:1,2:1", "--durations", "g.csv", "--out", "again.csv")
    assert drawn.code == 0
    assert {s.job.num_gpus for s in gp.read_trace("again.csv")} == {1, 2}


def test_describe_shows_tables(trace: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    file("p.csv", PHILLY)
    wide = trace("describe", "p.csv", "--periods", "2").out
    rows = [line.split() for line in wide.splitlines()]
    assert ["16", "1", "50.0%", "0.29", "99.5%", *["0.01833"] * 5] in rows
    assert ["0.00", "0.02", "1", "0.29", "16.0", "16"] in rows
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, trace("describe", "p.csv").out.splitlines())) <= 40
    assert "No jobs." in trace("describe", file("none.csv", "job_id\n")).out


def test_short_traces_have_digits_that_show_something(trace: Gavel) -> None:
    rows = "".join(f"{n},{20 * n},4\n" for n in range(5))
    out = trace("describe", file("short.csv", f"job_id,arrival_seconds,recorded_run_seconds\n{rows}"), "--periods", "4").out
    assert "0.0056 GPU-hours of 5 jobs with known durations" in out
    load = [line.split() for line in out.split("Load over time")[1].splitlines()[2:]]
    ends = [row[:2] for row in load if len(row) == 6][-4:]
    assert ends == [["0.000", "0.006"], ["0.006", "0.011"], ["0.011", "0.017"], ["0.017", "0.022"]]
    assert " 0 " not in "".join(out.split("Gangs and durations")[1])


def test_durations_are_computed_from_steps(trace: Gavel) -> None:
    name = file("a.trace", GAVEL)
    assert "duration" not in trace("describe", name).out.split("Gangs")[0]
    told = trace("describe", name, "--profile", "gavel-osdi20", "--reference", "k80").out
    assert "Assumed: Durations that are not recorded are steps / throughput on k80 in profile 'gavel-osdi20': 2 jobs." in told
    assert trace("describe", name, "--reference", "k80").code == 2


def test_without_durations_gpu_hours_are_unknown_and_not_zero(trace: Gavel) -> None:
    name = file("a.trace", GAVEL)
    told = trace("describe", name, "--periods", "2").out
    assert "GPU-hours unknown" in told
    rows = [line.split() for line in told.splitlines()]
    assert ["1", "1", "50.0%"] in rows
    assert ["0.000", "0.008", "1"] in rows
    document = json.loads(trace("describe", name, "--periods", "2", "--json").out)
    assert [document[key] for key in ("gpu_hours", "mean_gpus", "peak_gpus")] == [None] * 3
    assert {period["gpu_hours"] for period in document["periods"]} == {None}
    known = trace("describe", name, "--periods", "2", "--profile", "gavel-osdi20").out
    assert "unknown" not in known


@pytest.mark.deep
def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gavel_py", "trace", "generate", "--jobs", "20000", "--static"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("words", [["trace"], []], ids=["trace", "gavel"])
def test_help_imports_no_heavy_library(words: list[str]) -> None:
    code = (
        "import sys\nfrom gavel_py.cli import main\n"
        f"try:\n    main({[*words, '--help']})\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'pydantic', 'rich', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
