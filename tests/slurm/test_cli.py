"""The command gavel slurm, with programs that print recordings in place of Slurm's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.monitoring.event_log import EventLog
from tests.slurm.support import cluster, driver, recorded_commands
from tests.support.commands import Gavel, runner


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """The command, with a sinfo and a squeue on the path."""
    monkeypatch.setenv("PATH", f"{recorded_commands(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    return runner(capsys, "slurm")


def test_status(gavel: Gavel) -> None:
    done = gavel("status", "--partition", "opt")
    assert (done.code, done.err) == (0, "")
    assert "draining" in done.out
    assert "not managed: it is in another partition" in done.out
    document = json.loads(gavel("status", "--partition", "opt", "--json").out)
    assert {node["node"]: node["gpus"] for node in document["nodes"]} == {
        f"{kind}-{number}": 4 for kind in ("k80", "p100", "v100") for number in (0, 1)
    }
    assert len(document["jobs"]) == 11


def test_plan_changes_nothing(gavel: Gavel, tmp_path: Path) -> None:
    planned = json.loads(gavel("plan", "--partition", "opt", "--json", "-p", "fifo").out)
    assert set(planned["start"]) == {"101", "103_0", "103_1"}
    text = gavel("run", "--partition", "opt", "--dry-run", "-p", "fifo").out
    assert text.startswith("Round 0: 0 kept, 0 stopped, 3 to start")
    assert not (tmp_path / "states").exists()


def test_names_of_gpus_and_nodes_left_out_are_told(gavel: Gavel, tmp_path: Path) -> None:
    rows = "job_type,num_gpus,accelerator,steps_per_second\nbert,1,V100-PCIe,8\nbert,1,K80,2\n"
    (tmp_path / "lab.csv").write_text(rows)
    words = ("--partition", "opt", "--profile", str(tmp_path / "lab.csv"))
    notes = [
        "GPU type 'k80' is treated as 'K80' of the profile: they differ only in case",
        "GPU type 'v100' is treated as 'V100-PCIe' of the profile: they name the same accelerator; for another one: "
        "--map-accelerator v100=NAME",
        "profile lab does not have GPU type 'p100'; it has V100-PCIe, K80; its nodes are ignored (--estimate or --learn uses them "
        "by their specifications): p100-0, p100-1",
    ]
    assert gavel("status", *words).out.splitlines()[-5:] == [notes[0], "", notes[1], "", notes[2]]
    ran = gavel("run", "--shadow", "--once", *words).out.splitlines()
    assert ran[:3] == notes
    assert ran[3].startswith("Round 0: ")
    (tmp_path / "lab.csv").write_text(f"{rows.splitlines()[0]}\nbert,1,h100,8\n")
    for command in ("status", "plan", "run"):
        done = gavel(command, *words, "--state", str(tmp_path / "state"))
        assert done.code == 2
        assert "profile lab: does not have GPU types 'k80', 'p100', 'v100'; it has h100; --estimate and --learn take" in done.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--partition", "op"), "there is no partition 'op'; did you mean 'opt'?"),
        (("--partition", "o p"), "'o p' is not a valid partition name"),
        (("--partition", "opt", "--default-type", "bert"), "'bert' is not in profile 'gavel-osdi20'"),
        (("--partition", "opt", "-p", "fif"), "'fif'"),
        (("--partition", "opt", "--progress", "/nowhere"), "is not a directory of progress files"),
        (("--partition", "opt", "--price", "v100=cheap"), "--price v100='cheap' is not a number"),
        (("--partition", "opt", "--map-accelerator", "v100"), "is not of the form OLD=NEW"),
    ],
)
def test_mistakes_are_reported(gavel: Gavel, words: tuple[str, ...], text: str) -> None:
    done = gavel("plan", *words)
    assert done.code == 2
    assert text in done.err
    assert "Traceback" not in done.err


@pytest.mark.deep
def test_slurm_is_missing_or_does_not_answer(gavel: Gavel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin" / "squeue").rename(tmp_path / "bin" / "elsewhere")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = gavel("status", "--partition", "opt")
    assert (done.code, done.out) == (1, "")
    assert done.err == "Error: no Slurm here: squeue was not found; Slurm's commands must be installed and on the PATH\n"
    (tmp_path / "bin" / "elsewhere").rename(tmp_path / "bin" / "squeue")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin:/bin")
    program = tmp_path / "bin" / "sinfo"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    done = gavel("plan", "--partition", "opt", "--timeout", "0.2")
    assert (done.code, done.out) == (1, "")
    assert "sinfo has not answered within 0.2 s; is slurmctld up?" in done.err
    program.write_text("#!/bin/sh\necho 'slurm_load_node: \x1b[1mUnable to contact' >&2\nexit 1\n")
    done = gavel("plan", "--partition", "opt")
    assert done.code == 1
    assert "sinfo --Node --all --json failed: slurm_load_node:  [1mUnable to contact" in done.err
    program.write_text("#!/bin/sh\necho hello\n")
    assert "printed no JSON: hello" in gavel("plan", "--partition", "opt").err
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GAVEL_SLURM_STATE", str(tmp_path / "none"))
    place = ("--partition", "opt")
    for words in (["plan", *place], ["run", *place], ["run", *place, "--shadow"], ["release", *place], ["why", "1"]):
        done = gavel(*words)
        assert done.code == 1
        assert re.search(r"no Slurm here: \w+ was not found; Slurm's commands must be installed and on the PATH$", done.err), words


def test_install(gavel: Gavel, tmp_path: Path) -> None:
    done = gavel("install", "--partition", "gpu", "--user", "root", "--user", "1234", "--out", str(tmp_path / "job_submit.lua"))
    assert (done.code, done.out) == (0, "")
    assert "JobSubmitPlugins=lua" in done.err
    text = (tmp_path / "job_submit.lua").read_text()
    assert 'local PARTITIONS = "gpu"' in text
    assert "local ADMINISTRATORS = { [0] = true, [1234] = true }" in text
    assert "@" not in text
    unit = tmp_path / "gavel-slurm.service"
    gavel("install", "--partition", "gpu", "--user", "root", "--service", str(unit))
    assert f"ExecStart={Path(sys.executable).with_name('gavel')} slurm run --partition gpu" in unit.read_text()
    assert gavel("install", "--partition", 'x"; os.exit()').code == 2
    assert "there is no such user" in gavel("install", "--partition", "gpu", "--user", "nobody-at-all").err


def test_install_keeps_the_settings_of_the_site(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = gavel("install", "--partition", "gpu").err
    assert "2. In slurm.conf, add these to the values that your site already has:\n" in told
    assert "\nMinJobAge=300\nSchedulerParameters=batch_sched_delay=0,sched_interval=5,default_queue_depth=1000\n" in told
    program = tmp_path / "scontrol"
    lines = ["SchedulerParameters     = bf_continue,sched_interval=60,defer", "JobSubmitPlugins        = require_timelimit"]
    lines += ["MinJobAge               = 600 sec", "JobRequeue              = 1"]
    program.write_text('#!/bin/sh\nwhile read -r line; do echo "$line"; done <<E\n' + "\n".join(lines) + "\nE\n")
    program.chmod(0o755)
    told = gavel("install", "--partition", "gpu").err
    assert "2. In slurm.conf, with the values of your site:\n\nJobSubmitPlugins=require_timelimit,lua\nJobRequeue=1\n" in told
    assert "MinJobAge=600\nSchedulerParameters=bf_continue,defer,batch_sched_delay=0,sched_interval=5,default_queue" in told


def test_install_notices_that_the_partition_is_the_default(gavel: Gavel, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "scontrol"
    lines = "".join(f"PartitionName={name} Default={is_default} Nodes=a\n" for name, is_default in (("gpu", "YES"), ("b", "NO")))
    program.write_text(f"#!/bin/sh\ncase $2 in partition) cat <<E\n{lines}E\n;; esac\n")
    told = "Jobs without a partition are managed too: gpu is the default (Default=YES)."
    for names, is_default in (("gpu", True), ("b,gpu", True), ("b", False), ("c", False)):
        done = gavel("install", "--partition", names)
        assert (told in done.err) == is_default
        assert f"local IS_DEFAULT = {str(is_default).lower()}\n" in done.out
    assert "local IS_DEFAULT = true\n" in gavel("install", "--partition", "b", "--default-partition").out


def test_install_notices_an_interpreter_that_the_account_cannot_run(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("install", "--partition", "gpu", "--user", "root")
    nobody = str(max(os.getuid(), 60_000) + 1)
    with tempfile.TemporaryDirectory() as folder:  # all accounts may enter the folder in which it lies
        home, program = Path(folder), Path(folder, "bin", "python")
        program.parent.mkdir()
        program.symlink_to("/bin/true")
        monkeypatch.setattr(sys, "executable", str(program))
        barrier = f"warning: {nobody} cannot run this gavel: {program} lies behind {home}, which it may not enter; make the environ"
        for mode, is_closed in ((0o700, True), (0o750, True), (0o711, False)):
            home.chmod(mode)
            assert (barrier in gavel(*words, "--user", nobody).err) == is_closed
        home.chmod(0o700)
        assert "cannot run" not in gavel(*words).err


def test_the_default_type_of_the_example_suits_gangs(gavel: Gavel, tmp_path: Path) -> None:
    gavel("install", "--partition", "gpu", "--defaults", str(tmp_path / "defaults"))
    (name,) = re.findall(r"--default-type '(.*?)'", (tmp_path / "defaults").read_text())
    sizes = {row[1] for row in gp.ThroughputProfile.builtin("gavel-osdi20").rows if row[0] == name}
    assert {1, 2, 4, 8} <= sizes


def test_install_writes_a_unit_that_reads_its_options(gavel: Gavel, tmp_path: Path) -> None:
    unit, options = tmp_path / "gavel-slurm.service", tmp_path / "gavel-slurm"
    words = ("--partition", "gpu", "--user", "root", "--service", str(unit), "--defaults", str(options))
    assert gavel("install", *words, "--out", str(tmp_path / "job_submit.lua")).code == 0
    lines = options.read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("# ")] == ['OPTIONS=""'], "nothing is set"
    listed = {line.split()[1] for line in lines if line.startswith("# --")}
    assert {"--round", "--metrics-port", "--log-level", "--default-type"} <= listed
    assert not listed & {"--partition", "--state", "--shadow", "--once"}
    assert "EnvironmentFile=-/etc/default/gavel-slurm\n" in unit.read_text()
    assert re.search(r"^ExecStart=\S+ slurm run --partition gpu .* \$OPTIONS$", unit.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (apt-get install systemd)")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "gavel-slurm.service"
    unit.write_text(gp.slurm_service("gpu", user="root", command=sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.deep
def test_the_log_level_decides_what_is_reported(gavel: Gavel, tmp_path: Path) -> None:
    told = {}
    for level in ("warning", "info", "debug"):
        words = ("run", "--shadow", "--partition", "opt", "--once", "-p", "fifo", "--state", str(tmp_path / level))
        told[level] = gavel(*words, "--log-level", level).err.splitlines()
    assert told["warning"] == [
        f"State and log are in {tmp_path / 'warning'}.",
        f"To compare it with Slurm: gavel slurm report {tmp_path / 'warning'}",
    ]
    assert any(re.search(r"^\d{4}-\d\d-\d\d \S+ INFO .*event_log: begun policy=fifo", line) for line in told["info"])
    assert max(map(len, told["info"])) < 600
    assert len("".join(told["info"])) < len("".join(told["debug"]))


def test_report(gavel: Gavel, tmp_path: Path) -> None:
    slurm = cluster()
    for number in range(1, 6):
        slurm.submit(number, per_job="gpu:4", comment="gavel: type=bert steps=100000")
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            driven.round()
            slurm.clock.seconds += 100
            running = [job.number for job in slurm.jobs.values() if job.state == "RUNNING"]
            slurm.end(running[0])
        driven.round()
    run = gp.slurm_run(tmp_path / "log.jsonl")
    assert run.metrics["finished"] == 4
    assert run.over_time is not None
    assert len(run.over_time.seconds) == 6
    assert run.metrics["makespan_seconds"] == 400
    assert all((used <= 1).all() for used in run.over_time.used.values())
    # GPU-seconds held, counted from the stays and over time.
    held = sum(stay.gpus * (stay.end_seconds - stay.start_seconds) for stay in run.stays)
    lengths = run.over_time.seconds[1:] - run.over_time.seconds[:-1]
    assert held == pytest.approx(sum((used * lengths).sum() * 4 for used in run.over_time.used.values()))
    done = gavel("report", str(tmp_path))
    assert done.code == 0
    assert "jobs finished" in done.out
    metrics = json.loads(gavel("report", str(tmp_path), "--json").out)["metrics"]
    assert metrics["finished"] == 4
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event":"sto')  # the incomplete line of a killed driver
    assert gp.slurm_run(tmp_path / "log.jsonl").metrics == run.metrics
    with closing(EventLog(tmp_path / "log.jsonl")) as events:
        events.write("ended", 1.8e9)
    assert (tmp_path / "log.jsonl").read_text().splitlines()[-2:] == ['{"event":"sto', '{"event":"ended","seconds":1800000000.0}']
    assert gp.slurm_run(tmp_path / "log.jsonl").metrics["finished"] == 4
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    assert "is not from the log of a driver" in gavel("report", str(tmp_path / "other.jsonl")).err
