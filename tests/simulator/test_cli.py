"""The command gavel simulate: options, output, files and error messages."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.cli.simulate.runner import interruptible
from tests.support.commands import Gavel, runner

FOUR = "job_id,total_steps,arrival_seconds,priority\n0,30,0,3\n1,10,0,1\n2,25,1,2\n3,40,4,4\n"
POLICIES = ("fifo", "shortest_job_first", "shortest_job_first,preemptive=false", "priority", "priority,preemptive=false")


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """Run `gavel simulate` in an empty directory with an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    return runner(capsys, "simulate")


@pytest.fixture
def four(tmp_path: Path) -> list[str]:
    """Four jobs with known schedules, on two GPUs."""
    (tmp_path / "jobs.csv").write_text(FOUR)
    (tmp_path / "speeds.csv").write_text("job_id,gpu\n0,1\n1,1\n2,1\n3,1\n")
    return ["jobs.csv", "-c", "gpu:2", "--throughputs", "speeds.csv"]


@pytest.fixture
def mixed(tmp_path: Path) -> list[str]:
    """Sixty jobs of one to eight GPUs on three types."""
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(60, profile, jobs_per_hour=30, durations=gp.LogUniform(((1, 600, 7200),)), seed=1)
    (tmp_path / "mixed.csv").write_text(gp.trace_text(trace))
    return ["mixed.csv", "-c", "v100:8/4,p100:8/4,k80:8/8"]


def several(policies: Sequence[str]) -> list[str]:
    return [word for policy in policies for word in ("-p", policy)]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def cells(text: str, label: str) -> list[str]:
    """The numbers of a row of the table."""
    return next(line.removeprefix(f"  {label}").split() for line in text.splitlines() if line.startswith(f"  {label} "))


def test_the_table_has_a_column_for_each_policy(gavel: Gavel, four: list[str]) -> None:
    outcome = gavel(*four, "--events", *several(POLICIES))
    assert (outcome.code, outcome.err) == (0, "")
    assert "jobs.csv (csv): 4 jobs of 4 entries read." in outcome.out
    assert cells(outcome.out, "completion time, mean (s)") == ["35", "34*", "35", "43.5", "35"]
    assert cells(outcome.out, "makespan (s)") == ["70", "66", "70", "53*", "55"]
    assert cells(outcome.out, "jobs finished") == ["4"] * 5
    assert "undelivered" not in outcome.out  # nothing is promised for a stated time


def test_json_is_one_document(gavel: Gavel, four: list[str]) -> None:
    outcome = gavel(*four, "-p", "fifo,preemptive=false", "--round-seconds", "10", "--until", "2min", "--json")
    document = json.loads(outcome.out)
    assert set(document) == {"schema_version", "trace", "profile", "settings", "complete", "policies"}
    assert document["trace"]["jobs"] == 4
    assert document["settings"] | {"round_seconds": 10.0, "until_seconds": 120.0, "seed": 0} == document["settings"]
    [played] = document["policies"]
    assert (played["policy"], played["options"], played["complete"]) == ("fifo", {"preemptive": False}, True)
    assert played["summary"]["outcomes"] == {"finished": 4, "failed": 0, "cancelled": 0, "active": 0}
    trace, cluster = gp.read_trace("jobs.csv"), gp.Cluster.from_inline("gpu:2")
    speeds = gp.ThroughputProfile.from_matrix("speeds.csv")
    same = gp.simulate(trace, cluster, speeds, gp.resolve_policy("fifo", preemptive=False), round_seconds=10).summary
    assert played["summary"]["jct"] == same.jct.to_dict()


@pytest.mark.deep
def test_solve_seconds_are_those_of_the_simulation(gavel: Gavel, mixed: list[str]) -> None:
    found = {}
    for seconds in (0.0, 1920.0):
        document = json.loads(gavel(*mixed, "--solve-seconds", str(seconds), "--json").out)
        assert document["settings"]["solve_seconds"] == seconds
        found[seconds] = document["policies"][0]["summary"]["jct"]
    trace, cluster = gp.read_trace("mixed.csv"), gp.Cluster.from_inline(mixed[-1])
    same = gp.simulate(trace, cluster, gp.ThroughputProfile.builtin("gavel-osdi20"), solve_seconds=1920).summary
    assert found[1920.0] == same.jct.to_dict() != found[0.0]


def test_starts_between_rounds_and_back_offs_are_those_of_the_simulation(gavel: Gavel, four: list[str]) -> None:
    chosen = ["-p", "fifo,backfill=true", "--json"]
    options = ["--starts-between-rounds", "--retry-seconds", "20"]
    plain, between = (json.loads(gavel(*four, *chosen, *more).out) for more in ([], options))
    assert (between["settings"]["starts_between_rounds"], between["settings"]["retry_seconds"]) == (True, 20.0)
    jct = [each["policies"][0]["summary"]["jct"]["mean"] for each in (plain, between)]
    assert jct[1] == 35 < jct[0], "that of fifo in event mode"


def test_csv_has_a_line_for_each_policy(gavel: Gavel, four: list[str]) -> None:
    outcome = gavel(*four, "--events", *several(POLICIES[:2]), "--csv", "--out", "summary.csv")
    assert outcome.out == ""
    assert "4 jobs of 4 entries read" in outcome.err
    first, second = rows(Path("summary.csv"))
    assert [row["policy"] for row in (first, second)] == ["fifo", "shortest_job_first"]
    assert [float(row["mean_jct_seconds"]) for row in (first, second)] == [35, 34]
    assert float(first["gpu_utilization"]) == 105 / 140
    assert float(first["mean_queueing_1_gpus_seconds"]) == float(first["mean_queueing_seconds"]) == 35 / 4


def test_jobs_and_rounds_go_to_files(gavel: Gavel, four: list[str]) -> None:
    outcome = gavel(*four, "--events", *several(POLICIES[:2]), "--jobs-out", "out.csv", "--timeline-out", "rounds.csv")
    assert outcome.code == 0
    jobs, rounds = rows(Path("out.csv")), rows(Path("rounds.csv"))
    assert list(jobs[0]) == ["policy", *(field.name for field in fields(gp.JobRecord))]
    assert [(job["policy"], job["job_id"], float(job["jct_seconds"])) for job in jobs] == [
        *(("fifo", *job) for job in [("1", 10), ("0", 30), ("2", 34), ("3", 66)]),
        *(("shortest_job_first", *job) for job in [("1", 10), ("2", 25), ("0", 39), ("3", 62)]),
    ]
    told = [tuple(row.values()) for row in rounds if row["policy"] == "shortest_job_first"]
    names = ["policy", "round", "time_seconds", "running", "waiting", "gpu_gpus", "starts", "preemptions"]
    assert list(rounds[0]) == names
    assert told[1] == ("shortest_job_first", "1", "1.0", "2", "1", "2", "1", "1")
    assert len(told) == 6


FAILS = "job_id,job_type,total_steps,arrival_seconds,recorded_failed_attempts,recorded_status\n"


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (FAILS + "a,A3C,60000,0,1,passed\n", ["--job-failures", "recorded", "--retry-seconds", "3600"]),
        (FAILS + "".join(f"j{n},A3C,90000,{600 * n},0,\n" for n in range(4)), ["--node-mtbf", "2", "--node-repair", "0.5"]),
        (FAILS + "".join(f"j{n},A3C,90000,{600 * n},0,\n" for n in range(4)), ["--maintenance", "v100-0:20min:40min"]),
    ],
)
def test_the_preemptions_of_rounds_add_up_to_those_of_the_summary(
    gavel: Gavel, tmp_path: Path, content: str, options: list[str]
) -> None:
    (tmp_path / "jobs.csv").write_text(content)
    policy = ["-p", "max_min_fairness", "--timeline-out", "rounds.csv", "--json"]
    (found,) = json.loads(gavel("jobs.csv", "-c", "v100:2/1", *policy, *options).out)["policies"]
    assert sum(int(row["preemptions"]) for row in rows(Path("rounds.csv"))) == found["summary"]["preemptions"]
    assert found["summary"]["failures"] + found["summary"]["preemptions"] > 0


def test_a_makespan_of_0_is_not_shown_if_no_job_has_ended(gavel: Gavel, four: list[str]) -> None:
    assert "makespan" not in gavel(*four, "-p", "fifo", "--events", "--until", "1").out


def test_records_include_jobs_still_in_the_system(gavel: Gavel, four: list[str]) -> None:
    outcome = gavel(*four, "--events", "-p", "fifo", "--until", "20s", "--jobs-out", "out.csv")
    assert cells(outcome.out, "jobs still in the system") == ["2"]
    assert {job["job_id"]: job["outcome"] for job in rows(Path("out.csv"))} == {
        "1": "finished", "0": "finished", "2": "active", "3": "active"
    }  # fmt: skip


def test_events_include_the_time_at_which_the_order_changes(gavel: Gavel, four: list[str]) -> None:
    """Job 0 gives way at 12 s, job 2 at 22 s and job 3 at 24 s, when all three go by arrival; job 1 is done before."""
    gavel(*four, "--events", "-p", "least_attained_service,thresholds=12", "--jobs-out", "out.csv")
    with Path("out.csv").open() as lines:
        assert {row["job_id"]: float(row["end_seconds"]) for row in csv.DictReader(lines)} == {"0": 40, "1": 10, "2": 37, "3": 65}


@pytest.mark.deep
def test_fairness_is_measured_against_isolated(gavel: Gavel, mixed: list[str]) -> None:
    outcome = gavel(*mixed, *several(["max_min_fairness", "isolated"]), "--json")
    fair, isolated = json.loads(outcome.out)["policies"]
    assert isolated["finish_time_fairness"] is None
    trace, cluster = gp.read_trace("mixed.csv"), gp.Cluster.from_inline(mixed[2])
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    results = [gp.simulate(trace, cluster, profile, policy) for policy in ("max_min_fairness", "isolated")]
    rho = results[0].finish_time_fairness(results[1])
    told = fair["finish_time_fairness"]
    assert told["jobs"] == len(rho) == 60
    assert told["mean"] == pytest.approx(sum(rho.values()) / 60)
    assert told["max"] == max(rho.values())
    assert told["above_one"] == sum(value > 1 for value in rho.values()) / 60
    alone = gavel(*mixed, "-p", "isolated")
    assert "ρ" not in alone.out


@pytest.mark.deep
def test_gangs_have_their_own_table(gavel: Gavel, mixed: list[str]) -> None:
    alone = gavel(*mixed, "-p", "fifo")
    assert [line.split()[0] for line in alone.out.split("Queueing delay by gang")[1].splitlines()[2:6]] == ["1", "2", "4", "8"]
    both = gavel(*mixed, "-p", "fifo", "-p", "shortest_job_first")
    assert re.search(r"Queueing delay by gang, mean \(\w+\)\n +GPUs +fifo +shortest_job_first\n", both.out)


@pytest.mark.deep
def test_the_same_options_give_the_same_bytes(gavel: Gavel, mixed: list[str]) -> None:
    random = ["--job-failures", "0.1", "--node-mtbf", "20", "--node-repair", "1", "--maintenance", "v100-0:1h:3h", "--seed", "7"]
    texts = []
    for out in ("first", "second", "third"):
        more = ["--seed", "8"] if out == "third" else []
        files = f"{out}.csv", f"{out}-rounds.csv"
        gavel(*mixed, *random, *more, "-p", "max_min_fairness", "--jobs-out", files[0], "--timeline-out", files[1])
        texts.append(tuple(Path(each).read_bytes() for each in files))
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.deep
def test_traces_without_job_types_get_them_by_the_seed(gavel: Gavel, tmp_path: Path) -> None:
    philly = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 06:13:03,2951.0,16,1,b\n"
    (tmp_path / "philly.csv").write_text(philly)
    asked = ["philly.csv", "-c", "v100:32/16", "-p", "fifo", "--json"]
    refused = gavel(*asked)
    assert refused.code == 2
    assert "estimate them (--extrapolate)" in json.loads(refused.out)["faults"][0]["problem"]
    document = json.loads(gavel(*asked, "--extrapolate", "--seed", "3").out)
    assert document["policies"][0]["summary"]["outcomes"]["finished"] == 2
    assert document["profile"] == "gavel-osdi20+estimates"
    assert any("Throughputs of gangs of 16 GPUs are estimated" in said for said in document["trace"]["assumptions"])
    assert any("seed 3" in said for said in document["trace"]["assumptions"])


def test_jobs_with_types_are_extrapolated_too(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("job_id,job_type,num_gpus,total_steps\na,LM (batch size 10),16,5000\n")
    asked = ["wide.csv", "-c", "v100:32/16", "-p", "fifo"]
    refused = gavel(*asked)
    assert refused.code == 2
    assert "has no throughput of 'LM (batch size 10)' on 16 x v100" in refused.err
    assert cells(gavel(*asked, "--extrapolate").out, "jobs finished") == ["1"]


def test_jobs_that_fit_nowhere_are_named(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text(
        "job_id,job_type,num_gpus,total_steps\nw,LM (batch size 10),8,500\nn,LM (batch size 10),1,500\n"
    )
    outcome = gavel("wide.csv", "-c", "v100:4", "-p", "fifo")
    assert outcome.code == 0
    assert "fifo: job 'w' has no GPUs at the end: its gang of 8 GPUs fits nowhere" in outcome.out


@pytest.mark.deep
@pytest.mark.parametrize("columns", ["25", "40", "80"])
def test_tables_fit_a_narrow_terminal(gavel: Gavel, mixed: list[str], monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    outcome = gavel(*mixed, *several(["fifo", "max_min_fairness", "isolated"]), "--until", "2h")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= int(columns)
    assert "max_min_" in outcome.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--events"], "Error: simulation, field round_seconds: must be given for max_min_fairness"),
        (["--events", "--round-seconds", "60"], "Error: --events has no rounds; omit --round-seconds"),
        (
            ["--events", "-p", "fifo", "--solve-seconds", "60"],
            "Error: --events decides at every event; omit --solve-seconds",
        ),
        (
            ["--events", "-p", "fifo", "--starts-between-rounds"],
            "Error: --events starts jobs at any time; omit --starts-between-rounds",
        ),
        (["-p", "fifi"], "fifo"),
        (["--maintenance", "gpu-7:1:2"], "Error: maintenance, field node: 'gpu-7' is not in the cluster; did you mean 'gpu-0'"),
        (["--maintenance", "gpu-0:2h"], "is neither a .csv file nor of the form NODE:START:END, as in v100-0:24h:30h"),
        (["--maintenance", "gpu-0:2h:1h"], "Error: maintenance of node 'gpu-0', field end_seconds: must be after start_seconds"),
        (["--maintenance", "absent.csv"], "Error: absent.csv: cannot be read: No such file or directory"),
        (["--node-mtbf", "100"], "Error: --node-mtbf and --node-repair go together"),
        (["--node-mtbf", "1", "--node-repair", "2"], "Error: --node-repair 2 must be less than --node-mtbf 1"),
        (["--until", "tomorrow"], "'tomorrow' is not a time of at least 0; write seconds, or a time such as 90s, 15min, 12h or 7d"),
        (["--job-failures", "1"], "'1' is neither a probability of at least 0 and below 1 nor 'recorded'"),
        (["--jobs-out", "absent/out.csv"], "Error: absent/out.csv: cannot be written: there is no folder 'absent'"),
        (["--jobs-out", "a.csv", "--timeline-out", "./a.csv"], "Error: --timeline-out a.csv and --jobs-out a.csv are the same"),
        (["--extrapolate"], "Error: --extrapolate estimates speeds by job type"),
        (["--profile", "gavel-osdi20"], "Error: --profile and --throughputs both define the speeds of jobs"),
    ],
)
def test_invalid_options_are_refused(gavel: Gavel, four: list[str], options: list[str], said: str) -> None:
    outcome = gavel(*four, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_a_trace_without_required_fields_is_refused_at_once(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,job_type,num_gpus,total_steps\na,LM (batch size 10),1,\nb,LM (batch size 10),3,9\n")
    outcome = gavel("jobs.csv", "-c", "v100:4")
    assert outcome.code == 2
    assert "Error: jobs.csv, line 2 (job 'a'), field total_steps: is unknown, so it is not known when the job ends" in outcome.err
    assert "has no throughput of 'LM (batch size 10)' on 3 x v100" in outcome.err


def test_replaying_failures_of_a_trace_without_any_warns(gavel: Gavel, four: list[str]) -> None:
    outcome = gavel(*four, "-p", "fifo", "--job-failures", "recorded", "--estimates", "recorded")
    assert outcome.code == 0
    assert "warning: --job-failures recorded: no failed attempt is recorded in jobs.csv" in outcome.err
    assert "warning: --estimates recorded: no estimate is recorded in jobs.csv" in outcome.err


def test_maintenance_is_read_from_a_file(gavel: Gavel, four: list[str], tmp_path: Path) -> None:
    (tmp_path / "windows.csv").write_text("node,start_seconds,end_seconds\ngpu-0,0,3600\n")
    outcome = gavel(*four, "-p", "fifo", "--events", "--maintenance", "windows.csv")
    assert cells(outcome.out, "makespan (minutes)") == ["61.17"]  # 70 s after the hour
    (tmp_path / "windows.csv").write_text("node,start_seconds,end_seconds\ngpu-0,5,3\ngpu-0,x,\n")
    refused = gavel(*four, "--maintenance", "windows.csv")
    assert refused.err == (
        "Error: windows.csv, line 2 (node 'gpu-0'), field end_seconds: must be after start_seconds (5), found 3\n"
        "windows.csv, line 3 (node 'gpu-0'), field start_seconds: must be a number, found 'x'\n"
        "windows.csv, line 3 (node 'gpu-0'), field end_seconds: is required\n"
    )


def long_command(tmp_path: Path) -> list[str]:
    """A simulation that takes minutes."""
    jobs = "".join(f"{i},LM (batch size 10),1,1e9,{i}\n" for i in range(50))
    (tmp_path / "jobs.csv").write_text(f"job_id,job_type,num_gpus,total_steps,arrival_seconds\n0s,LM (batch size 10),1,9,0\n{jobs}")
    command = [sys.executable, "-m", "gavel_py", "simulate", "jobs.csv", "-c", "v100:8", "--round-seconds", "10"]
    return [*command, "-p", "fifo", "-p", "isolated", "--jobs-out", "out.csv", "--timeline-out", "rounds.csv"]


def wait_for_rounds(process: subprocess.Popen[str], path: Path) -> None:
    while process.poll() is None and not (path.exists() and path.stat().st_size > 10_000):
        time.sleep(0.05)


@pytest.mark.guard
def test_ctrl_c_prints_the_results_so_far(tmp_path: Path) -> None:
    command, rounds = long_command(tmp_path), tmp_path / "rounds.csv"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_rounds(process, rounds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "Finishing this round; press Ctrl-C again to stop immediately."
    assert "fifo: interrupted after " in out
    assert "Not simulated: isolated." in out
    assert cells(out, "jobs finished") == ["1"]
    jobs = rows(tmp_path / "out.csv")
    assert [job["outcome"] for job in jobs] == ["finished", *["active"] * 50]
    assert len(rows(rounds)) == int(cells(out, "rounds")[0].replace(",", ""))
    assert rounds.read_text().endswith("\n")


def test_a_second_ctrl_c_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interrupt:
        assert not interrupt.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_results_are_printed_if_a_later_policy_fails(gavel: Gavel, four: list[str], tmp_path: Path) -> None:
    text = """
        import gavel_py as gp

        class Broken(gp.OrderedPolicy):
            "Refuses."

            name = "broken"

            def sort_key(self, jobs):
                raise gp.InputError("it knows no order")
    """
    (tmp_path / "refusing.py").write_text(textwrap.dedent(text))
    outcome = gavel(*four, "-p", "fifo", "-p", "refusing:Broken")
    assert outcome.code == 2
    assert outcome.err == "Error: it knows no order\n"
    assert cells(outcome.out, "jobs finished") == ["4"]
    assert "Not simulated: broken." in outcome.out


@pytest.mark.deep
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal of its own")
def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    command, (above, below) = long_command(tmp_path), pty.openpty()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=below, text=True) as process:
        os.close(below)
        shown, end = "", time.monotonic() + 60
        while "51 jobs done" not in shown and time.monotonic() < end:  # a terminal receives it in pieces
            shown += os.read(above, 1 << 16).decode()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    os.close(above)
    assert "fifo (1 of 2)" in shown
    done, arrived, to_come = re.search(r"(\d+) of (\d+) jobs done(?:, (\d+) to come)?", shown).groups("0")
    assert int(done) <= int(arrived)
    assert int(arrived) + int(to_come) == 51
