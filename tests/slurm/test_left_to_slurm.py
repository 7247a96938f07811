"""Jobs that cannot be planned are neither stopped nor let wait, but released with their original request and a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.cli.slurm.driving import plan_text, status_document
from gavel_py.integrations.slurm.client.records import NodeUsage, Phase, SlurmNode
from gavel_py.integrations.slurm.job_mapping import sync_unavailable_gpus, used_by_others
from tests.slurm.fake_slurm import FIRST, FakeSlurm
from tests.slurm.support import BERT, KilledError, bound, cluster, cluster_with, driver, dying_at, events
from tests.slurm.test_accounts import a_job

both_shapes = pytest.mark.parametrize("new", [False, True], ids=["22.05", "24.05"])

NO_ROOM = "its 2 GPUs need 32 CPUs each, but no k80 or v100 nodes of partition gpu have that on nodes with the same number on each"


def wide(slurm: FakeSlurm, number: int, **fields: Any) -> None:
    """Submit a job of 64 tasks and 2 GPUs, on nodes of 16 CPUs."""
    tasks = {"set": True, "infinite": False, "number": 64} if slurm.new else 64
    slurm.submit(number, per_job="gpu:2", comment=BERT, **fields, more={"tasks": tasks, "cpus": tasks})


@both_shapes
@pytest.mark.parametrize("by", ["gres:gpu:8", "gres/gpu:8"])
def test_a_gang_is_spread_if_its_cpus_do_not_fit_one_node(tmp_path: Path, new: bool, by: str) -> None:
    slurm = cluster(new=new)
    slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
    slurm.submit(1, per_job="gpu:4", comment=BERT, more={"cpus_per_tres": by})
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert slurm.jobs[1].held == {"v100-0": 2, "v100-1": 2}


@both_shapes
def test_memory_is_counted_in_every_unit_of_request(tmp_path: Path, new: bool) -> None:
    """A node has 62.5 GB; each of these jobs requests 80 GB in all, which two nodes have."""
    number = {"set": True, "infinite": False, "number": 10_240} if new else 10_240
    asked: list[dict[str, object]] = [
        {"memory_per_tres": "gres:gpu:20480"},
        {"memory_per_cpu": number, "cpus": 8 if not new else {"set": True, "infinite": False, "number": 8}},
    ]
    for more in asked:
        slurm = cluster(new=new)
        slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
        slurm.submit(1, per_job="gpu:4", comment=BERT, more=more)
        with driver(slurm, tmp_path / str(len(more))) as driven:
            driven.round()
        assert slurm.jobs[1].held == {"v100-0": 2, "v100-1": 2}, more


@both_shapes
def test_running_unplannable_jobs_continue_and_keep_their_gpus(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    wide(slurm, 1, admin_comment="", state="RUNNING", held={"v100-0": 2}, priority=5, start=slurm.clock.now())
    for number in (2, 3, 4):
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        for _ in range(4):
            decided, _ = driven.round()
            assert slurm.jobs[1].held == {"v100-0": 2}
            assert all(node != "v100-0" for target in decided.moves.start.values() for node in target)
            slurm.clock.seconds += 100
    assert slurm.jobs[1].restarts == 0
    assert {event["job"] for event in events(tmp_path, "arrived")} == {"2", "3", "4"}
    assert not any("1" in line.replace(",", " ").replace("=", " ").split() for line in slurm.sent)


@both_shapes
def test_waiting_unplannable_jobs_are_released_with_a_reason(tmp_path: Path, new: bool) -> None:
    slurm = cluster(new=new)
    wide(slurm, 1, lease=FIRST)
    slurm.submit(2, per_job="gpu:4", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
        assert applied.given_back == ["1"]
        slurm.stuck = {1}
        for _ in range(3):
            slurm.clock.seconds += 100
            driven.round()
    assert bound(slurm) == set()
    assert [line for line in slurm.sent if "JobId=1 Dep" in line] == ["update JobId=1 Dependency="], "and never binds it again"
    assert [event["jobs"] for event in events(tmp_path, "let_go")] == [{"1": NO_ROOM}]
    assert [(event["job"], event["why"]) for event in events(tmp_path, "unplanned")] == [("1", NO_ROOM)], "told once"
    assert f"1: {NO_ROOM}" in plan_text(decided)
    roles = {job["job"]: job["role"] for job in status_document(driver(slurm, tmp_path).look())["jobs"]}
    assert roles == {"1": f"left to Slurm: {NO_ROOM}", "2": "managed"}


@pytest.mark.parametrize(
    ("gpus", "cpus", "why"),
    [
        (5, 2, "its 5 GPUs cannot be divided evenly among the k80 or v100 nodes of partition gpu"),
        (1, 32, "its GPU needs 32 CPUs, but no k80 or v100 nodes of partition gpu have that on one node"),
        (5, 32, "its 5 GPUs cannot be divided evenly among the k80 or v100 nodes of partition gpu"),
        (1, 1, None),
    ],
)
def test_the_reason_is_what_the_nodes_lack(gpus: int, cpus: int, why: str | None) -> None:
    """There are two nodes with 4 GPUs and 16 CPUs each."""
    slurm = cluster()
    slurm.submit(1, per_job=f"gpu:{gpus}", comment=BERT, more={"tasks": cpus, "cpus": cpus})
    left = driver(slurm, None).plan().picture.left_alone
    assert left == ({} if why is None else {"1": why})


@pytest.mark.parametrize("states", ["IDLE+NOT_RESPONDING", "DOWN", "IDLE+DRAIN"])
def test_jobs_wait_for_the_driver_while_their_nodes_are_away(tmp_path: Path, states: str) -> None:
    """As all nodes are for a moment after a restart of slurmctld, which would then start the whole queue in its own order."""
    slurm = cluster_with(3, 4)
    with driver(slurm, tmp_path) as driven:
        slurm.states = dict.fromkeys(slurm.states, states)
        for _ in range(2):
            decided, applied = driven.round()
            assert (applied.given_back, bound(slurm)) == ([], {1, 2, 3})
            assert all("has no GPUs" in why for why in decided.waiting.values())
            assert decided.picture.left_alone == {}
            slurm.clock.seconds += 50
            assert driven.fill() is None
            slurm.clock.seconds += 50
        driven.round()
        slurm.states = dict.fromkeys(slurm.states, "IDLE")
        slurm.clock.seconds += 5
        assert driven.fill() is not None
    assert [job.held for job in slurm.jobs.values()].count({}) == 1, "they start within the round"


def test_jobs_wait_for_the_driver_while_slurm_counts_gpus_that_nobody_has(tmp_path: Path) -> None:
    """As 22.05 does for a while after its restart, on a node whose jobs have ended meanwhile."""
    slurm = cluster_with(1, 4)
    slurm.states["k80-0"] = "UNKNOWN"
    slurm.counted["v100-0"] = {"gres_used": "gpu:v100:3"}
    with driver(slurm, tmp_path) as driven:
        _, applied = driven.round()
        assert (applied.given_back, bound(slurm)) == ([], {1})
        slurm.counted.clear()
        slurm.clock.seconds += 5
        assert driven.fill() is not None
    assert slurm.jobs[1].held == {"v100-0": 4}


def test_jobs_that_slurm_could_start_do_not_wait_for_nodes_that_are_away(tmp_path: Path) -> None:
    """A job of another partition has one of the four GPUs that are there; the next job of that one would have it, too."""
    slurm = cluster()
    slurm.submit(1, per_job="gpu:1", partition="other", state="RUNNING", held={"v100-0": 1}, start=slurm.clock.now())
    slurm.submit(2, per_job="gpu:4", comment=BERT)
    slurm.states["k80-0"] = "DOWN"
    with driver(slurm, tmp_path) as driven:
        _, applied = driven.round()
    assert applied.given_back == ["2"]


def test_jobs_excluded_by_a_constraint_are_left_to_slurm_until_it_changes(tmp_path: Path) -> None:
    """Only a decision of the scheduler shows it; one such job runs, the other waits."""
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT, state="RUNNING", held={"v100-0": 4}, priority=5, start=slurm.clock.now())
    slurm.submit(2, per_job="gpu:2", comment=BERT)
    for number in (3, 4, 5):
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    forbidden = gp.resolve_policy(
        "max_min_fairness", constraints=[gp.Forbid(job=job, accelerators=["v100", "k80"]) for job in ("1", "2")]
    )
    slurm.stuck = {2}
    with driver(slurm, tmp_path, policy=forbidden) as driven:
        for _ in range(3):
            decided, applied = driven.round()
            assert decided.begun.excluded.keys() == {"1", "2"}
            assert slurm.jobs[1].held == {"v100-0": 4}
            assert (slurm.jobs[2].state, slurm.jobs[2].lease) == ("PENDING", "")
            assert not applied.waiting, "nobody is sent to its GPUs"
            assert all(slurm.free(name) >= 0 for name in slurm.nodes)
            slurm.clock.seconds += 100
    roles = {job["job"]: job["role"] for job in status_document(driver(slurm, tmp_path, policy=forbidden).look())["jobs"]}
    assert roles["1"].startswith("left to Slurm: a constraint forbids it")
    assert roles["2"].startswith("left to Slurm: a constraint forbids it")
    slurm.stuck = set()
    with driver(slurm, tmp_path) as driven:
        decided, _ = driven.round()
        assert decided.begun.excluded == {}
        slurm.clock.seconds += 100
        for _ in range(5):
            driven.round()
            slurm.clock.seconds += 100
    assert slurm.jobs[1].restarts + slurm.jobs[2].restarts > 0, "they take their turns again"


def test_a_job_without_alternative_continues_on_draining_nodes(tmp_path: Path) -> None:
    slurm = cluster()
    for number in (1, 2):
        slurm.submit(number, per_node="gpu:v100:4", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        (runs,) = [job for job in slurm.jobs.values() if job.held]
        slurm.states["v100-0"] = "MIXED+DRAIN"
        slurm.clock.seconds += 100
        driven.round()
        assert runs.restarts == 0
        other = slurm.jobs[3 - runs.number]
        assert bound(slurm) == {other.number}
        assert other.wanted == []
        slurm.states["v100-0"] = "MIXED"
        for _ in range(4):
            slurm.clock.seconds += 100
            driven.round()
        assert runs.restarts > 0, "they take turns again"


@pytest.mark.parametrize(
    ("asked", "sent", "back"),
    [
        ({"per_job": "gpu:4"}, {"per_job": "gpu:4", "per_node": "", "nodes": 1}, {"per_job": "gpu:4", "per_node": "", "nodes": 1}),
        ({"per_node": "gpu:2", "nodes": 2}, {"per_node": "gpu:4", "nodes": 1}, {"per_node": "gpu:2", "nodes": 2}),
        ({"per_job": "gpu:v100:4"}, {"per_job": "gpu:v100:4", "nodes": 1}, {"per_job": "gpu:v100:4", "nodes": 1}),
    ],
)
def test_a_released_job_has_its_original_request(
    tmp_path: Path, asked: dict[str, Any], sent: dict[str, Any], back: dict[str, Any]
) -> None:
    slurm = cluster()
    slurm.submit(1, comment=BERT, **asked)
    slurm.stuck = {1}
    seen: list[dict[str, Any]] = []

    def look(_: float) -> None:
        if slurm.jobs[1].wanted:
            seen.append({name: getattr(slurm.jobs[1], name) for name in sent})

    slurm.clock.on_sleep = look
    with driver(slurm, tmp_path, retry_seconds=40.0) as driven:
        driven.round()
        assert seen
        assert all(each == sent for each in seen), "while it may start"
        assert bound(slurm) == {1}
        assert {name: getattr(slurm.jobs[1], name) for name in back} == back, "Slurm starts it if the driver dies"
        for _ in range(3):
            slurm.clock.seconds += 100
            driven.round()
    assert {name: getattr(slurm.jobs[1], name) for name in back} == back
    assert (slurm.jobs[1].wanted, slurm.jobs[1].lease, slurm.jobs[1].priority) == ([], "", 1000)


def test_a_released_job_keeps_later_changes_by_its_user(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_node="gpu:4", comment=BERT)
    slurm.submit(2, per_node="gpu:4", comment=BERT)
    slurm.stuck = {1, 2}
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.jobs[1].per_node = "gpu:v100:1,gpu:k80:1"
        slurm.jobs[2].per_node, slurm.jobs[2].more = "gpu:2", {"excluded_nodes": "k80-0"}
        slurm.clock.seconds += 100
        _, applied = driven.round()
    assert sorted(applied.given_back) == ["1", "2"]
    assert {number: (job.per_node, job.wanted, job.lease, job.priority) for number, job in slurm.jobs.items()} == {
        1: ("gpu:v100:1,gpu:k80:1", [], "", 1000),
        2: ("gpu:2", [], "", 1000),
    }


def test_a_job_once_spread_is_released_for_as_many_nodes(tmp_path: Path) -> None:
    """Slurm 22.05 cannot undo a request per node; on another number of nodes, the number of GPUs would change."""
    slurm = cluster()
    slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
    slurm.submit(1, per_job="gpu:8", comment="gavel: type=lstm")
    slurm.stuck = {1}
    with driver(slurm, tmp_path, retry_seconds=40.0) as driven:
        for _ in range(4):
            driven.round()
            slurm.clock.seconds += 100
    job = slurm.jobs[1]
    assert (job.per_node, job.nodes, job.wanted, job.lease, job.priority) == ("gpu:4", 2, [], "", 1000)


def test_a_released_job_that_slurm_has_started_takes_its_turns_again(tmp_path: Path) -> None:
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT)
    slurm.stuck = {1}
    with driver(slurm, tmp_path, retry_seconds=40.0) as driven:
        for _ in range(4):
            driven.round()
            slurm.clock.seconds += 100
        slurm.stuck = set()
        for number in (2, 3, 4):
            slurm.submit(number, per_job="gpu:4", comment=BERT)
        ran = set()
        for _ in range(8):
            slurm.run(["squeue"])
            driven.round()
            ran |= {number for number, job in slurm.jobs.items() if job.held}
            slurm.clock.seconds += 100
    assert ran == {1, 2, 3, 4}
    (job,) = [job for job in status_document(driver(slurm, tmp_path).look())["jobs"] if job["job"] == "1"]
    assert job["role"] == "managed"


@pytest.mark.parametrize("at", range(1, 26))
def test_no_released_job_is_lost_when_the_driver_is_killed(tmp_path: Path, at: int) -> None:
    slurm = cluster()
    slurm.nodes["v100-1"], slurm.states["v100-1"] = ("v100", 4), "IDLE"
    wide(slurm, 1, lease=FIRST)
    for number in (2, 3, 4):
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    wide(slurm, 5, state="RUNNING", held={"k80-0": 2}, priority=5, start=slurm.clock.now(), admin_comment="")
    with pytest.raises(KilledError), dying_at(slurm, at), driver(slurm, tmp_path) as driven:
        driven.run()
    if at % 3 == 0:
        (tmp_path / "state.json").unlink(missing_ok=True)
    ran: set[int] = set()
    with driver(slurm, tmp_path) as driven:
        for _ in range(6):
            driven.round()
            ran |= {number for number, job in slurm.jobs.items() if job.state == "RUNNING"}
            slurm.clock.seconds += 100
            assert all(slurm.free(name) >= 0 for name in slurm.nodes)
    assert ran == {1, 2, 3, 4, 5}
    assert [slurm.jobs[number].restarts for number in (1, 5)] == [0, 0]


def test_gangs_run_on_the_required_number_of_nodes_only(tmp_path: Path) -> None:
    """Four tasks on each of two nodes; on four nodes, there would be 16."""
    slurm = cluster()
    slurm.nodes |= {"v100-1": ("v100", 4), "v100-2": ("v100", 4), "v100-3": ("v100", 4)}
    slurm.states |= dict.fromkeys(["v100-1", "v100-2", "v100-3"], "IDLE")
    tasks = {"tasks": 8, "tasks_per_node": 4, "cpus": 8, "features": "v100"}
    slurm.submit(1, per_node="gpu:4", nodes=2, comment=BERT, more=tasks)
    for number in range(4):
        held = {f"v100-{number}": 2}
        slurm.submit(10 + number, per_node="gpu:2", partition="free", state="RUNNING", held=held, priority=1, start=1.0)
    slurm.submit(2, per_job="gpu:2", comment=BERT, lease=FIRST, more=tasks)
    slurm.stuck = {2}
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
        assert "1" not in decided.moves.start
        why = {**applied.waiting, **decided.waiting}["1"]
        assert why == "it must be on 2 nodes (--ntasks-per-node), but fits only on 4"
        assert applied.given_back == ["2"], "its 2 GPUs would be on one node"
        slurm.end(10)
        slurm.end(11)
        for _ in range(3):
            slurm.clock.seconds += 100
            driven.round()
    assert slurm.jobs[1].held == {"v100-0": 4, "v100-1": 4}


def test_no_job_starts_where_others_leave_too_few_cpus(tmp_path: Path) -> None:
    slurm = cluster()
    del slurm.nodes["k80-0"]
    slurm.submit(1, partition="free", per_node="", state="RUNNING", priority=1, start=1.0, more={"nodes": "v100-0", "cpus": 9})
    slurm.submit(2, per_job="gpu:2", comment=BERT, more={"cpus_per_tres": "gres:gpu:4"})
    slurm.submit(3, per_job="gpu:1", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        decided, applied = driven.round()
        assert (applied.waiting, decided.moves.start) == ({}, {"3": {"v100-0": 1}})
        for _ in range(2):
            slurm.clock.seconds += 100
            decided, _ = driven.round()
        assert decided.waiting == {"2": "no nodes within its locality had room, CPUs and memory"}
        slurm.end(1)
        slurm.clock.seconds += 100
        driven.round()
        assert slurm.jobs[2].held == {"v100-0": 2}
        slurm.submit(4, partition="free", per_node="", state="RUNNING", priority=1, start=1.0, more={"nodes": "v100-0", "cpus": 16})
        slurm.jobs[1].more["cpus"] = 0
        slurm.submit(5, per_job="gpu:1", comment=BERT)
        slurm.clock.seconds += 100
        decided, applied = driven.round()
        assert "5" not in {**decided.moves.start, **applied.waiting}, "there is not one CPU left for the free GPU"


@pytest.mark.parametrize(("new", "shared"), [(False, "user"), (True, ["user"]), (True, ["mcs"])])
def test_jobs_with_restricted_node_sharing_are_not_planned(tmp_path: Path, new: bool, shared: Any) -> None:
    slurm = cluster(new=new)
    slurm.submit(1, per_job="gpu:2", comment=BERT, lease=FIRST, more={"shared": shared})
    slurm.stuck = {1}
    with driver(slurm, tmp_path) as driven:
        decided, _ = driven.round()
    assert decided.picture.left_alone == {"1": "it shares its nodes only with certain jobs (--exclusive=user, mcs or topo)"}
    assert dict(decided.moves.give_back) == decided.picture.left_alone
    assert (decided.moves.start, bound(slurm)) == ({}, set())


def test_jobs_of_several_partitions_are_released_once_known(tmp_path: Path) -> None:
    """Slurm shows only one partition of a running job; it may be stopped once before the others are known."""
    slurm = cluster()
    slurm.submit(1, per_job="gpu:4", comment=BERT, partition="gpu,free", admin_comment="", lease="")
    slurm.stuck = {1}
    for number in (2, 3, 4, 5):
        slurm.submit(number, per_job="gpu:4", comment=BERT)
    with driver(slurm, tmp_path) as driven:
        driven.round()
        slurm.end(2)
        slurm.stuck = set()
        slurm.run(["squeue"])
        slurm.jobs[1].partition = "gpu"
        for _ in range(6):
            slurm.clock.seconds += 100
            driven.round()
    assert (slurm.jobs[1].state, slurm.jobs[1].restarts) == ("RUNNING", 0)


def test_an_array_beyond_the_limit_is_released(tmp_path: Path) -> None:
    slurm = cluster()
    array = {"array_job_id": 1, "array_task_string": "0-99999"}
    slurm.submit(1, per_job="gpu:1", comment=BERT, lease=FIRST, more=array)
    with driver(slurm, tmp_path) as driven:
        driven.round()
    assert bound(slurm) == set()
    (line,) = events(tmp_path, "let_go")
    assert line["jobs"] == {"1": "it cannot be read: its array has more than 10,000 waiting tasks"}
    assert json.dumps(line)


def test_gpus_that_a_node_no_longer_reports_are_not_planned() -> None:
    """A node of 4 GPUs comes back with 3; another job has one of them; then the lost GPU returns."""
    made = gp.RoundScheduler(gp.Cluster.from_inline("v100:4/4"), gp.ThroughputProfile.builtin("gavel-osdi20"))
    (node,) = (each.name for each in made.cluster.nodes)
    for reported, used, lost in ((3, 0, 1), (3, 1, 2), (4, 1, 1), (4, 0, 0)):
        seen = SlurmNode(node, {"v100": reported}, frozenset({"IDLE"}), frozenset(), frozenset(), 16, 0.0)
        sync_unavailable_gpus(made, {node: seen}, {node: NodeUsage(gpus=used)})
        assert len(made.lost_gpus) == lost


@pytest.mark.parametrize(("phase", "left"), [(Phase.RUNNING, 2), (Phase.STOPPING, 0)])
def test_what_slurm_counts_beyond_its_jobs_is_used_unless_a_job_is_stopping(phase: Phase, left: int) -> None:
    """Slurm counts 4 GPUs of a node, and only a managed job with 2 is there: as it stops, the count is about to change."""
    seen = SlurmNode("n", {"v100": 4}, frozenset({"MIXED"}), frozenset(), frozenset(), 16, 0.0, NodeUsage(gpus=4))
    job = replace(a_job("1"), phase=phase, used={"n": NodeUsage(gpus=2)})
    assert used_by_others({"n": seen}, [job], {"1"}) == {"n": NodeUsage(gpus=left)}
