"""Several partitions in one driver: each job on the nodes of its partitions, and shared nodes in full use."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.integrations.slurm.turns import gathered
from tests.slurm.fake_slurm import FakeClock, FakeSlurm
from tests.slurm.support import BERT, LSTM, bound, driver, events, profile

BOTH = "gpu,long"
MEMBERS = {"v100-0": ["gpu"], "v100-1": ["gpu", "long", "free"], "v100-2": ["long"], "k80-0": ["own"]}
ALL = "gpu,long,own"


def site(members: dict[str, list[str]] | None = None) -> FakeSlurm:
    """Return nodes of 4 GPUs in overlapping partitions; their names begin with their types."""
    members = dict(members or MEMBERS)
    slurm = FakeSlurm(FakeClock(), {name: (name.partition("-")[0], 4) for name in members})
    slurm.members = members
    return slurm


def is_at_home(slurm: FakeSlurm, number: int) -> bool:
    """Return whether a running job is within one of its partitions."""
    job = slurm.jobs[number]
    return any(all(name in slurm.members[node] for node in job.held) for name in job.partition.split(","))


def waits_beside_room(slurm: FakeSlurm, number: int) -> bool:
    """Return whether a job of one node waits although a node of its partitions has room for it."""
    job = slurm.jobs[number]
    mine = {name for name in slurm.nodes if set(slurm.members[name]) & set(job.partition.split(","))}
    return job.state == "PENDING" and any(slurm.free(name) >= int(job.per_job.rpartition(":")[2]) for name in mine)


PARTITIONS = st.lists(st.sampled_from(ALL.split(",")), min_size=1, max_size=3, unique=True)


@settings(max_examples=8)
@given(
    members=st.lists(st.tuples(st.sampled_from(["v100", "k80"]), PARTITIONS), min_size=1, max_size=4),
    jobs=st.lists(st.tuples(PARTITIONS, st.sampled_from([1, 2, 4]), st.sampled_from([BERT, LSTM])), min_size=1, max_size=12),
    ends=st.lists(st.integers(1, 12), max_size=4),
)
def test_jobs_run_in_their_partitions_and_no_gpu_idles_beside_them(
    members: list[tuple[str, list[str]]], jobs: list[tuple[list[str], int, str]], ends: list[int]
) -> None:
    slurm = site({f"{kind}-{i}": names for i, (kind, names) in enumerate(members)} | {"k80-9": ["gpu"], "k80-8": ["long", "own"]})
    for number, (names, gpus, comment) in enumerate(jobs, 1):
        slurm.submit(number, per_job=f"gpu:{gpus}", comment=comment, partition=",".join(names))
    with tempfile.TemporaryDirectory() as folder, driver(slurm, Path(folder), partition=ALL) as driven:
        for i in range(4):
            driven.round()
            driven.fill()
            running = [number for number, job in slurm.jobs.items() if job.held]
            assert all(is_at_home(slurm, number) for number in running)
            assert all(slurm.free(name) >= 0 for name in slurm.nodes)
            assert not [number for number in slurm.jobs if waits_beside_room(slurm, number)]
            assert {event["accelerator"] for event in events(Path(folder), "started")} <= {"v100", "k80"}
            for number in set(ends[i::4]) & set(running):
                slurm.end(number)
            slurm.clock.seconds += 100


def test_partitions_that_own_all_nodes_of_a_type_together_need_no_groups(tmp_path: Path) -> None:
    slurm = site({"v100-0": ["gpu", "long"], "v100-1": ["gpu", "long"], "k80-0": ["own"]})
    slurm.submit(1, per_job="gpu:8", nodes=2, partition="long", comment=BERT)
    slurm.submit(2, per_job="gpu:4", partition="own", comment=BERT)
    with driver(slurm, tmp_path, partition=ALL) as driven:
        driven.round()
        assert driven.state is not None
        assert driven.state.scheduler.cluster.accelerator_names == ("k80", "v100")
    assert set(slurm.jobs[2].held) == {"k80-0"}


def test_a_state_of_one_partition_goes_on_with_two_and_back(tmp_path: Path) -> None:
    slurm = site()
    for number, name in enumerate(("gpu", "gpu", "long", BOTH), 1):
        slurm.submit(number, per_job="gpu:4", partition=name, comment=BERT)
    arrivals = {}
    for names in ("gpu", BOTH, "gpu"):
        with driver(slurm, tmp_path, partition=names) as driven:
            driven.round()
            slurm.clock.seconds += 100
            driven.round()
            assert driven.state is not None
            arrivals[names] = {job_id: each.arrival_seconds for job_id, each in driven.state.tracked.items()}
            held = {number: set(job.held) for number, job in slurm.jobs.items() if job.held}
            assert all(is_at_home(slurm, number) for number in held)
        if names == BOTH:
            assert set(held) == {1, 2, 3} or 4 in held
            assert set(arrivals[BOTH]) == {"1", "2", "3", "4"}
    assert arrivals["gpu"].keys() <= {"1", "2", "4"}
    with (
        driver(slurm, tmp_path, partition="own") as other,
        pytest.raises(gp.InputError, match=r"is for partition 'gpu', not 'own'"),
    ):
        other.round()


def test_a_job_that_is_moved_keeps_its_record(tmp_path: Path) -> None:
    slurm = site()
    for number in (1, 2):
        slurm.submit(number, per_job="gpu:4", partition="own", comment="gavel: type=bert steps=100000")
    with driver(slurm, tmp_path, partition=ALL) as driven:
        driven.round()
        slurm.clock.seconds += 300
        driven.round()
        (waiting,) = [job for job in slurm.jobs.values() if not job.held]
        assert driven.state is not None
        before = driven.state.tracked[str(waiting.number)]
        waiting.partition = "long"
        driven.fill()
        assert set(waiting.held) <= {"v100-1", "v100-2"}
        assert waiting.held
        after = driven.state.tracked[str(waiting.number)]
        assert (after.arrival_seconds, after.partitions, after.usable) == (before.arrival_seconds, ["long"], ["long"])
    assert not events(tmp_path, "aside")


@pytest.mark.parametrize("state", ["DOWN", "INACTIVE"])
def test_jobs_of_a_partition_that_is_down_wait_and_the_others_use_its_nodes(tmp_path: Path, state: str) -> None:
    slurm = site()
    slurm.submit(1, per_job="gpu:4", partition="own", comment=BERT)
    with driver(slurm, tmp_path, partition=ALL) as driven:
        driven.round()
        assert slurm.jobs[1].held
        slurm.partitions = f"PartitionName=own QoS=N/A State={state}\nPartitionName=long QoS=N/A State={state}\n"
        for number, name in ((2, "own"), (3, "long"), (4, "gpu"), (5, BOTH)):
            slurm.submit(number, per_job="gpu:4", partition=name, comment=BERT)
        for _ in range(3):
            slurm.clock.seconds += 100
            driven.round()
            assert slurm.jobs[1].held == {"k80-0": 4}, "it could not start again"
            assert (slurm.jobs[2].held, slurm.jobs[3].held) == ({}, {})
            assert {*slurm.jobs[4].held, *slurm.jobs[5].held} == {"v100-0", "v100-1"}
        why = {job.job_id: job.reason for job in gp.slurm_queue(tmp_path)}
        assert (why["2"], why["3"]) == (f"partition own is {state}", f"partition long is {state}")
        slurm.partitions = "PartitionName=own QoS=N/A State=UP\n"
        slurm.clock.seconds += 100
        driven.round()
        assert set(slurm.jobs[3].held) == {"v100-2"}


def test_a_partition_that_is_down_causes_no_rounds_and_its_jobs_start_soon_after_it_is_up(tmp_path: Path) -> None:
    slurm = site()
    slurm.partitions = "PartitionName=own QoS=N/A State=DOWN\n"
    slurm.submit(1, per_job="gpu:4", partition="own", comment=BERT)
    up = slurm.clock.now() + 450

    def go_up(now: float) -> None:
        slurm.partitions = f"PartitionName=own QoS=N/A State={'UP' if now >= up else 'DOWN'}\n"

    slurm.clock.on_sleep, slurm.clock.stops_at = go_up, up + 45
    with driver(slurm, tmp_path, partition=ALL) as driven:
        driven.run()
    assert len(events(tmp_path, "round")) == 5
    assert up <= slurm.jobs[1].start <= up + 40


def test_limits_of_partitions_keep_jobs_out_of_them(tmp_path: Path) -> None:
    slurm = site()
    slurm.partitions = "PartitionName=gpu MaxTime=01:00:00 State=UP\nPartitionName=long MaxTime=UNLIMITED MaxNodes=1 State=UP\n"
    slurm.submit(1, per_job="gpu:4", partition=BOTH, comment=BERT, more={"time_limit": 90})
    slurm.submit(2, per_job="gpu:4", partition="gpu", comment=BERT, more={"time_limit": 90})
    slurm.submit(3, per_job="gpu:8", nodes=2, partition="long", comment=BERT, more={"time_limit": 30})
    with driver(slurm, tmp_path, partition=BOTH) as driven:
        driven.round()
    assert set(slurm.jobs[1].held) <= {"v100-1", "v100-2"}
    why = {job.job_id: job.reason for job in gp.slurm_queue(tmp_path)}
    assert why["2"] == "partition gpu allows 60 minutes (MaxTime), and its time limit is 90"
    assert why["3"] == "partition long allows 1 node (MaxNodes), and it asks for 2"


def test_a_partition_that_vanishes_and_a_node_that_leaves_one(tmp_path: Path) -> None:
    slurm = site()
    for number, name in enumerate(("gpu", "long", "own"), 1):
        slurm.submit(number, per_job="gpu:4", partition=name, comment=BERT)
    with driver(slurm, tmp_path, partition=ALL) as driven:
        driven.round()
        slurm.members["k80-0"] = ["free"]
        (node,) = slurm.jobs[1].held
        slurm.members[node] = ["free"]
        for _ in range(2):
            slurm.clock.seconds += 100
            decided, _ = driven.round()
        assert "there is no partition 'own'" in decided.picture.notes
        assert slurm.jobs[1].held
        assert node not in slurm.jobs[1].held
        assert slurm.jobs[2].held
    gp.slurm_release(ALL, commands=slurm)
    with driver(slurm, tmp_path / "new", partition=ALL) as new, pytest.raises(gp.InputError, match="there is no partition 'own'"):
        new.round()


def test_drivers_of_overlapping_partitions_exclude_each_other(tmp_path: Path) -> None:
    slurm = site()
    with driver(slurm, tmp_path / "a", partition=BOTH) as first:
        first.round()
        for names in ("long,own", "gpu"):
            shared = names.partition(",")[0]
            cure = rf"partition {shared}: another driver manages it .* gavel slurm release --partition {shared}$"
            with driver(slurm, tmp_path / names, partition=names) as other, pytest.raises(gp.InputError, match=cure):
                other.round()
        with driver(slurm, tmp_path / "own", partition="own") as apart:
            apart.round()
        assert len(slurm.drivers()) == 2
    with driver(slurm, tmp_path / "a", partition="gpu") as fewer:
        fewer.round()
        assert sorted(text.split()[2] for text in slurm.drivers()) == ["of=gpu", "of=own"]
    gp.slurm_release("gpu,own", commands=slurm)
    assert not slurm.drivers()


def test_release_gives_back_the_jobs_of_all_partitions() -> None:
    """A driver of both partitions has a lease, and so has one of another."""
    slurm = site()
    slurm.stuck = set(range(1, 7))
    end = slurm.clock.now() + 600
    slurm.leases |= {"50": [f"gavel:driver=a:1:b lease=600 of={BOTH}", end], "60": ["gavel:driver=a:2:c lease=600 of=own", end]}
    for number, name in enumerate(("gpu", "long", BOTH, "own", "free", "gpu,free"), 1):
        lease = "" if "free" in name else "60" if name == "own" else "50"
        slurm.submit(number, per_job="gpu:4", partition=name, comment=BERT, lease=lease)
    assert gp.slurm_release("gpu, long,gpu", commands=slurm) == ["1", "2", "3"]
    assert bound(slurm) == {4}
    assert gp.slurm_release("long", commands=slurm) == []
    with pytest.raises(gp.InputError, match="'' is not a valid partition name"):
        gp.slurm_release("gpu,", commands=slurm)


def test_a_job_of_a_partition_that_is_not_managed_as_well_is_left_alone() -> None:
    slurm = site()
    slurm.submit(1, per_job="gpu:1", partition="gpu,free", comment=BERT)
    slurm.submit(2, per_job="gpu:1", partition="free", comment=BERT)
    slurm.stuck = {1, 2}
    plan = driver(slurm, None, partition=BOTH).plan()
    assert plan.picture.left_alone == {"1": "it may run in partitions that are not managed, too (--partition=a,b)"}


@pytest.mark.deep
def test_equal_jobs_of_two_partitions_stay_where_they_are(tmp_path: Path) -> None:
    """Moving from one group of a type to another gains nothing: no preemption, for 12 jobs on 12 GPUs, nor for fewer."""
    slurm = site({"v100-0": ["gpu"], "v100-1": BOTH.split(","), "v100-2": ["long"]})
    for number in range(1, 13):
        slurm.submit(number, per_job="gpu:1", partition=("gpu", BOTH, "long")[number % 3], comment=BERT)
    with driver(slurm, tmp_path, partition=BOTH, measures=True) as driven:
        for i in range(25):
            driven.round()
            slurm.clock.seconds += 100
            if i == 10:
                slurm.end(1)
    assert sum(len(event["stop"]) for event in events(tmp_path, "round")) == 0


def test_a_gang_over_two_groups_of_nodes_is_moved_once(tmp_path: Path) -> None:
    slurm = site({"v100-0": ["gpu", "long"], "v100-1": ["long"], "v100-2": ["long"]})
    held = {"v100-0": 4, "v100-1": 4}
    slurm.submit(
        1, per_job="gpu:8", nodes=2, partition="long", comment=BERT, state="RUNNING", held=held, priority=5, start=slurm.clock.now()
    )
    slurm.submit(2, per_job="gpu:4", partition="gpu", comment=BERT)
    with driver(slurm, tmp_path, partition=BOTH) as driven:
        for _ in range(4):
            driven.round()
            assert all(slurm.free(name) >= 0 for name in slurm.nodes)
            slurm.clock.seconds += 100
    assert set(slurm.jobs[1].held) == {"v100-1", "v100-2"}
    assert set(slurm.jobs[2].held) == {"v100-0"}
    assert slurm.jobs[1].restarts == 1


def test_speeds_are_learned_by_gpu_type(tmp_path: Path) -> None:
    slurm, progress, learner = site(), tmp_path / "progress", gp.ThroughputLearner(explore="median")
    progress.mkdir()
    for number, name in enumerate(("gpu", "gpu", "long", "long", BOTH, BOTH, "own", "own"), 1):
        slurm.submit(number, per_job="gpu:1", partition=name, comment=BERT)
    options = {"partition": ALL, "speeds": learner, "progress": progress, "default_type": "bert"}
    with driver(slurm, tmp_path / "state", **options) as driven:
        for turn in range(5):
            driven.round()
            slurm.clock.seconds += 100
            for number, job in slurm.jobs.items():
                speed = 8.0 if next(iter(job.held)).startswith("v100") else 2.0
                (progress / str(number)).write_text(str(speed * 100 * (turn + 1)))
    assert {(entry.num_gpus, entry.accelerator) for entry in learner.observations} == {(1, "v100"), (1, "k80")}
    with driver(slurm, tmp_path / "state", **options | {"speeds": gp.ThroughputLearner(explore="median")}) as again:
        again.round()
        assert again.state is not None
        learned = again.state.speeds.profile
        assert [learned.throughput("bert", 1, name) for name in ("v100", "k80")] == pytest.approx([8.0, 2.0], rel=0.05)
    assert {entry["accelerator"] for entry in events(tmp_path / "state", "started")} == {"v100", "k80"}


def test_a_shadow_keeps_jobs_in_their_partitions(tmp_path: Path) -> None:
    slurm = site()
    for number, name in enumerate(("gpu", "gpu", "long", BOTH, "own"), 1):
        slurm.submit(number, per_job="gpu:4", partition=name, comment=BERT, priority=0 if number == 2 else 1000, admin_comment="")
    options = {"directory": tmp_path, "commands": slurm, "clock": slurm.clock, "round_seconds": 100.0, "min_run_seconds": 0.0}
    with gp.SlurmShadow(gp.SlurmSettings(ALL), profile(), **options) as watching:
        for _ in range(4):
            watching.round()
            slurm.clock.seconds += 100
    starts = events(tmp_path, "started")
    assert {entry["job"] for entry in starts} >= {"1", "3", "4", "5"}
    for entry in starts:
        names = slurm.jobs[int(entry["job"])].partition.split(",")
        assert any(all(name in slurm.members[node] for node in entry["nodes"]) for name in names)
    assert not slurm.sent


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_gathering_keeps_what_is_owed_on_equal_types_and_leaves_others_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, types = 5, 4
    speeds = rng.integers(0, 3, (jobs, types)).astype(float)
    running = np.array([rng.choice([-1, *np.flatnonzero(row)]) for row in speeds])
    fractions = np.where(speeds > 0, rng.integers(0, 3, (jobs, types)) / 8, 0.0)
    demand = gp.RoundDemand(
        deficits=np.where(speeds > 0, rng.normal(size=(jobs, types)), 0.0),
        fractions=fractions,
        runnable=speeds > 0,
        throughputs=speeds,
        num_gpus=np.ones(jobs, dtype=np.int64),
        capacities=np.full(types, 4),
        running_on=running,
        backfill=True,
    )
    found = gathered(demand)
    for i in range(jobs):
        for speed in {1.0, 2.0}:
            alike = speeds[i] == speed
            for before, after in ((demand.fractions, found.fractions), (demand.deficits, found.deficits)):
                assert after[i, alike].sum() == pytest.approx(before[i, alike].sum())
                if alike.sum() == 1:
                    assert after[i, alike] == pytest.approx(before[i, alike])
                if running[i] >= 0 and alike[running[i]]:
                    assert not after[i, alike & (np.arange(types) != running[i])].any()
    again = gathered(found)
    np.testing.assert_allclose(again.fractions, found.fractions, atol=1e-12)


TIERS = "PartitionName=gpu PriorityTier=1 Nodes=v100-0 QoS=N/A\nPartitionName=long PriorityTier={} Nodes={} QoS=N/A\n"


@pytest.mark.parametrize(
    ("partition", "tier", "nodes", "warned"),
    [
        ("gpu", 10, "v100-[0-1]", True),
        ("gpu", 1, "v100-[0-1]", False),
        ("gpu", 10, "v100-[1-2]", False),
        ("gpu", 10, "(null)", False),
        (BOTH, 10, "v100-[1-2]", True),
    ],
)
def test_different_tiers_on_the_same_nodes_are_warned_of_at_the_start(
    tmp_path: Path, partition: str, tier: int, nodes: str, warned: bool
) -> None:
    slurm = site()
    slurm.partitions = TIERS.format(tier, nodes)
    with driver(slurm, tmp_path, partition=partition) as driven:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            driven.round()
        driven.round()
    assert [str(each.message).partition(": ")[2] for each in told] == [f"gpu 1, long {tier}"] * warned
