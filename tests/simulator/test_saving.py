"""A saved and loaded simulation continues with the same results; other files and traces are refused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.simulator.support import saved_state, write_state
from tests.support.deaths import DEATHS
from tests.support.examples import examples
from tests.support.fakes import refusal

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("v100", "k80")
CLUSTER = "v100:4/2,k80:4/4"


def speeds(count: int = 40) -> gp.ThroughputProfile | Any:
    table = [[2.0 + i % 3, 1.0] for i in range(count)]
    return gp.ThroughputProfile.from_matrix(table, job_ids=[f"j{i}" for i in range(count)], accelerators=list(KINDS))


def begin(trace: list[gp.Submission], **options: Any) -> gp.Simulation:
    return gp.Simulation(trace, gp.Cluster.from_inline(CLUSTER), speeds(), **options)


def told(result: gp.SimulationResult) -> str:
    """The result without computing times."""
    return json.dumps(replace(result, summary=replace(result.summary, solver_seconds=0.0, wall_seconds=0.0)).to_dict())


def few(count: int = 12) -> list[gp.Submission]:
    jobs = (gp.Job(f"j{i}", num_gpus=1 + i % 3, total_steps=900 + 150 * i, arrival_seconds=140 * i) for i in range(count))
    return [gp.Submission(job, failed_attempts=int(i % 3 == 1)) for i, job in enumerate(jobs)]


@pytest.fixture(scope="module")
def whole() -> str:
    """The result of forty jobs, undisturbed."""
    return told(begin(few(40), policy="max_min_fairness", job_failures="recorded").run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@st.composite
def traces(draw: st.DrawFn) -> list[gp.Submission]:
    found, arrival = [], 0.0
    for i in range(draw(st.integers(1, 14))):
        arrival += draw(st.sampled_from([0.0, 17.5, 333.3, 1000.0]))
        job = gp.Job(
            f"j{i}",
            arrival_seconds=arrival,
            num_gpus=draw(st.sampled_from([1, 1, 2, 4])),
            total_steps=draw(st.floats(1, 4000)),
            weight=draw(st.sampled_from([1.0, 2.0])),
            priority=draw(st.sampled_from([0.0, 1.0])),
            max_retries=draw(st.integers(0, 2)),
            deadline_factor=draw(st.sampled_from([None, 1.5])),
            locality=draw(st.sampled_from(["any", "node"])),
        )
        cancelled = draw(st.none() | st.floats(arrival, arrival + 2000))
        run = draw(st.sampled_from([None, 100.0]))
        found.append(
            gp.Submission(
                job,
                failed_attempts=draw(st.integers(0, 2)),
                cancelled_seconds=cancelled,
                run_seconds=run,
                estimate_seconds=run and 50,
            )
        )
    return found


IN_ROUNDS = ("fifo", "shortest_job_first", "max_min_fairness", "finish_time_fairness", "least_attained_service")
BY_EVENTS = ("fifo", "shortest_job_first", "priority")


@pytest.mark.deep
@settings(max_examples=examples(40, costly=True), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(), data=st.data())
def test_a_loaded_simulation_continues_with_the_same_bytes(trace: list[gp.Submission], data: st.DataObject, path: Path) -> None:
    events = data.draw(st.booleans())
    options: dict[str, Any] = {
        "policy": data.draw(st.sampled_from(BY_EVENTS if events else IN_ROUNDS)),
        "round_seconds": None if events else 360.0,
        "restart_seconds": data.draw(st.sampled_from([0.0, 20.0])),
        "min_run_seconds": data.draw(st.sampled_from([0.0, 500.0])),
        "solve_seconds": 0.0 if events else data.draw(st.sampled_from([0.0, 0.0, 800.0, 2000.0])),
        "node_failures": data.draw(st.sampled_from([None, gp.NodeFailures(3000, 400)])),
        "maintenance": [gp.NodeWindow("v100-0", 700, 1500), gp.NodeWindow("v100-0", 1600, 2000)]
        if data.draw(st.booleans())
        else [],
        "job_failures": data.draw(st.sampled_from([0.0, 0.3, "recorded"])),
        "checkpoint_seconds": data.draw(st.sampled_from([None, 100.0])),
        "estimates": data.draw(st.sampled_from(["exact", "recorded"])),
        "seed": data.draw(st.integers(0, 3)),
        "retry_seconds": data.draw(st.sampled_from([0.0, 0.0, 300.0])),
        "starts_between_rounds": not events and data.draw(st.booleans()),
    }
    rounds: list[Any] = []
    whole = begin(trace, on_round=rounds.append, **options)
    result = whole.run(20_000)
    parts: list[Any] = []
    simulation = begin(trace, on_round=parts.append, **options)
    for steps in data.draw(st.lists(st.integers(0, 25), min_size=1, max_size=3)):
        for _ in range(steps):
            simulation.now < 20_000 and simulation.step(20_000)
        simulation.save(path, note={"rounds": len(parts)})
        assert gp.Simulation.saved_note(path) == {"rounds": len(parts)}
        simulation = gp.Simulation.load(path, trace, speeds(), on_round=parts.append)
    assert told(simulation.run(20_000)) == told(result)
    assert parts == rounds


@pytest.mark.deep
def test_saving_changes_nothing(path: Path) -> None:
    plain, saved = (begin(few(), policy="finish_time_fairness", job_failures="recorded") for _ in range(2))
    more = True
    while more:
        saved.save(path)
        more = saved.step()
    assert told(saved.result()) == told(plain.run())


def test_before_the_first_round_and_after_the_last(path: Path) -> None:
    simulation = begin(few(), policy="fifo")
    simulation.save(path)
    result = gp.Simulation.load(path, few(), speeds()).run()
    assert told(result) == told(simulation.run())
    simulation.save(path)
    assert told(gp.Simulation.load(path, few(), speeds()).run()) == told(result)


def test_the_trace_may_have_grown(path: Path) -> None:
    simulation = begin(few(8), policy="fifo")
    simulation.run(900)
    simulation.save(path)
    again = gp.Simulation.load(path, iter(few(12)), speeds())
    assert told(again.run()) == told(begin(few(12), policy="fifo").run())


def test_another_trace_is_refused(path: Path) -> None:
    simulation = begin(few(), policy="fifo")
    simulation.run(900)
    simulation.save(path)
    other = [replace(each, job=each.job.model_copy(update={"num_gpus": 1})) for each in few()]
    said = refusal(gp.Simulation.load, path, other, speeds())
    assert said == f"{path}: was written with another trace: the first 6 jobs of this one differ from those that had arrived; " + (
        "pass the trace that the simulation used"
    )
    for name, value in {"tenant": "y", "weight": 9.0, "deadline_seconds": 1e9, "restart_seconds": 500.0}.items():
        other = [replace(each, job=each.job.model_copy(update={name: value})) for each in few()]
        assert "was written with another trace" in refusal(gp.Simulation.load, path, other, speeds())
    said = refusal(gp.Simulation.load, path, few(3), speeds())
    assert "was written when 6 jobs had arrived, but this trace has only 3" in said
    other_speeds = gp.ThroughputProfile.from_matrix(
        [[9.0, 9.0]] * 40, job_ids=[f"j{i}" for i in range(40)], accelerators=list(KINDS)
    )
    assert "pass the profile that the scheduler used" in refusal(gp.Simulation.load, path, few(), other_speeds)


def test_a_policy_class_of_the_user_is_passed_again(path: Path) -> None:
    class Mine(gp.policy_class("fifo")):
        """First in, first out, in a class that a file cannot name."""

        name = "mine"

    begin(few(), policy=Mine()).save(path)
    assert "pass the policy, as in RoundScheduler.load(..., policy=...)" in refusal(gp.Simulation.load, path, few(), speeds())
    again = gp.Simulation.load(path, few(), speeds(), policy=Mine())
    assert again.run().summary.outcomes["finished"] == 12


def test_saving_within_a_round_is_refused(path: Path) -> None:
    simulation = begin(few(), policy="fifo", on_round=lambda _: simulation.save(path))
    assert "cannot be saved during a round" in refusal(simulation.step)
    assert not path.exists()


def test_no_note(path: Path) -> None:
    begin(few(), policy="fifo").save(path)
    assert gp.Simulation.saved_note(path) is None


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda _: '{"jobs": []}', "is not a simulation state written by Simulation.save"),
        (lambda text: text.replace("gavel-py simulation", "gavel-py scheduler", 1), "is not a simulation state"),
        (lambda text: text.replace('"now":', '"now":1', 1), "is damaged or was changed by hand"),
        (lambda text: text.replace('"version":2', '"version":3', 1), "has version 3, but this gavel-py reads up to version 2"),
        (lambda text: re.sub(r'"state":.*', '"state":null}', text), "is damaged or was changed by hand"),
    ],
)
def test_damaged_foreign_and_newer_files_are_refused(path: Path, damage: Callable[[str], str], problem: str) -> None:
    simulation = begin(few(), policy="fifo")
    simulation.run(900)
    simulation.save(path)
    path.write_text(damage(path.read_text()))
    said = refusal(gp.Simulation.load, path, few(), speeds())
    assert said.startswith(str(path))
    assert problem in said


def test_every_part_that_is_missing_is_refused(path: Path) -> None:
    """Files with a valid checksum and a missing part are refused."""
    simulation = begin(few(), policy="fifo", node_failures=gp.NodeFailures(1000, 10))
    simulation.run(900)
    simulation.save(path)
    state = saved_state(path)
    parts = {name: state[name] for name in ("settings", "simulation", "chance")}
    inner = {name: state["simulation"][name] for name in ("events", "usage", "tally")}
    for way, part in [
        *((("",), parts),),
        *(((name,), parts[name]) for name in ("simulation", "chance")),  # a setting that is missing has its default
        *((("simulation", n), e) for n, e in inner.items()),
    ]:
        for name in part:
            changed = json.loads(json.dumps(state))
            place = changed
            for step in way if way != ("",) else ():
                place = place[step]
            del place[name]
            write_state(path, changed)
            assert str(path) in refusal(gp.Simulation.load, path, few(), speeds()), f"was loaded without {way} {name}"


PROGRAM = f"""{DEATHS}
from tests.simulator.test_saving import begin, few

path, way = sys.argv[1:]
simulation = begin(few(40), policy="max_min_fairness", job_failures="recorded")
number = 0
while True:
    number += 1
    simulation.step()
    if number == 3 and way != "some_time":
        globals()[way]()
    simulation.save(path)
    print(number, flush=True)
"""


def started(path: Path, way: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(path), way]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.deep
@pytest.mark.parametrize("way", ["before_it_is_on_the_disk", "before_it_is_in_place", "after_it_is_in_place"])
def test_a_process_killed_while_it_saves_leaves_a_complete_state(path: Path, way: str, whole: str) -> None:
    process = started(path, way)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors, output.split()) == (-signal.SIGKILL, "", ["1", "2"])
    again = gp.Simulation.load(path, few(40), speeds())
    assert again.result().summary.rounds == (3 if way == "after_it_is_in_place" else 2)
    assert told(again.run()) == whole


@pytest.mark.deep
def test_whenever_it_is_killed(path: Path, whole: str) -> None:
    for seconds in (0.0, 0.013, 0.041):
        path.unlink(missing_ok=True)
        with started(path, "some_time") as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(seconds)
            process.kill()
        assert told(gp.Simulation.load(path, few(40), speeds()).run()) == whole
