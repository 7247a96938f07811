"""Elastic jobs: a range of nodes, or numbers of GPUs in the comment of a job, of which each start has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.integrations.slurm.measuring import observe_run
from gavel_py.integrations.slurm.records import Tracked
from tests.slurm.fake_slurm import FakeClock, FakeJob, FakeSlurm
from tests.slurm.support import driver, events
from tests.support.examples import examples

SPEEDS = {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.5, 16: 11.0}

ELASTIC = "gavel: type=bert steps=100000"


def profile(*sizes: int) -> gp.ThroughputProfile:
    """Return throughputs that grow less than the number of GPUs."""
    fields = {"job_type": "bert", "accelerator": "v100"}
    rows = [gp.Measurement(num_gpus=gpus, steps_per_second=SPEEDS[gpus], **fields) for gpus in sizes or SPEEDS]
    return gp.ThroughputProfile("scaling", rows)


def cluster(nodes: int = 4, gpus: int = 4) -> FakeSlurm:
    return FakeSlurm(FakeClock(), {f"v100-{n}": ("v100", gpus) for n in range(nodes)})


def ranged(slurm: FakeSlurm, number: int, most: int = 4, *, each: int = 4, comment: str = ELASTIC, **more: Any) -> FakeJob:
    """Submit a job that asks for `--nodes=1-MOST --gres=gpu:EACH`."""
    shown = {"tasks": 1, "cpus": 1} | more
    return slurm.submit(number, per_node=f"gpu:{each}", most=most, comment=comment, more=shown)


def rounds(slurm: FakeSlurm, driven: gp.SlurmDriver, count: int, number: int = 1) -> list[int]:
    """Run rounds, and return the GPUs of a job after each of them."""
    found = []
    for _ in range(count):
        _, applied = driven.round()
        assert applied.errors == []
        assert applied.waiting == {}
        found.append(sum(slurm.jobs[number].held.values()))
        slurm.clock.seconds += 100
    return found


def node_fails_under(slurm: FakeSlurm, number: int) -> None:
    """Requeue a running job as Slurm does if one of its nodes fails, which is back at once."""
    job = slurm.jobs[number]
    job.state, job.held, job.restarts = "PENDING", {}, job.restarts + 1
    job.reason, job.eligible = "BeginTime", slurm.clock.now() + 120


def lines_of(slurm: FakeSlurm, number: int) -> list[str]:
    return [line for line in slurm.sent if line.startswith(f"update JobId={number} ") and "NumNodes=" in line]


def test_a_job_takes_all_nodes_of_its_range_gives_them_to_others_and_takes_them_back(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 2)[-1] == 16
        assert "NumNodes=4-4" in lines_of(slurm, 1)[-1]
        assert "NumTasks=4 NumCPUs=4" in lines_of(slurm, 1)[-1]
        for number in (2, 3):
            slurm.submit(number, per_node="gpu:4", comment=ELASTIC)
        shared = rounds(slurm, driven, 8)
        assert set(shared[4:]) <= {4, 8}
        assert all(slurm.jobs[number].held for number in (2, 3))
        for number in (2, 3):
            slurm.end(number)
        assert rounds(slurm, driven, 5)[-1] == 16
        assert sorted(slurm.jobs[1].held.values()) == [4, 4, 4, 4]
    assert driven.state is not None
    assert driven.state.tracked["1"].sizes_used[0] == 16
    assert driven.state.tracked["1"].num_gpus == 4


def test_the_range_is_restored_when_the_job_is_given_back(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1, 3, tasks=2, cpus=6, tasks_per_node=2, minimum_cpus_per_node=6)
    with driver(slurm, tmp_path, speeds=profile(4, 8)) as driven:
        assert rounds(slurm, driven, 2)[-1] == 8
        assert "NumTasks=4 NumCPUs=12" in lines_of(slurm, 1)[-1]
        node_fails_under(slurm, 1)
        driven.release()
    (line,) = lines_of(slurm, 1)[-1:]
    assert "ReqNodeList= NumNodes=1-3 " in line
    assert "Gres=gpu:4 NumTasks=2 NumCPUs=6" in line


@pytest.mark.parametrize("knows", [True, False])
def test_a_dead_driver_leaves_its_range_in_slurm(tmp_path: Path, knows: bool) -> None:
    slurm = cluster()
    job = ranged(slurm, 1, 4)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 2)[-1] == 16
    node_fails_under(slurm, 1)
    assert gp.slurm_release("gpu", directory=tmp_path if knows else None, commands=slurm) == ["1"]
    (line,) = lines_of(slurm, 1)[-1:]
    assert "NumNodes=1-4 " in line
    assert "NumTasks=1 NumCPUs=1" in line
    assert job.nodes == 1


def test_a_driver_without_its_state_knows_the_range_by_its_note_in_slurm(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1, 4)
    slurm.submit(2, per_node="gpu:4", nodes=2, comment=ELASTIC)
    with driver(slurm, tmp_path / "first", speeds=profile()) as driven:
        assert 0 < rounds(slurm, driven, 4)[-1] < 16
    assert slurm.jobs[1].admin_comment.endswith(";place=any;nodes=1-4;each=4")
    slurm.end(2)
    gp.slurm_release("gpu", commands=slurm)
    with driver(slurm, tmp_path / "second", speeds=profile()) as driven:
        assert rounds(slurm, driven, 4)[-1] == 16
        assert driven.state is not None
        record = driven.state.tracked["1"]
    assert (record.num_gpus, record.min_nodes, record.max_nodes, record.tasks, record.cpus) == (4, 1, 4, 1, 1)


def test_only_numbers_of_gpus_that_the_profile_has_are_chosen(tmp_path: Path) -> None:
    slurm = cluster(3)
    ranged(slurm, 1, 4)
    with driver(slurm, tmp_path, speeds=profile(4, 8)) as driven:
        assert rounds(slurm, driven, 4)[-2:] == [8, 8], "12 would be an estimate"
    slurm = cluster(3)
    ranged(slurm, 1, 4)
    with driver(slurm, tmp_path / "one", speeds=profile(1, 4)) as driven:
        assert rounds(slurm, driven, 3) == [4, 4, 4], "there is no choice"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy": "finish_time_fairness"}, "policy finish_time_fairness compares jobs with their isolated share"),
        ({"policy": "isolated"}, "policy isolated solves no program"),
        ({"elastic": False}, ""),
    ],
)
def test_otherwise_the_fewest_nodes_are_planned_and_it_is_said_once(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    slurm = cluster()
    ranged(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile(), **options) as driven:
        assert rounds(slurm, driven, 3) == [4, 4, 4]
        notes = driven.look().notes
    assert [why in note for note in notes] == ([True] if why else [])
    assert [why in line["why"] for line in events(tmp_path, "not_elastic")] == ([True] if why else [])


def test_another_policy_makes_jobs_elastic_or_fixed(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1)
    for policy, gpus in (("max_min_fairness", 16), ("fifo", 4), ("max_min_fairness", 16)):
        with driver(slurm, tmp_path, speeds=profile(), policy=policy) as driven:
            for _ in range(5):
                driven.round()
                slurm.clock.seconds += 100
        assert sum(slurm.jobs[1].held.values()) == gpus, policy


def test_numbers_in_the_comment_of_a_job_are_for_one_node_and_several(tmp_path: Path) -> None:
    slurm = cluster(2)
    listed = {"per_node": "gpu:1", "more": {"tasks": 1, "cpus": 2, "memory_per_node": 1000}}
    slurm.submit(1, comment=f"{ELASTIC} gpus=1,2,4", **listed)
    slurm.submit(2, comment=f"{ELASTIC} gpus=2", per_job="gpu:2", more={"tasks": 1, "cpus": 2})
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 3)[-1] == 4
        assert len(slurm.jobs[1].held) == 1
        (line,) = lines_of(slurm, 1)[-1:]
        assert "Gres=gpu:4 NumTasks=1 NumCPUs=8 CPUsPerTask=8 MinMemoryNode=4000" in line
        assert sum(slurm.jobs[2].held.values()) == 2
        slurm.jobs[1].comment = f"{ELASTIC} gpus=2"
        driven.round()
    node_fails_under(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        driven.look()
        driven.release()
    (line,) = lines_of(slurm, 1)[-1:]
    assert "ReqNodeList= NumNodes=1-2 TresPerJob= Gres=gpu:1 NumTasks=1 NumCPUs=2 CPUsPerTask=2 MinMemoryNode=1000" in line


@pytest.mark.parametrize("with_state", [True, False])
def test_a_release_restores_the_cpus_of_the_only_task(tmp_path: Path, with_state: bool) -> None:
    """Slurm starts no job that has more CPUs than its tasks need by CPUs/Task, so both change with the number of GPUs."""
    slurm = cluster(1)
    slurm.submit(1, comment=f"{ELASTIC} gpus=1,2,4", per_node="gpu:1", most=1, more={"tasks": 1, "cpus": 1})
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 2)[-1] == 4
        assert "Gres=gpu:4 NumTasks=1 NumCPUs=4 CPUsPerTask=4" in lines_of(slurm, 1)[-1]
    node_fails_under(slurm, 1)
    assert gp.slurm_release("gpu", directory=tmp_path if with_state else None, commands=slurm) == ["1"]
    assert "Gres=gpu:1 NumTasks=1 NumCPUs=1 CPUsPerTask=1" in lines_of(slurm, 1)[-1]


def test_a_comment_reduces_a_range_and_one_number_fixes_it(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1, comment=f"{ELASTIC} gpus=4,8")
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 2)[-1] == 8
        node_fails_under(slurm, 1)
        slurm.jobs[1].comment = f"{ELASTIC} gpus=16"
        assert rounds(slurm, driven, 3)[-1] == 16, "a single number leaves no choice"
        assert len(slurm.jobs[1].held) == 4


def test_a_user_may_change_the_range_until_the_first_start(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        driven.look()
        slurm.jobs[1].most = 2
        assert rounds(slurm, driven, 4)[-1] == 8


def test_a_job_with_as_many_tasks_on_any_number_of_nodes_has_the_fewest(tmp_path: Path) -> None:
    slurm = cluster()
    ranged(slurm, 1, tasks=8, cpus=8)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 3) == [4, 4, 4]


def test_each_node_has_the_gpus_that_were_requested(tmp_path: Path) -> None:
    slurm = cluster(4, gpus=8)
    ranged(slurm, 1, tasks=4, tasks_per_node=4, cpus=4)
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        assert rounds(slurm, driven, 2)[-1] == 16
    assert sorted(slurm.jobs[1].held.values()) == [4, 4, 4, 4]
    assert "NumTasks=16 NumCPUs=16" in lines_of(slurm, 1)[-1]


def test_speeds_are_measured_and_times_delivered_by_number_of_gpus(tmp_path: Path) -> None:
    slurm, steps = cluster(), tmp_path / "progress"
    steps.mkdir()
    ranged(slurm, 1)
    done, delivered = 0.0, 0.0
    with driver(slurm, tmp_path / "state", speeds=profile(), progress=steps, store=gp.ThroughputStore(tmp_path / "s")) as driven:
        driven.round()
        for n in range(12):
            if n == 3:
                slurm.submit(2, per_node="gpu:4", nodes=2, comment=ELASTIC)
            gpus = sum(slurm.jobs[1].held.values())
            slurm.clock.seconds += 100
            done, delivered = done + 100 * 0.9 * SPEEDS.get(gpus, 0.0), delivered + 100 * gpus
            delivered += 100 * sum(sum(job.held.values()) for number, job in slurm.jobs.items() if number == 2)
            (steps / "1").write_text(str(done))
            driven.round()
        state = driven.state
        assert state is not None
        assert state.totals(slurm.clock.now())[1] == pytest.approx(delivered, rel=1e-6)
        assert state.tracked["1"].gpu_seconds + state.tracked["2"].gpu_seconds == pytest.approx(delivered)
        slurm.end(1)
        driven.round()
        driven.round()
    speeds = {gpus: speed for line in events(tmp_path / "state", "measured") for _, gpus, _, speed in line["speeds"]}
    assert len(speeds) > 1
    assert speeds == {gpus: pytest.approx(0.9 * SPEEDS[gpus], rel=0.02) for gpus in speeds}


def test_a_report_counts_gpus_as_they_were_and_parts_of_time_by_the_clock(tmp_path: Path) -> None:
    """Job 1 runs all the time, on 16 GPUs alone, and then beside two others; nobody has more than all of its time."""
    slurm = cluster()
    ranged(slurm, 1)
    delivered, previous = 0.0, dict[int, int]()
    with driver(slurm, tmp_path, speeds=profile()) as driven:
        for n in range(12):
            if n == 4:
                for number in (2, 3):
                    slurm.submit(number, per_node="gpu:4", comment=ELASTIC)
            if n == 8:
                slurm.end(2)
            began = slurm.clock.seconds
            driven.round()
            delivered += sum(previous.values()) * (slurm.clock.seconds - began)
            previous = {number: sum(job.held.values()) for number, job in slurm.jobs.items()}
            delivered += sum(previous.values()) * 100
            slurm.clock.seconds += 100
        driven.end()
    run = gp.slurm_run(tmp_path)
    assert {stay.gpus for stay in run.stays} == {4}
    assert run.metrics["delivered_gpu_seconds"] == pytest.approx(delivered, rel=0.02)
    assert run.over_time is not None
    assert run.over_time.delivered_gpu_seconds.sum() == pytest.approx(delivered, rel=0.02)
    held = {(stay.job_id, stay.start_seconds): stay.end_seconds - stay.start_seconds for stay in run.stays}
    assert run.shares["bert"]["v100"] == pytest.approx(sum(held.values()) / (1200 + 400 + 800), rel=0.03)
    assert 0.8 < run.shares["bert"]["v100"] <= 1.0


@pytest.mark.deep
@pytest.mark.parametrize(("speeds", "best"), [({4: 3.6, 8: 6.5, 12: 9.0, 16: 11.0}, 16), ({4: 3.6, 8: 3.4, 12: 3.2, 16: 3.0}, 4)])
def test_a_learner_tries_other_numbers_and_keeps_the_best(tmp_path: Path, speeds: dict[int, float], best: int) -> None:
    slurm, progress, done = cluster(), tmp_path / "progress", 0.0
    progress.mkdir()
    ranged(slurm, 1)
    learner = gp.ThroughputLearner(profile(4))
    tried = []
    with driver(slurm, tmp_path / "state", speeds=learner, progress=progress) as driven:
        assert driven.look().notes == ()
        for _ in range(12):
            tried += rounds(slurm, driven, 1)
            done += 100 * speeds[tried[-1]]
            (progress / "1").write_text(str(done))
    assert tried[-1] == best
    assert tried[0] > 4, "what was not measured is tried"
    found = {entry.num_gpus: rate.rate for entry, rate in learner.observations.items()}
    assert found.keys() >= {best, tried[0]}
    assert found == {gpus: pytest.approx(speeds[gpus], rel=0.01) for gpus in found}


@pytest.mark.parametrize(("sizes", "observed"), [([8], {8}), ([4, 8], set())])
def test_the_run_of_a_job_without_progress_counts_if_it_always_had_the_same_number(sizes: list[int], observed: set[int]) -> None:
    fields = {
        "name": "a",
        "user": "b",
        "job_type": "bert",
        "num_gpus": 4,
        "place": "any",
        "arrival_seconds": 0.0,
        "seen_seconds": 9.0,
    }
    record = Tracked("1", **fields, running_seconds=900.0, starts=1, types_used=["v100"], sizes_used=sizes)  # type: ignore[arg-type]
    learner = gp.ThroughputLearner(profile(4))
    observe_run(learner, record, 5850.0, 100.0, 900.0, 10.0)
    assert {entry.num_gpus for entry in learner.observations} == observed


@given(st.lists(st.sampled_from(["range", "list", "gang", "end", "stop"]), min_size=3, max_size=9), st.integers(1, 3))
@settings(max_examples=examples(15), deadline=None)
def test_whoever_comes_and_goes_each_job_has_a_number_it_accepts_and_no_gpu_has_two(
    tmp_path_factory: pytest.TempPathFactory, happens: list[str], part: int
) -> None:
    slurm = cluster(4)
    accepts: dict[int, set[int]] = {}
    with driver(slurm, tmp_path_factory.mktemp("state"), speeds=profile()) as driven:
        for number, what in enumerate(happens, 1):
            live = [each for each, job in slurm.jobs.items() if job.state in {"PENDING", "RUNNING"}]
            if what == "range":
                ranged(slurm, number, part + 1, each=part, comment=ELASTIC)
                accepts[number] = {part * nodes for nodes in range(1, part + 2)}
            elif what == "list":
                slurm.submit(number, per_job="gpu:2", comment=f"{ELASTIC} gpus=1,2,8", more={"tasks": 1, "cpus": 2})
                accepts[number] = {1, 2, 8}
            elif what == "gang":
                slurm.submit(number, per_node=f"gpu:{part}", comment=ELASTIC)
                accepts[number] = {part}
            elif live:
                slurm.end(live[part % len(live)], "COMPLETED" if what == "end" else "CANCELLED")
            decided, applied = driven.round()
            assert (applied.errors, applied.waiting, applied.elsewhere) == ([], {}, {})
            used: dict[str, int] = {}
            for each, job in slurm.jobs.items():
                if job.held:
                    assert sum(job.held.values()) in accepts[each]
                    assert len(set(job.held.values())) == 1
                for node, gpus in job.held.items():
                    used[node] = used.get(node, 0) + gpus
            assert max(used.values(), default=0) <= 4
            assert {i: sum(slurm.jobs[int(i)].held.values()) for i in decided.begun.assignments} == {
                i: len(each.gpus) for i, each in decided.begun.assignments.items()
            }
            slurm.clock.seconds += 100
