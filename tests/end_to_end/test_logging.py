"""Logging with the standard module: nothing by default, then a line for each event of interest to an operator."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.scheduling.schedulers import job, scheduler
from tests.support.commands import Gavel, runner

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (str(ROOT / "examples/jobs.csv"), "--cluster", str(ROOT / "examples/cluster.yaml"))
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|DEBUG) (gavel_py[\w.]*)( \[\d+\])?: .+")


def problem() -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(np.random.default_rng(0).uniform(0.5, 8.0, (12, 3)), [4, 3, 2])


def told(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """Return the messages of a module, each after its level."""
    return [f"{each.levelname} {each.getMessage()}" for each in caplog.records if each.name == f"gavel_py.{logger}"]


@pytest.mark.deep
def test_nothing_is_written_unless_it_is_asked_for() -> None:
    program = (
        "import gavel_py as gp, logging\n"
        "assert [type(each) for each in logging.getLogger('gavel_py').handlers] == [logging.NullHandler]\n"
        "assert not logging.getLogger().handlers\n"
        "speeds = gp.ThroughputProfile.from_matrix([[2.0], [1.0]], job_ids=['a', 'b'], accelerators=['v100'])\n"
        "made = gp.RoundScheduler(gp.Cluster.from_counts({'v100': 1}), speeds)\n"
        "made.submit(gp.Job('a'))\n"
        "made.next_round(), made.node_down('v100-0'), made.job_failed('a'), made.next_round()\n"
        "made = gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1]], [1, 1])\n"
        "gp.solve(made), gp.solve(made, 'nash_welfare')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("", "")


def test_all_solvers_are_created_by_new_highs() -> None:
    """The constructor of HiGHS 1.16 writes its version to standard output, and `new_highs` prevents it."""
    created = [path for path in (ROOT / "gavel_py").rglob("*.py") if "highspy.Highs()" in path.read_text(encoding="utf-8")]
    assert created == []


def test_a_line_for_each_solve(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gavel_py"):
        gp.solve(problem())
        gp.solve(problem(), "fifo")
    first, second = told(caplog, "allocation.solver")
    assert re.fullmatch(
        r"INFO max_min_fairness: 12 jobs \(0 excluded\), 3 GPU types: optimal, objective [\d.]+, gap [\d.e-]+, [\d.]+ s", first
    )
    assert re.fullmatch(r"INFO fifo: 12 jobs \(0 excluded\), 3 GPU types: ordered, [\d.]+ s", second)
    assert len(caplog.records) == 2


def test_programs_and_routes_for_those_who_look_for_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gavel_py"):
        route = gp.solve(problem()).route
    assert route is not None
    programs = told(caplog, "optimization.solving.highs")
    assert len(programs) == route.programs
    pattern = r"DEBUG \d+ rows, \d+ columns, \d+ non-zeros: simplex, optimal after (\d+) iterations, [\d.]+ s"
    assert sum(int(re.fullmatch(pattern, each)[1]) for each in programs) == route.iterations  # type: ignore[index]
    text = f"reduction classes, {route.classes} classes, simplex, {route.programs} programs, {route.iterations} iterations"
    assert told(caplog, "allocation.solver")[-1] == f"DEBUG max_min_fairness: {text}"


def test_fallbacks(caplog: pytest.LogCaptureFixture) -> None:
    class Difficult(gp.policy_class("max_min_fairness")):
        def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:
            if solver.algorithm == "simplex":
                raise gp.SolverError("there is no answer this way")
            return super().decide(jobs, solver)

    with caplog.at_level(logging.DEBUG, "gavel_py"):
        gp.solve(problem(), Difficult())
    (fallback,) = [each for each in told(caplog, "allocation.solver") if "trying the next route" in each]
    assert fallback.endswith("no proven answer, trying the next route: classes, simplex: there is no answer this way")
    assert all("interior point" in each for each in told(caplog, "optimization.solving.highs"))


def test_a_line_for_each_round_and_for_what_fails(caplog: pytest.LogCaptureFixture) -> None:
    made = scheduler("v100:2/1", [job("a"), job("b", max_retries=0), job("c", job_type="stuck")])
    with caplog.at_level(logging.INFO, "gavel_py"):
        made.next_round()
        made.node_down(made.running["a"].gpus[0][0])
        made.job_failed("b")
        made.gpu_lost("v100-0", 0)
        made.gpu_back("v100-0", 0)
        made.node_up("v100-0")
        made.next_round(400)
    first, *events, last = told(caplog, "scheduling.scheduler")
    assert re.fullmatch(r"INFO round 0 at 0 s: 3 jobs, 2 running, 2 started, 0 preempted, 1 excluded, [\d.]+ s", first)
    assert events == [
        "INFO node v100-0 is down; 1 gangs stop",
        "INFO job b has failed: it left after 1 failure, and may not be tried again",
        "INFO GPU 0 of node v100-0 is lost; 0 gangs stop",
        "INFO GPU 0 of node v100-0 is back",
        "INFO node v100-0 is up; 0 gangs stop",
    ]
    assert last.startswith("INFO round 1 at 400 s: 2 jobs, ")


class TestCommand:
    @pytest.fixture
    def gavel(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
        return runner(capsys)

    @pytest.mark.deep
    def test_what_the_options_add(self, gavel: Gavel) -> None:
        plain, verbose, all_of_it = (gavel(*options, "solve", *EXAMPLE, "--csv") for options in ([], ["-v"], ["-vv"]))
        assert plain.err == ""
        assert plain.out == verbose.out == all_of_it.out
        found = [[LINE.fullmatch(line).group(1, 2) for line in each.err.splitlines()] for each in (verbose, all_of_it)]  # type: ignore[union-attr]
        assert found[0] == [("INFO", "gavel_py.allocation.solver")]
        assert {("INFO", "gavel_py.allocation.solver"), ("DEBUG", "gavel_py.optimization.solving.highs")} <= set(found[1])
        assert gavel("solve", *EXAMPLE, "--csv").err == ""  # settings of the previous command do not remain
        assert logging.getLogger("gavel_py").level == logging.NOTSET

    @pytest.mark.parametrize(
        ("command", "logger"),
        [
            (["solve", *EXAMPLE], "allocation.solver"),
            (["explain", "language-000", *EXAMPLE], "allocation.solver"),
            (["rounds", *EXAMPLE, "--rounds", "2"], "scheduling.scheduler"),
            (["simulate", "three.csv", "-c", "v100:4"], "scheduling.scheduler"),
            (["sweep", "-p", "fifo", "--jobs", "3", "-c", "v100:4", "--workers", "1"], "sweeps.dispatcher"),
            (["policies"], None),
            (["profiles", "list"], None),
            (["trace", "formats"], None),
            (["slurm", "--help"], None),
            (["report", "--help"], None),
            (["completion", "bash"], None),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else str(value),
    )
    def test_with_every_command(self, gavel: Gavel, command: list[str], logger: str | None) -> None:
        jobs = [f"job-{i},ResNet-50 (batch size 64),1,1000" for i in range(3)]
        Path("three.csv").write_text("\n".join(["job_id,job_type,num_gpus,total_steps", *jobs]))
        done = gavel("-v", *command)
        assert done.code == 0, done.err
        logged = {found[2] for line in done.err.splitlines() if (found := LINE.fullmatch(line))}
        assert logged >= ({f"gavel_py.{logger}"} if logger else set())

    @pytest.mark.deep
    def test_the_processes_of_a_sweep_log_too(self, tmp_path: Path) -> None:
        sweep = ["sweep", "-p", "fifo", "-p", "max_min_fairness", "--jobs", "3", "-c", "v100:4", "--workers", "2"]
        command = [sys.executable, "-m", "gavel_py", "-vv", *sweep]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        found = [match for line in done.stderr.splitlines() if (match := LINE.fullmatch(line))]
        processes = {match[3] for match in found if match[2] == "gavel_py.scheduling.scheduler"}
        assert None not in processes
        assert len(processes) == 2
        assert sum(match[2] == "gavel_py.sweeps.dispatcher" for match in found) == 2
