"""Limits and shares of a real slurmdbd, read by an operator: no GPU is planned that Slurm does not give, and none idles."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tests.slurm.loopback.cluster import LoopbackCluster, booted
from tests.slurm.loopback.configuration import Nodes, Settings
from tests.slurm.loopback.driving import driving, log_of, plugin
from tests.slurm.loopback.logbook import events
from tests.slurm.loopback.presence import needs_accounting, needs_root, needs_slurm
from tests.slurm.loopback.scenes import comment
from tests.slurm.loopback.submitting import SPEEDS
from tests.slurm.loopback.test_rights import OPERATOR, STRANGER, known_as
from tests.slurm.loopback.waiting import until

pytestmark = [needs_slurm, needs_accounting, needs_root, pytest.mark.deep]

STRANGER_ID = 5
MEMBER, MEMBER_ID = "news", 9
"""An account of every Linux, too; Slurm 26.05 knows no associations of nobody."""

OPTIONS = {"AccountingStorageTRES": "gres/gpu", "AccountingStorageEnforce": "limits,qos"}


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    """Twelve GPUs; chem may use 4 of them, a user with QOS normal 6; physics has three times the share of chem."""
    nodes = (Nodes("v100", 2), Nodes("k80", 1))
    with booted(Settings(nodes, plugin(OPERATOR), options=OPTIONS, accounting=True)) as made:

        def accounts(*words: str) -> None:
            made.tell("sacctmgr", "-i", *words)

        accounts("add", "account", "physics", "fairshare=3")
        accounts("add", "account", "chem", "fairshare=1")
        accounts("add", "user", MEMBER, "account=physics")
        accounts("add", "user", STRANGER, "account=chem")
        accounts("add", "user", OPERATOR, "account=root", "adminlevel=operator")
        accounts("modify", "account", "chem", "set", "GrpTRES=gres/gpu=4")
        accounts("modify", "qos", "normal", "set", "MaxTRESPU=gres/gpu=6")
        known_as(made, OPERATOR, "Operator")
        until(lambda: "gres/gpu=4(" in made.tell("scontrol", "show", "assoc_mgr", "flags=assoc"), "the limit to be known")
        yield made


def submitted(cluster: LoopbackCluster, user: int, partition: str = "gavel") -> int:
    words = ["--parsable", f"--partition={partition}", "--nodes=1", "--gres=gpu:1", "--output=/dev/null", "--chdir=/"]
    return int(cluster.tell("sbatch", *words, comment(1e7), "--wrap=exec sleep 600", user=user))


def test_no_gpu_is_planned_that_a_limit_leaves_idle(cluster: LoopbackCluster) -> None:
    """Of chem, a job in the other partition has one GPU already, so three are left; of physics, six of the limit of a user."""
    submitted(cluster, STRANGER_ID, "plain")
    chem = [submitted(cluster, STRANGER_ID) for _ in range(10)]
    physics = [submitted(cluster, MEMBER_ID) for _ in range(10)]
    with driving(cluster, "--round", "4", "--tenants-from-slurm", user=OPERATOR) as driver:
        driver.rounds(3)
        running = cluster.running()
        assert (len(running & set(chem)), len(running & set(physics))) == (3, 6)
        ended = next(iter(running & set(chem)))
        cluster.tell("scancel", str(ended))
        driver.until(lambda: len(cluster.running() & set(chem)) == 3, "the next job of the account")
        assert driver.end() == 0, driver.output()
    applied = events(log_of(cluster), "applied") + events(log_of(cluster), "filled")
    assert [line["waiting"] for line in applied] == [{}] * len(applied), "Slurm gives what is planned"
    assert [line["errors"] for line in applied] == [[]] * len(applied)


def test_accounting_counts_a_job_as_eligible_from_its_turn_on(cluster: LoopbackCluster) -> None:
    """Of eight jobs of a user who may have six GPUs, two wait for their turn; Slurm plans neither before."""
    jobs = {submitted(cluster, MEMBER_ID) for _ in range(8)}
    with driving(cluster, "--round", "600", user=OPERATOR) as driver:
        driver.until(lambda: len(cluster.running() & jobs) == 6, "six jobs to run")
        time.sleep(4)
        waiting = jobs - cluster.running()
        assert {cluster.jobs()[job].reason for job in waiting} == {"Dependency"}
        cluster.tell("scancel", str(next(iter(jobs - waiting))))
        driver.until(lambda: cluster.running() & waiting, "the next job")
        (started,) = cluster.running() & waiting

        def times() -> list[datetime]:
            line = cluster.tell("sacct", "-n", "-X", "-P", f"-j{started}", "-o", "Submit,Eligible,Start")
            return [datetime.fromisoformat(text) for text in line.strip().split("|") if text[:1].isdigit()]

        driver.until(lambda: len(times()) == 3, "slurmdbd to know its start")
        submit, eligible, start = times()
    assert start - submit >= timedelta(seconds=4)
    assert start - eligible <= timedelta(seconds=2)


def test_jobs_below_a_limit_take_turns(cluster: LoopbackCluster) -> None:
    """Ten jobs of chem, which may use 4 GPUs: all have run after some turns, and Slurm never counts more than 4 at once."""
    chem, ran = {submitted(cluster, STRANGER_ID) for _ in range(10)}, set[int]()

    def have_all_run() -> bool:
        running = cluster.running() & chem
        assert len(running) <= 4
        ran.update(running)
        return ran == chem

    with driving(cluster, "--round", "6", "--min-run-seconds", "6", user=OPERATOR) as driver:
        driver.until(have_all_run, "all jobs of the account to have had a turn", within=120)
        assert driver.end() == 0, driver.output()
    applied = events(log_of(cluster), "applied") + events(log_of(cluster), "filled")
    assert [line["waiting"] for line in applied] == [{}] * len(applied), "Slurm gives what is planned"
    lines = cluster.tell("sacct", "-DXnP", f"-j{','.join(map(str, chem))}", "--format=Start,End,State").split()
    stays = [(begin, end) for begin, end, _ in (line.split("|") for line in lines) if begin not in {"Unknown", "None"}]
    assert max(sum(begin <= at and (at < end or end == "Unknown") for begin, end in stays) for at, _ in stays) <= 4


def test_accounts_share_by_fairshare(cluster: LoopbackCluster) -> None:
    """Without limits: 20 jobs of chem, and 12 of physics with three times its share of the speed; in 8 rounds, at least twice."""
    cluster.tell("sacctmgr", "-i", "modify", "account", "chem", "set", "GrpTRES=gres/gpu=-1")
    cluster.tell("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPU=gres/gpu=-1")
    for _ in range(20):
        submitted(cluster, STRANGER_ID)
    physics = {submitted(cluster, MEMBER_ID) for _ in range(12)}
    speed: Counter[bool] = Counter()
    with driving(cluster, "--round", "4", "--tenants-from-slurm", "--wall-limit", "start", user=OPERATOR) as driver:
        for _ in range(8):
            driver.rounds(1)
            for job, each in cluster.jobs().items():
                speed[job in physics] += sum(SPEEDS[node.partition("-")[0]] for node in each.placement)  # type: ignore[assignment]
        assert driver.end() == 0, driver.output()
    assert sum(speed.values()) == 8 * (8 * SPEEDS["v100"] + 4 * SPEEDS["k80"])
    assert speed[True] > 2 * speed[False]


def test_jobs_run_for_the_time_that_their_qos_exempts(cluster: LoopbackCluster) -> None:
    """Five jobs take turns on three nodes in rounds of 5 s; none is stopped in its first 30 s, by the accounts of Slurm."""
    cluster.tell("sacctmgr", "-i", "modify", "qos", "normal", "set", "PreemptExemptTime=00:00:30", "MaxTRESPU=gres/gpu=-1")
    words = ["--parsable", "--partition=gavel", "--nodes=1", "--gres=gpu:4", "--output=/dev/null", "--chdir=/"]
    jobs = [cluster.tell("sbatch", *words, comment(1e7), "--wrap=exec sleep 600", user=MEMBER_ID).strip() for _ in range(5)]
    with driving(cluster, "--round", "5", user=OPERATOR) as driver:
        driver.until(lambda: sum(each.restarts for each in cluster.jobs().values()) >= 3, "three jobs to be stopped", within=150)
        assert driver.end() == 0, driver.output()
    stays = [line.split("|") for line in cluster.tell("sacct", "-DXnP", f"-j{','.join(jobs)}", "--format=State,ElapsedRaw").split()]
    stopped = [int(seconds) for state, seconds in stays if state == "REQUEUED"]
    assert len(stopped) >= 3
    assert min(stopped) >= 29, "Slurm counts whole seconds"


def test_elastic_jobs_grow_up_to_a_limit_and_share_it(cluster: LoopbackCluster) -> None:
    """A job of chem with two GPUs on each node has both v100 nodes, all that chem may use, until a second one needs half of it."""
    rows = "".join(f"elastic,{gpus},v100,{speed}\n" for gpus, speed in ((2, 2.0), (4, 3.5)))
    (cluster.folder / "speeds.csv").write_text(f"job_type,num_gpus,accelerator,steps_per_second\n{rows}")
    words = [
        "--parsable",
        "--partition=gavel",
        "--nodes=1-2",
        "--ntasks-per-node=1",
        "--gres=gpu:2",
        "--output=/dev/null",
        "--chdir=/",
    ]

    def elastic() -> int:
        return int(cluster.tell("sbatch", *words, "--comment=gavel: type=elastic", "--wrap=exec sleep 600", user=STRANGER_ID))

    def held() -> dict[int, int]:
        found = {job: sum(each.placement.values()) for job, each in cluster.jobs().items() if each.placement}
        assert sum(found.values()) <= 4
        return found

    first = elastic()
    with driving(cluster, "--round", "4", "--profile", str(cluster.folder / "speeds.csv"), user=OPERATOR) as driver:
        driver.within_rounds(lambda: held() == {first: 4}, 10, "the job to have all that its account may use")
        second = elastic()
        driver.within_rounds(lambda: held() == {first: 2, second: 2}, 15, "both to have half")
        cluster.tell("scancel", str(first))
        driver.within_rounds(lambda: held() == {second: 4}, 15, "the other one to have all again")
        assert driver.end() == 0, driver.output()
    applied = events(log_of(cluster), "applied") + events(log_of(cluster), "filled")
    assert [line["waiting"] for line in applied] == [{}] * len(applied), "Slurm gives what is planned"
    assert [line["errors"] for line in applied] == [[]] * len(applied)
