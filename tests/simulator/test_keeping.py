"""gavel simulate --save-state and --continue: an interrupted or killed simulation continues and writes the same files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, Outcome, runner

RANDOM = ["--job-failures", "0.1", "--node-mtbf", "20", "--node-repair", "1", "--maintenance", "v100-0:1h:3h", "--seed", "7"]
FILES = ["--jobs-out", "jobs.csv", "--timeline-out", "rounds.csv"]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """Run `gavel simulate` in a directory with a trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    trace = gp.generate_trace(24, profile, jobs_per_hour=30, durations=gp.LogUniform(((1, 600, 7200),)), seed=1)
    (tmp_path / "mixed.csv").write_text(gp.trace_text(trace))
    return runner(capsys, "simulate")


def command(*policies: str) -> list[str]:
    return ["mixed.csv", "-c", "v100:8/4,p100:8/4,k80:8/8", *(word for policy in policies for word in ("-p", policy)), "--json"]


def faults_of(outcome: Outcome) -> str:
    """Return what a command with `--json` says of its faults, as lines."""
    return "\n".join(str(gp.Fault(**each)) for each in json.loads(outcome.out)["faults"])


def told(text: str) -> Any:
    """The output without computing times."""
    document = json.loads(text)
    for played in document["policies"]:
        played["summary"].update(solver_seconds=0.0, wall_seconds=0.0)
    return document


def interrupted(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Simulate Ctrl-C after this number of rounds."""
    step, calls = gp.Simulation.step, iter(range(1_000_000))

    def stepping(self: gp.Simulation, until_seconds: float = float("inf")) -> bool:
        more = step(self, until_seconds)
        if next(calls) == rounds:
            signal.raise_signal(signal.SIGINT)
        return more

    monkeypatch.setattr(gp.Simulation, "step", stepping)


@pytest.mark.deep
@pytest.mark.parametrize("policies", [("max_min_fairness",), ("fifo", "max_min_fairness", "isolated")])
def test_an_interrupt_writes_the_state(gavel: Gavel, policies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*command(*policies), *RANDOM, *FILES]
    whole = gavel(*options)
    files = [Path(name).read_bytes() for name in ("jobs.csv", "rounds.csv")]
    for rounds in (3, 40, 90):
        with monkeypatch.context() as patched:
            interrupted(patched, rounds)
            stopped = gavel(*options, "--save-state", "state", "--state-every", "1h")
        if stopped.code == 0:
            return  # the simulation ended before
        assert stopped.code == 130
        assert "The state is in state; continue with --continue state.\n" in stopped.err
        assert [Path(name).read_bytes() for name in ("jobs.csv", "rounds.csv")] != files
        again = gavel(*options, "--save-state", "state", "--continue", "state")
        assert (again.code, told(again.out)) == (0, told(whole.out))
        assert [Path(name).read_bytes() for name in ("jobs.csv", "rounds.csv")] == files


@pytest.mark.deep
def test_a_killed_process_continues_from_its_last_state(gavel: Gavel, tmp_path: Path) -> None:
    options = [*command("fifo", "isolated"), *RANDOM, *FILES, "--round-seconds", "60"]
    whole = gavel(*options)
    files = [Path(name).read_bytes() for name in ("jobs.csv", "rounds.csv")]
    program = [sys.executable, "-m", "gavel_py", "simulate", *options, "--save-state", "state", "--state-every", "7rounds"]
    Path("jobs.csv").unlink()
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not Path("state").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        process.kill()
    again = gavel(*options, "--continue", "state")
    assert (again.code, again.err) == (0, "")
    assert told(again.out) == told(whole.out)
    assert [Path(name).read_bytes() for name in ("jobs.csv", "rounds.csv")] == files


@pytest.mark.deep
def test_a_continued_simulation_may_have_a_later_end(gavel: Gavel) -> None:
    whole = gavel(*command("fifo"), "--events", "--until", "5h")
    gavel(*command("fifo"), "--events", "--until", "2h", "--save-state", "state", "--state-every", "1round")
    again = gavel(*command("fifo"), "--events", "--until", "5h", "--continue", "state")
    assert told(again.out) == told(whole.out)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--continue", "absent"], "absent: cannot be read: No such file or directory"),
        (["--continue", "mixed.csv"], "mixed.csv"),
        (["--continue", "own"], "own: was not written by gavel simulate --save-state"),
        (["--continue", "state", "--seed", "3"], "state, field seed: was 0 when the state was saved, but is 3 now"),
        (
            ["--continue", "state", "--solve-seconds", "60"],
            "field solve_seconds: was 0.0 when the state was saved, but is 60.0 now",
        ),
        (
            ["--continue", "state", "-p", "isolated"],
            "field policy: was ['fifo'] when the state was saved, but is ['fifo', 'isolated']",
        ),
        (
            ["--continue", "state", "--jobs-out", "x.csv"],
            "--jobs-out and --timeline-out: must be the same as when the state was saved",
        ),
        (["--state-every", "10min"], "--state-every sets how often --save-state FILE is written; give both"),
        (["--save-state", "s", "--state-every", "often"], "is neither a time, as in 90s or 10min, nor a number of rounds"),
        (["--save-state", "s", "--state-every", "0rounds"], "is neither a time"),
        (["--save-state", "s", "--jobs-out", "j.parquet"], "j.parquet: a Parquet file cannot be continued by another process"),
        (["--save-state", "s", "--jobs-out", "./s"], "--jobs-out s and --save-state s are the same file"),
        (["--save-state", "no/folder/s", "--state-every", "1round"], "no/folder/s: cannot be written: there is no folder"),
    ],
)
def test_invalid_options_are_refused(gavel: Gavel, options: list[str], said: str) -> None:
    if "state" in options:
        gavel(*command("fifo"), "--until", "1h", "--save-state", "state", "--state-every", "1round")
    cluster = gp.Cluster.from_counts({"v100": 1})
    gp.Simulation([], cluster, gp.ThroughputProfile.builtin("gavel-osdi20"), "fifo").save("own", note=[1])
    outcome = gavel(*command("fifo"), "--until", "2h", *options)
    assert outcome.code == 2
    assert said in faults_of(outcome)


@pytest.mark.deep
def test_files_that_have_become_shorter_are_refused(gavel: Gavel) -> None:
    options = [*command("fifo"), "--jobs-out", "jobs.csv"]
    gavel(*options, "--until", "5h", "--save-state", "state", "--state-every", "1round")
    Path("jobs.csv").write_text("")
    outcome = gavel(*options, "--continue", "state")
    assert outcome.code == 2
    assert "jobs.csv: has 0 bytes, but had " in faults_of(outcome)


def test_another_cluster_is_refused(gavel: Gavel) -> None:
    Path("cluster.yaml").write_text("nodes:\n  - {name: a, accelerator: v100, num_gpus: 8}\n")
    options = ["mixed.csv", "-c", "cluster.yaml", "-p", "fifo"]
    gavel(*options, "--until", "1h", "--save-state", "state", "--state-every", "1round")
    Path("cluster.yaml").write_text("nodes:\n  - {name: a, accelerator: v100, num_gpus: 16}\n")
    outcome = gavel(*options, "--until", "2h", "--continue", "state")
    assert outcome.code == 2
    assert "state: was written with another cluster; continue with the one that the simulation had" in outcome.err
