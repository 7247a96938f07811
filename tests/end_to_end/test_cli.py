"""The command line: options, output and error messages."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, runner
from tests.support.shared_data import SHARED, needs_shared_data

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = [str(EXAMPLES / "jobs.csv"), "--cluster", str(EXAMPLES / "cluster.yaml")]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """Run a command line in an empty directory with an empty store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    return runner(capsys)


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Three jobs with their own throughputs on a cluster of 2 + 1 GPUs."""
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus,total_steps\na,1,100\nb,1,50\nc,2,10\n")
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\na,4,1\nb,2,2\nc,2,0\n")
    return ["jobs.csv", "--cluster", "v100:2,k80:1", "--throughputs", "speeds.csv"]


def test_solve_shows_jobs_and_a_summary(gavel: Gavel, small: list[str]) -> None:
    outcome = gavel("solve", *small, "--policy", "max_total_throughput", "--set", "normalized=false")
    assert outcome.code == 0
    assert outcome.err == ""
    # a and b get both types: c would need both V100 for 2 steps/s, while a does 4 steps/s on one of them.
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["a", "100.0%", "v100", "1", "4", "1.333", "1.33", "25", "s"] in rows
    assert "objective 6, proven bound 6; 3 jobs" in outcome.out
    published = gavel("solve", *small, "--policy", "max_total_throughput", "--set", "normalized=false", "--no-whole-gangs")
    assert "objective 7, proven bound 7; 3 jobs" in published.out  # c runs half of the time beside a


def test_json_is_one_document_with_the_keys_of_the_contract(gavel: Gavel, small: list[str]) -> None:
    outcome = gavel("solve", *small, "-p", "max_min_fairness", "--rounds", "2", "--json")
    document = json.loads(outcome.out)
    assert set(document) >= {
        "policy", "status", "objective", "accelerator_types", "jobs", "excluded", "shadow_prices", "seconds", "rounds"
    }  # fmt: skip
    assert document["objective"]["value"] == pytest.approx(document["objective"]["bound"], rel=1e-6)
    assert document["accelerator_types"] == ["v100", "k80"]
    assert [job["job_id"] for job in document["jobs"]] == ["a", "b", "c"]
    assert set(document["jobs"][0]) == {
        *("job_id", "time_fractions", "throughput", "normalized_throughput", "vs_fair_share"),
        *("start_seconds", "end_seconds", "cost_per_hour", "cost_until_done", "deadline", "late"),
    }
    assert document["schema_version"] == 2
    assert set(document["shadow_prices"]) == {"v100", "k80"}
    assert [round_["index"] for round_ in document["rounds"]] == [0, 1]
    again = gp.Allocation.from_dict(document).to_dict()["jobs"]
    assert [job | stated for job, stated in zip(document["jobs"], again, strict=True)] == document["jobs"]


def test_several_policies_give_a_list_and_a_comparison(gavel: Gavel, small: list[str]) -> None:
    policies = ["-p", "fifo", "-p", "min_makespan", "-p", "max_min_fairness,agnostic=true"]
    documents = json.loads(gavel("solve", *small, *policies, "--json").out)
    assert [document["policy"] for document in documents] == ["fifo", "min_makespan", "max_min_fairness"]
    assert documents[0]["objective"] == {"value": None, "bound": None, "gap": None}
    table = gavel("solve", *small, *policies, "--wide").out
    header = next(line for line in table.splitlines() if "Policies compared" in line)
    assert header.split()[-3:] == ["fifo", "min_makespan", "max_min_fairness,agnostic=true"]
    assert "worst-off job, vs. fair share" in table


def test_merging_says_what_it_costs(gavel: Gavel, small: list[str], tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\na,4,1\nb,4.02,1.01\nc,3,0\n")
    out = gavel("solve", *small, "--merge-tolerance", "0.05").out
    assert "jobs of nearly equal speed were merged, which costs at most 0." in out
    assert "merged" not in gavel("solve", *small).out
    document = json.loads(gavel("solve", *small, "--merge-tolerance", "0.05", "--json").out)
    assert document["route"]["reduction"] == "merged"
    assert document["route"]["classes"] < 3
    wrong = gavel("solve", *small, "--merge-tolerance", "2")
    assert wrong.code == 2
    assert "--merge-tolerance" in wrong.err


def test_csv_has_a_line_per_policy_and_job(gavel: Gavel, small: list[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(gavel("solve", *small, "-p", "fifo", "-p", "min_makespan", "--csv").out)))
    assert [(row["policy"], row["job_id"]) for row in rows] == [(p, j) for p in ("fifo", "min_makespan") for j in "abc"]
    assert [row["v100"] for row in rows[:3]] == ["1.0", "1.0", "0.0"]


def test_set_applies_to_the_policies_that_have_the_option(gavel: Gavel, small: list[str]) -> None:
    documents = json.loads(gavel("solve", *small, "-p", "fifo", "-p", "max_min_fairness", "--set", "backfill=true", "--json").out)
    assert documents[0]["jobs"][1]["time_fractions"] == {"v100": 1.0, "k80": 0.0}
    assert gavel("solve", *small, "-p", "min_makespan", "--set", "backfill=true").code == 2


def test_out_writes_the_file_and_nothing_else(gavel: Gavel, small: list[str], tmp_path: Path) -> None:
    outcome = gavel("solve", *small, "--json", "--out", "answer.json")
    assert outcome.out == ""
    assert json.loads((tmp_path / "answer.json").read_text())["policy"] == "max_min_fairness"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer.json", "jobs.csv", "speeds.csv"]


def test_out_keeps_links_modes_and_pipes(gavel: Gavel, small: list[str], tmp_path: Path) -> None:
    (tmp_path / "target.csv").write_text("old")
    (tmp_path / "target.csv").chmod(0o600)
    (tmp_path / "link.csv").symlink_to("target.csv")
    assert gavel("solve", *small, "-p", "fifo", "--csv", "--out", "link.csv").code == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "target.csv").read_text().startswith("policy,")
    assert (tmp_path / "target.csv").stat().st_mode & 0o777 == 0o600
    assert gavel("solve", *small, "-p", "fifo", "--csv", "--out", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_standard_output_is_named(unbuffered: str) -> None:
    command = [sys.executable, "-m", "gavel_py", "policies"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (1, "Error: cannot write to standard output: No space left on device\n")


def test_a_gang_too_large_for_the_cluster_needs_no_measurement(gavel: Gavel, tmp_path: Path) -> None:
    header = "job_id,job_type,num_gpus,duration_seconds,duration_accelerator,deadline_factor\n"
    (tmp_path / "jobs.csv").write_text(header + "a,A3C,16,3600,v100,2\nb,A3C,1,,,\n")
    document = json.loads(gavel("solve", "jobs.csv", "-c", "v100:4", "--json").out)
    assert document["excluded"] == {"a": "its gang of 16 GPUs fits nowhere (largest gang that fits: v100: 4)"}
    assert document["jobs"][1]["time_fractions"] == {"v100": 1.0}


def test_numbers_are_never_cut(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "x" * 70
    (tmp_path / "jobs.csv").write_text(f"job_id,job_type\n{long},A3C\n")
    for columns in ("30", "50", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        out = gavel("solve", "jobs.csv", "-c", "v100:4,k80:4").out
        assert "100.0%" in out
        assert "xxx…xxx" in out
    assert f"  {long}  " in gavel("solve", "jobs.csv", "-c", "v100:4,k80:4", "--wide").out


def test_rounds_show_gpus_and_what_was_delivered(gavel: Gavel, small: list[str]) -> None:
    document = json.loads(gavel("rounds", *small, "-n", "4", "--json").out)
    assert len(document["rounds"]) == 4
    assert document["delivery"]["promised_gpu_seconds"] == pytest.approx(
        sum(job["num_gpus"] * job["promised_seconds"] for job in document["delivery"]["jobs"])
    )
    text = gavel("rounds", *small, "-n", "4").out
    assert " follow in later rounds." in text
    lines = list(csv.DictReader(io.StringIO(gavel("rounds", *small, "-n", "4", "--csv").out)))
    used = {(line["round"], line["node"], line["gpu"]) for line in lines}
    assert len(used) == len(lines)


def test_no_width_is_told_but_by_the_test_itself() -> None:
    """Test runners set a width of the terminal for their workers, which would truncate tables (tests/conftest.py)."""
    assert "COLUMNS" not in os.environ


@pytest.mark.guard
def test_no_table_is_wider_than_the_terminal(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        for arguments in (
            ["solve", *EXAMPLE, "--rounds", "2"],
            ["policies"],
            ["profiles", "list"],
            ["profiles", "show", "gavel-osdi20"],
        ):
            tables = [line for line in gavel(*arguments).out.splitlines() if line.startswith("  ")]
            assert tables
            assert max(len(line) for line in tables) <= columns


def test_the_example_is_a_realistic_cluster() -> None:
    cluster = gp.Cluster.from_file(EXAMPLES / "cluster.yaml")
    assert cluster.num_gpus >= 100
    assert len(gp.JobSet.from_file(EXAMPLES / "jobs.csv")) >= 60


def test_policies_are_listed_and_explained(gavel: Gavel) -> None:
    listed = json.loads(gavel("policies", "--json").out)
    assert [policy["name"] for policy in listed] == list(gp.policy_names())
    table = gavel("policies").out
    for name in gp.policy_names():
        assert name in table
        shown = gavel("policies", "show", name).out
        assert all(option in shown for option in gp.policy_options(gp.policy_class(name)))


def test_what_profiles_know_of_gpu_memory_is_shown(gavel: Gavel, tmp_path: Path) -> None:
    rows = "job_type,num_gpus,accelerator,steps_per_second,gpu_memory_gb\nbert,1,v100,2.5,9\nbert,1,t4,1,7.5\nbert,2,t4,2,\n"
    (tmp_path / "mine.csv").write_text(rows)
    assert gavel("profiles", "import", "mine.csv").code == 0
    table = [line.split() for line in gavel("profiles", "show", "mine").out.splitlines()]
    assert ["job", "type", "GPUs", "GB/GPU", "v100", "t4"] in table
    assert ["bert", "1", "9", "2.5", "1"] in table
    assert ["bert", "2", "2"] in table
    table = [line.split() for line in gavel("profiles", "show", "mine", "--job-type", "bert").out.splitlines()]
    assert ["t4", "consolidated", "1", "7.5", "1"] in table
    assert "GB/GPU" not in gavel("profiles", "show", "gavel-osdi20").out
    assert "bert,1,t4,consolidated,1.0,,,,7.5" in gavel("profiles", "export", "mine").out


def test_profiles_are_imported_shown_exported_and_deleted(gavel: Gavel, tmp_path: Path) -> None:
    text = "job_type,num_gpus,accelerator,placement,steps_per_second\nbert,1,v100,consolidated,2.5\nbert,2,v100,consolidated,4\n"
    (tmp_path / "mine.csv").write_text(text)
    assert gavel("profiles", "import", "mine.csv").code == 0
    names = [profile["name"] for profile in json.loads(gavel("profiles", "list", "--json").out)]
    assert names == [*gp.ThroughputProfile.builtin_names(), "mine"]
    assert ["bert", "1", "2.5"] in [line.split() for line in gavel("profiles", "show", "mine").out.splitlines()]
    exported = gavel("profiles", "export", "mine").out
    assert [row["steps_per_second"] for row in csv.DictReader(io.StringIO(exported))] == ["2.5", "4.0"]
    assert "exists; replace it" in gavel("profiles", "import", "mine.csv").err
    assert gavel("profiles", "import", "mine.csv", "--replace").code == 0
    (tmp_path / "jobs.csv").write_text("job_id,job_type\na,bert\n")
    assert gavel("solve", "jobs.csv", "-c", "v100:1", "--profile", "mine").code == 0
    assert gavel("profiles", "delete", "mine").code == 0
    assert gavel("profiles", "show", "mine").code == 2


def test_show_job_type_has_pairs_from_both_sides(gavel: Gavel) -> None:
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    own, other = profile.pair("A3C", "CycleGAN", 1, "v100")
    for job_type, partner, speed in (("A3C", "CycleGAN", own), ("CycleGAN", "A3C", other)):
        rows = [line.split() for line in gavel("profiles", "show", "gavel-osdi20", "--job-type", job_type).out.splitlines()]
        found = [row for row in rows if row[:3] == ["v100", "consolidated", partner]]
        assert [row[-1] for row in found] == [f"{speed:.4g}"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(gavel: Gavel, shell: str) -> None:
    outcome = gavel("completion", shell)
    assert outcome.code == 0
    assert "_GAVEL_COMPLETE" in outcome.out


@pytest.mark.deep
def test_completion_knows_policies() -> None:
    environment = os.environ | {"_GAVEL_COMPLETE": "bash_complete", "COMP_WORDS": "gavel solve -p max_", "COMP_CWORD": "3"}
    code = "import sys; sys.argv = ['gavel']; from gavel_py.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["plain,max_min_fairness", "plain,max_total_throughput", "plain,max_progress_rate"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "nowhere.csv", "-c", "v100:1"], "nowhere.csv: cannot be read: No such file or directory"),
        (["solve", "jobs.txt", "-c", "v100:1"], "jobs.txt: cannot determine the format from the name"),
        (["solve", "jobs.csv", "-c", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["solve", "jobs.csv", "-c", "v100:x"], "'v100:x' is not of the form TYPE:GPUS or TYPE:GPUS/GPUS_PER_NODE"),
        (["solve", "jobs.csv", "-c", "v100:2,k80:1", "-p", "fiffo"], "there is no policy 'fiffo'; did you mean 'fifo'"),
        (["solve", "jobs.csv", "-c", "v100:2,k80:1", "--set", "backfil=1"], "there is no option 'backfil'"),
        (["solve", "jobs.csv", "-c", "v100:2,k80:1", "--set", "efficiency"], "--set 'efficiency' is not of the form OPTION=VALUE"),
        (["solve", "jobs.csv", "-c", "v100:2,k80:1", "--profile", "gavel"], "has no profile 'gavel'"),
        (["solve", "jobs.csv", "-c", "v100:2", "--profile", "a", "--throughputs", "b"], "give only one of them"),
        (["solve", "jobs.csv", "-c", "v100:2", "--map-accelerator", "p100=v100"], "'p100' is not in the cluster"),
        (["solve", "jobs.csv", "-c", "tpu:2", "--throughputs", "speeds.csv"], "accelerator 'tpu': is not in profile"),
        (["solve", "jobs.csv"], "Missing option '--cluster'"),
        (["solve", "jobs.csv", "-c", "v100"], "'v100' is not of the form TYPE:GPUS or TYPE:GPUS/GPUS_PER_NODE"),
        (["solve", "jobs.csv", "-c", "v100:1", "-p", "fifo,backfill=true,backfill=false"], "--policy gives 'backfill' twice"),
        (["solve", "jobs.csv", "-c", "v100:1", "--round-seconds", "inf"], "Invalid value for '--round-seconds'"),
        (["rounds", "jobs.csv", "-c", "v100:2", "-p", "fifo", "-p", "min_makespan"], "one --policy at a time"),
        (["rounds", "jobs.csv", "-c", "v100:2", "-n", "1000001"], "1000001 is not in the range 1<=x<=1000000"),
        (["solve", "jobs.csv", "-c", "v100:2", "--rounds", "1000001"], "1000001 is not in the range 0<=x<=1000000"),
        (["slurm", "run", "--rounds", "1000001"], "1000001 is not in the range 1<=x<=1000000"),
        (
            ["solve", "jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "--out", "no/such/file"],
            "no/such/file: cannot be written",
        ),
        (["profiles", "show", "gavel-osdi2"], "did you mean 'gavel-osdi20'"),
        (["policies", "show", "fif"], "did you mean 'fifo'"),
        (["solve", "jobs.csv", "-c", "v100:1", "-p", "maxmin"], "there is no policy 'maxmin'; did you mean 'max_min_fairness'?"),
        (["solve", "jobs.csv", "-c", "v100:1", "--profile", "speeds"], "no profile 'speeds'; did you mean the file 'speeds.csv'?"),
        *(
            (
                [command, "v100:1", "-c", "jobs.csv"],
                "Error: v100:1 is a cluster, and jobs.csv has jobs; write the jobs first, and --c",
            )
            for command in ("solve", "simulate", "rounds")
        ),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
@pytest.mark.usefixtures("small")
def test_mistakes_are_named_and_exit_with_2(gavel: Gavel, arguments: list[str], message: str) -> None:
    outcome = gavel(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


@pytest.mark.usefixtures("small")
def test_faults_of_jobs_cluster_and_throughputs_come_together(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus\na,0\n")
    (tmp_path / "speeds.csv").write_text("job_id,v100\na,-1\n")
    outcome = gavel("solve", "jobs.csv", "-c", "v100", "--throughputs", "speeds.csv")
    assert outcome.code == 2
    for part in (
        "jobs.csv, line 2 (job 'a'), field num_gpus",
        "cluster: 'v100' is not of the form TYPE:GPUS",
        "speeds.csv, line 2",
    ):
        assert part in outcome.err


def test_an_unknown_job_type_is_named_with_the_nearest(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,job_type\na,ResNet-51 (batch size 64)\n")
    outcome = gavel("solve", "jobs.csv", "-c", "v100:1")
    assert outcome.code == 2
    needed = (
        "'ResNet-51 (batch size 64)' is missing, needed by job 'a' (jobs.csv, line 2); did you mean 'ResNet-50 (batch size 64)'"
    )
    assert needed in outcome.err


def test_a_missing_throughput_is_no_zero(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,job_type,num_gpus\na,A3C,4\n")
    outcome = gavel("solve", "jobs.csv", "-c", "v100:8")
    assert outcome.code == 2
    assert "has no throughput of" in outcome.err


def test_a_job_that_fits_nowhere_is_left_out_and_the_others_solved(gavel: Gavel, small: list[str]) -> None:
    small[small.index("v100:2,k80:1")] = "v100:1,k80:1"
    document = json.loads(gavel("solve", *small, "--json").out)
    assert document["excluded"] == {"c": "its gang of 2 GPUs fits nowhere (largest gang that fits: v100: 1)"}
    assert "Left out:\n  c: its gang of 2 GPUs fits nowhere" in gavel("solve", *small).out


@pytest.mark.parametrize(("jobs", "cluster"), [("job_id\n", "v100:2"), ("job_id\na\n", "v100:0")])
def test_nothing_to_allocate_is_no_mistake(gavel: Gavel, tmp_path: Path, jobs: str, cluster: str) -> None:
    (tmp_path / "jobs.csv").write_text(jobs)
    (tmp_path / "speeds.csv").write_text("job_id,v100\na,1\n")
    for form in ([], ["--json"], ["--csv"], ["--rounds", "2"]):
        assert gavel("solve", "jobs.csv", "-c", cluster, "--throughputs", "speeds.csv", *form).code == 0
    assert gavel("rounds", "jobs.csv", "-c", cluster, "--throughputs", "speeds.csv").code == 0


def test_unmapped_accelerators_are_left_out_with_a_warning(gavel: Gavel, small: list[str]) -> None:
    small[small.index("v100:2,k80:1")] = "V100M16:2,k80:1,t4:3"
    outcome = gavel("solve", *small, "--map-accelerator", "V100M16=v100", "--allow-unknown-types", "--json")
    assert outcome.code == 0
    assert outcome.err == "warning: 3 GPUs are ignored: accelerator 't4' is not in profile 'speeds', which has v100, k80\n"
    assert json.loads(outcome.out)["accelerator_types"] == ["v100", "k80"]


@needs_shared_data
def test_the_published_trace_is_solved(gavel: Gavel) -> None:
    trace = str(SHARED / "gavel" / "artifact_evaluation.trace")
    document = json.loads(
        gavel("solve", trace, "--cluster", "v100:2,k80:4", "--policy", "min_makespan", "--rounds", "5", "--json").out
    )
    assert len(document["jobs"]) > 10
    assert document["status"] == "optimal"


@needs_shared_data
def test_openb_nodes_are_solved_with_a_few_hundred_jobs(gavel: Gavel, tmp_path: Path) -> None:
    jobs = gp.JobSet.from_file(EXAMPLES / "jobs.csv")
    lines = [f"{job.job_id}-{copy},{job.job_type},{job.num_gpus},{job.locality}" for copy in range(3) for job in jobs]
    (tmp_path / "jobs.csv").write_text("job_id,job_type,num_gpus,locality\n" + "\n".join(lines) + "\n")
    nodes = str(SHARED / "openb" / "openb_node_list_gpu_node.csv")
    mapped = [part for name in ("V100M16=v100", "V100M32=v100", "P100=p100") for part in ("--map-accelerator", name)]
    outcome = gavel("solve", "jobs.csv", "--cluster", nodes, *mapped, "--allow-unknown-types", "--rounds", "2", "--json")
    document = json.loads(outcome.out)
    assert document["accelerator_types"] == ["p100", "v100"]
    assert len(document["jobs"]) == 360
    assert outcome.err.count("are ignored") == len(document["unused_gpus"]) == 4


@pytest.mark.deep
def test_ctrl_c_ends_at_once_without_a_traceback(tmp_path: Path) -> None:
    jobs = "job_id,num_gpus\n" + "".join(f"{i},{1 + i % 3}\n" for i in range(20_000))
    speeds = "job_id,a,b,c\n" + "".join(f"{i},{i % 97 + 1},{i % 89 + 1},{i % 83 + 1}\n" for i in range(20_000))
    (tmp_path / "jobs.csv").write_text(jobs)
    (tmp_path / "speeds.csv").write_text(speeds)
    command = [sys.executable, "-m", "gavel_py", "solve", "jobs.csv", "-c", "a:900,b:900,c:900", "--throughputs", "speeds.csv"]
    command += ["-p", "nash_welfare"]  # which takes several seconds
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(3)
        while process.poll() is None:
            # Python drops an interrupt that arrives in a destructor; a user would press again.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
        out, err = process.communicate()
    assert (process.returncode, out, err.strip()) == (130, "", "Interrupted")


@pytest.mark.guard
def test_closed_standard_output_is_no_error() -> None:
    command = f"{sys.executable} -m gavel_py profiles list >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.deep
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m gavel_py profiles export gavel-osdi20 | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("job_type,")
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
