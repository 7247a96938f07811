"""A shadow beside plain Slurm: what it would have done, what Slurm did, and that it touches nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import t

import gavel_py as gp
from gavel_py.integrations.slurm.client.commands import JOBS
from gavel_py.integrations.slurm.client.queue import HOLDING, NODES, SHOWN
from gavel_py.integrations.slurm.turns import MECHANISM
from tests.slurm.fake_slurm import START, FakeClock, FakeSlurm, no_answer
from tests.slurm.support import BERT, SPEEDS, KilledError, cluster_with, driver, events, profile
from tests.slurm.test_accounts import with_accounts
from tests.slurm.test_reservations import reserved
from tests.support.commands import runner

LEASES = ["squeue", "--all", "--name=gavel-driver", "--json"]
SHOWS = ["partition --oneliner", "reservation --oneliner", "config"]
READS = [
    list(NODES),
    list(JOBS),
    [*SHOWN, "--partition=gpu"],
    [*SHOWN, "--nodelist=k80-0,v100-0", f"--states={HOLDING}"],
    LEASES,
    *(["scontrol", "show", *what.split()] for what in SHOWS),
]


class PlainSlurm(FakeSlurm):
    """A Slurm without driver, which prefers the slow node; jobs load and do their `work`, at `pace` of the profile."""

    def __init__(self, pace: float = 1.0, loading: float = 0.0) -> None:
        super().__init__(FakeClock(), {"k80-0": ("k80", 4), "v100-0": ("v100", 4)})
        self.work: dict[int, float] = {}
        self.pace, self.loading = pace, loading
        self.issued: list[list[str]] = []
        self.plays: list[tuple[float, Callable[[], object]]] = []
        self.clock.on_sleep = self._pass

    def arrive(self, after: float, number: int, gpus: int = 4, *, work: float, steps: bool = True, **fields: Any) -> None:
        """Let a job arrive so many seconds after the start."""
        comment = f"gavel: type=bert{f' steps={work:g}' if steps else ''}"
        more = {"submit_time": START + after, "account": "team"} | fields.pop("more", {})
        plain = {"per_job": f"gpu:{gpus}", "reason": "Resources", "admin_comment": "", "lease": "", "comment": comment}
        self.work[number] = work
        self.plays.append((START + after, lambda: self.submit(number, **{**plain, **fields, "more": more})))

    def cancel(self, number: int) -> None:
        if self.jobs[number].state in ("PENDING", "RUNNING"):
            self.end(number, "CANCELLED")

    def _pass(self, now: float) -> None:
        for play in [each for each in self.plays if each[0] <= now]:
            self.plays.remove(play)
            play[1]()
        self._schedule()
        for number, job in self.jobs.items():
            if job.state == "RUNNING":
                speed = self.speed_of(number) * self.pace
                end = job.start + self.loading + self.work[number] / speed
                if end <= now:
                    self.end(number)
                    job.end = end

    def speed_of(self, number: int) -> float:
        """Return the steps/s of a running job, by the profile."""
        held = self.jobs[number].held
        (kind,) = {self.nodes[node][0] for node in held}
        return SPEEDS["bert"][("v100", "k80").index(kind)] * sum(held.values())

    def run(self, arguments: Sequence[str], text: str = "") -> Any:
        self.issued.append(list(arguments))
        return super().run(arguments, text)


def shadow(slurm: FakeSlurm, folder: Path | None, **options: Any) -> gp.SlurmShadow:
    options = {"round_seconds": 100.0, "restart_seconds": 0.0, "min_run_seconds": 0.0} | options
    chosen = gp.SlurmSettings(
        "gpu", **{name: options.pop(name) for name in {"warn_signal", "warn_seconds", "wall_limit"} & options.keys()}
    )
    return gp.SlurmShadow(chosen, profile(), directory=folder, commands=slurm, clock=slurm.clock, **options)


@contextmanager
def untouched(slurm: PlainSlurm) -> Iterator[None]:
    """Assert that only readings were issued."""
    yield
    assert {tuple(words) for words in slurm.issued} <= {tuple(words) for words in READS}
    assert not slurm.sent
    assert not slurm.drivers()


def watched(slurm: PlainSlurm, folder: Path, seconds: float, **options: Any) -> gp.SlurmComparison:
    slurm.clock.stops_at = slurm.clock.now() + seconds
    with untouched(slurm), shadow(slurm, folder, **options) as watching:
        watching.run()
    found = gp.slurm_comparison(folder / "log.jsonl")
    assert found is not None
    return found


def ends(folder: Path, event: str) -> dict[str, float]:
    """Return {job: seconds after the start} of the jobs that left, in the shadow ("left") or in Slurm ("slurm_left")."""
    return {entry["job"]: entry["seconds"] - START for entry in events(folder, event)}


def test_a_job_runs_where_it_would_have_run(tmp_path: Path) -> None:
    """On the fast node, 3,200 steps take 100 s instead of the 400 s on the node that Slurm chose."""
    slurm = PlainSlurm()
    slurm.arrive(12.0, 1, work=3200)
    found = watched(slurm, tmp_path, 600)
    assert (found.both, found.only_slurm, found.only_shadow) == (1, 0, 0)
    assert found.slurm.jct_seconds.tolist() == pytest.approx([400], abs=5.1), "it is seen every 5 s"
    assert found.shadow.jct_seconds.tolist() == pytest.approx([100], abs=5.1)
    assert found.slowness == pytest.approx(1, rel=0.02)
    (stay,) = found.shadow.stays
    assert (stay.node, stay.gpus, stay.end_seconds - stay.start_seconds) == ("v100-0", 4, pytest.approx(100, abs=0.1))
    (tenant,) = found.tenants.items()
    assert tenant == (
        "team",
        (1, pytest.approx(400, abs=6), pytest.approx(100, abs=6), pytest.approx(1600, abs=25), pytest.approx(400, abs=1)),
    )


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["fifo", "shortest_job_first", "max_min_fairness"])
def test_the_schedule_is_that_of_a_simulation(tmp_path: Path, policy: str) -> None:
    """Up to the intervals at which the queue is read, once for each job that runs before."""
    slurm, jobs, generator = PlainSlurm(), [], random.Random(policy)  # noqa: S311
    for number in range(1, 9):
        arrival, gpus, work = 5.0 * generator.randrange(1, 40), generator.choice([1, 2, 4]), generator.uniform(400, 4000)
        request = {"num_gpus": gpus, "total_steps": work, "locality": "node", "even_split": True}
        jobs.append(gp.Job(str(number), job_type="bert", arrival_seconds=arrival, **request))
        slurm.arrive(arrival, number, gpus, work=work)
    watched(slurm, tmp_path, 2000, policy=policy)
    nodes = [gp.Node(name=name, accelerator=kind, num_gpus=gpus) for name, (kind, gpus) in slurm.nodes.items()]
    jobs.sort(key=lambda job: job.arrival_seconds)
    options = {"round_seconds": 100.0, "starts_between_rounds": True, "start_seconds": 0.0, "mechanism": MECHANISM}
    simulated = gp.simulate(jobs, gp.Cluster(nodes), profile(), policy, **options)
    found = ends(tmp_path, "left")
    assert found.keys() == simulated.jobs.keys()
    late = {job_id: found[job_id] - record.end_seconds for job_id, record in simulated.jobs.items()}
    assert min(late.values()) > -0.1
    assert sum(each < 5.0 for each in late.values()) >= len(jobs) / 2
    assert max(late.values()) < 5.0 * len(jobs)


def test_a_job_without_steps_ends_when_its_work_is_known(tmp_path: Path) -> None:
    """Slurm needs 400 s for it, so it was done after 100 s in the shadow, which learns that later, although it was preempted."""
    slurm = PlainSlurm()
    slurm.arrive(10.0, 1, work=3200, steps=False, more={"time_limit": 600})
    slurm.arrive(150.0, 2, work=640)
    slurm.arrive(150.0, 3, work=640)
    found = watched(slurm, tmp_path, 1000, policy="shortest_job_first")
    assert found.both == 3
    assert "1" in {entry["job"] for entry in events(tmp_path, "stopped") if entry["preempted"]}, "by the short ones"
    assert ends(tmp_path, "left")["1"] == pytest.approx(110, abs=5.1)
    assert ends(tmp_path, "slurm_left")["1"] == pytest.approx(410, abs=5.1)


def test_a_job_that_cannot_be_planned_any_more_is_as_slurm_has_it(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(10.0, 1, per_job="gpu:k80:4", work=3200, steps=False)
    slurm.arrive(20.0, 2, work=6400)
    slurm.plays.append((START + 50, lambda: slurm.states.update({"k80-0": "DRAIN"})))
    found = watched(slurm, tmp_path, 1000)
    (unplanned,) = events(tmp_path, "unplanned")
    assert unplanned["job"] == "1"
    assert found.both == 2
    stays = [[(stay.node, stay.end_seconds) for stay in run.stays if stay.job_id == "1"] for run in (found.slurm, found.shadow)]
    assert stays[0] == stays[1] == [("k80-0", pytest.approx(400, abs=6))]


def test_a_job_that_is_too_slow_reaches_its_time_limit(tmp_path: Path) -> None:
    """Slurm happens to run it on the fast node, in 100 s; in the shadow it is on the slow one, where its 2 min do not suffice."""
    slurm = PlainSlurm()
    slurm.arrive(5.0, 1, work=32_000)
    slurm.arrive(20.0, 2, work=3200, more={"time_limit": 2})
    found = watched(slurm, tmp_path, 1200, policy="fifo")
    assert (found.both, found.only_slurm, found.only_shadow) == (0, 1, 1)
    (left,) = [entry for entry in events(tmp_path, "left") if entry["job"] == "2"]
    assert (left["outcome"], left["running_seconds"]) == ("failed", pytest.approx(120, abs=1))


@pytest.mark.parametrize(("wall_limit", "runs"), [("total", 320), ("start", 500)])
def test_time_limits_count_as_for_a_driver(tmp_path: Path, wall_limit: str, runs: int) -> None:
    """A job of 5 min is preempted after 200 s: it has 2 min left, since whole minutes are counted, or 5 min again."""
    slurm = PlainSlurm()
    slurm.arrive(10.0, 1, work=1e9, more={"time_limit": 5})
    slurm.arrive(150.0, 2, work=640)
    slurm.arrive(150.0, 3, work=640)
    watched(slurm, tmp_path, 1000, policy="shortest_job_first", wall_limit=wall_limit)
    (left,) = [entry for entry in events(tmp_path, "left") if entry["job"] == "1"]
    assert (left["outcome"], left["preemptions"]) == ("failed", 1)
    assert left["running_seconds"] == pytest.approx(runs, abs=5.1)


def test_it_decides_from_the_same_reading_as_a_driver(tmp_path: Path) -> None:
    """With a reservation of the fast node, a limit of the partition and one of an account, both start the same jobs."""

    def site() -> PlainSlurm:
        slurm = PlainSlurm()
        with_accounts(slurm)
        reserved(slurm, "v100-0", 1200.0)
        slurm.partitions = "PartitionName=gpu MaxTime=02:00:00 State=UP QoS=N/A\n"
        for number, (gpus, minutes, account) in enumerate([(1, 180, ""), (4, 60, "chem"), (1, 60, "chem"), (2, 10, "")], 1):
            more = {"time_limit": minutes, "account": account, "user_name": "games", "qos": ""}
            slurm.submit(number, per_job=f"gpu:{gpus}", comment=BERT, more=more, priority=1000, admin_comment="")
        slurm.stuck = {1, 2, 3, 4}
        return slurm

    expected = driver(site(), None).plan()
    found = shadow(site(), tmp_path).plan()
    assert found.moves.start == expected.moves.start
    assert found.moves.start == {"2": {"k80-0": 4}, "4": {"v100-0": 2}}
    assert found.picture.left_alone == expected.picture.left_alone
    assert {"1", "3"} <= found.picture.left_alone.keys()


def test_jobs_that_run_at_the_beginning_run_in_both(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(0.0, 1, work=8000, steps=False)
    slurm.arrive(0.0, 2, work=3200, steps=False)
    slurm.clock.sleep(50.0)
    assert [slurm.jobs[number].held for number in (1, 2)] == [{"k80-0": 4}, {"v100-0": 4}]
    found = watched(slurm, tmp_path, 1500)
    stays = sorted(found.shadow.stays, key=lambda stay: stay.start_seconds)
    assert {(stay.job_id, stay.node, stay.start_seconds) for stay in stays[:2]} == {("1", "k80-0", 50.0), ("2", "v100-0", 50.0)}
    assert found.slurm.jct_seconds.tolist() == pytest.approx([150, 1050], abs=6)
    assert found.shadow.jct_seconds.max() < 500, "it moves to the fast node once that is free"


def test_gpus_of_jobs_that_are_left_to_slurm_are_taken_away(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(5.0, 1, work=6400)  # on the fast node in the shadow, on the slow one in Slurm
    slurm.arrive(60.0, 2, work=3200, more={"requeue": False})
    found = watched(slurm, tmp_path, 1500)
    assert [(stay.job_id, stay.node) for stay in found.shadow.stays][:2] == [("1", "v100-0"), ("1", "k80-0")]
    taken = next(stay for stay in found.shadow.stays if stay.node == "k80-0")
    assert 60 <= taken.start_seconds + 5 <= 70
    assert [entry["job"] for entry in events(tmp_path, "arrived")] == ["1"]


def test_cancelled_and_held_jobs(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(5.0, 1, work=1e6)
    slurm.arrive(5.0, 2, work=1e6)
    slurm.arrive(5.0, 3, work=3200, priority=0, reason="JobHeldUser")
    slurm.plays.append((START + 200, lambda: slurm.end(1, "CANCELLED")))
    slurm.plays.append((START + 250, lambda: slurm.jobs.pop(2)))
    slurm.plays.append((START + 300, lambda: setattr(slurm.jobs[3], "priority", 1000)))
    found = watched(slurm, tmp_path, 900)
    assert {entry["job"]: entry["outcome"] for entry in events(tmp_path, "left")} == {
        "1": "cancelled",
        "2": "unknown",
        "3": "finished",
    }
    assert ends(tmp_path, "left")["1"] == pytest.approx(200, abs=5)
    assert min(stay.start_seconds for stay in found.shadow.stays if stay.job_id == "3") >= 295, "its user held it"
    assert (found.both, found.shadow.metrics["finished"]) == (1, 1)


def test_each_start_costs_what_it_costs_in_slurm(tmp_path: Path) -> None:
    """Of 20 s, 19.7 are without the stop of another job, of which there is none; in Slurm, too, jobs load at their only start."""
    slurm = PlainSlurm(loading=19.1)
    slurm.arrive(5.0, 1, work=6400)
    slurm.arrive(60.0, 2, work=3200, more={"requeue": False})  # takes the fast node away
    slurm.nodes = dict(reversed(slurm.nodes.items()))
    slurm.arrive(5.0, 3, work=3200)
    found = watched(slurm, tmp_path, 1500, restart_seconds=20.0)
    starts = {job: [stay for stay in found.shadow.stays if stay.job_id == job] for job in ("1", "3")}
    assert sum(map(len, starts.values())) > 2, "one moves"
    for job, stays in starts.items():
        done = sum((stay.end_seconds - stay.start_seconds - 19.7) * {"v100-0": 32, "k80-0": 8}[stay.node] for stay in stays)
        assert done == pytest.approx({"1": 6400, "3": 3200}[job], rel=0.01)
    work = {entry["job"]: entry["steps"] for entry in events(tmp_path, "work") if entry["job"] in starts}
    assert work == {"1": pytest.approx(6400, rel=0.01), "3": pytest.approx(3200, rel=0.01)}
    (assumed,) = events(tmp_path, "assumed")
    assert [assumed[name] for name in ("stop", "start", "loading", "loading_from")] == [0.3, 0.6, 19.1, "--restart-seconds"]


@pytest.mark.deep
def test_what_jobs_lose_is_that_of_the_site_once_it_is_known(tmp_path: Path) -> None:
    """Jobs of Slurm load for 30 s and run at half the pace of the profile; a driver has seen stops of 4 s and starts of 2 s."""
    site = cluster_with(2, 4)
    site.slow = {1: 4.0}
    with driver(site, tmp_path / "driver", measures=True) as driven:
        driven.round()
        driven.state.restart_cost.starts = [2.0, 1.0, 2.5]
        driven.state.restart_cost.stops = [4.0]
        driven._save()
    slurm = PlainSlurm(pace=0.5, loading=30.0)
    for number in range(1, 13):
        slurm.arrive(5.0, number, 1 + number % 2, work=100.0 * number)
    settings = gp.SlurmSettings("gpu", history=tmp_path / "driver")
    watching = gp.SlurmShadow(
        settings, profile(), directory=tmp_path / "shadow", commands=slurm, clock=slurm.clock, round_seconds=50.0
    )
    assert watching.costs == (4.0, 2.0, 9.1)
    slurm.clock.stops_at = START + 1500.0
    with watching:
        watching.run()
    assert watching.costs == (4.0, 2.0, pytest.approx(30.0, abs=0.1))
    told = [(entry["loading"], entry["loading_from"]) for entry in events(tmp_path / "shadow", "assumed")]
    assert told[0] == (9.1, "")
    assert told[-1] == (30.0, "jobs that have finished in Slurm")
    again = gp.SlurmShadow(settings, profile(), directory=tmp_path / "shadow", commands=slurm, clock=slurm.clock)
    assert again.costs == watching.costs, "what it has learned is saved"


@pytest.mark.deep
def test_it_continues_after_it_was_killed(tmp_path: Path) -> None:
    """The same schedule as without, up to a round, since rounds begin at other times."""
    schedules = []
    for name in ("whole", "killed"):
        slurm = PlainSlurm()
        for number in range(1, 5):
            slurm.arrive(10.0 * number, number, work=1600.0 * number, steps=number != 2)
        if name == "killed":
            is_killed(slurm, tmp_path / name, 120.0, 4, policy="fifo")
        watched(slurm, tmp_path / name, START + 900 - slurm.clock.now(), policy="fifo")
        schedules.append(ends(tmp_path / name, "left"))
    assert schedules[0].keys() == schedules[1].keys() == set("1234")
    assert schedules[1] == pytest.approx(schedules[0], abs=100)
    assert schedules[1]["1"] == schedules[0]["1"]
    assert schedules[1]["2"] == pytest.approx(schedules[0]["2"], abs=5.1), "it has ended in Slurm meanwhile"


def is_killed(slurm: PlainSlurm, folder: Path, after: float, gap: int, **options: Any) -> None:
    """Run a shadow that is killed, and look away for so many times five seconds."""

    def killed() -> None:
        raise KilledError

    slurm.plays.append((START + after, killed))
    with pytest.raises(KilledError), shadow(slurm, folder, **options) as watching:
        watching.run()
    for _ in range(gap):
        slurm.clock.sleep(5.0)


FATES = ["", "", "left to Slurm", "cancelled"]
PLAYS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 4]), st.floats(50, 8000), st.booleans(), st.sampled_from(FATES)),
    min_size=1,
    max_size=8,
)


@pytest.mark.guard
@settings(max_examples=4, deadline=None)
@given(
    plays=PLAYS,
    policy=st.sampled_from(["max_min_fairness", "fifo"]),
    pace=st.sampled_from([0.5, 1.0, 2.0]),
    gap=st.sampled_from([None, 1, 10]),
)
@example(plays=[(36, 2, 50.0, False, ""), (36, 4, 4000.0, True, "")], policy="max_min_fairness", pace=0.5, gap=10)
def test_no_job_is_lost_no_gpu_is_used_twice_and_work_is_conserved(
    tmp_path_factory: pytest.TempPathFactory,
    plays: list[tuple[int, int, float, bool, str]],
    policy: str,
    pace: float,
    gap: int | None,
) -> None:
    folder, slurm = tmp_path_factory.mktemp("shadow"), PlainSlurm(pace)
    for number, (after, gpus, work, has_steps, fate) in enumerate(plays, 1):
        slurm.arrive(5.0 * after, number, gpus, work=work, steps=has_steps, more={"requeue": fate != "left to Slurm"})
        if fate == "cancelled":
            slurm.plays.append((START + 5.0 * after + 50, partial(slurm.cancel, number)))
    missed = set[int]()
    if gap is not None:
        is_killed(slurm, folder, 170.0, gap, policy=policy)
        over = {number for number, job in slurm.jobs.items() if job.state not in ("PENDING", "RUNNING")}
        missed = {number for number in over if 5.0 * plays[number - 1][0] >= 170.0}  # they came and went while no shadow ran
    found = watched(slurm, folder, START + 1200 - slurm.clock.now(), policy=policy)
    managed = {str(number) for number, play in enumerate(plays, 1) if play[4] != "left to Slurm" and number not in missed}
    left = {entry["job"]: entry["outcome"] for entry in events(folder, "left")}
    assert left.keys() <= {entry["job"] for entry in events(folder, "arrived")} == managed
    assert {stay.job_id for run in (found.slurm, found.shadow) for stay in run.stays} <= managed
    for job_id, outcome in left.items():
        assert outcome == ("cancelled" if slurm.jobs[int(job_id)].state == "CANCELLED" else "finished") or plays[int(job_id) - 1][3]
    for node in slurm.nodes:
        stays = [stay for stay in found.shadow.stays if stay.node == node]
        for at in (stay.start_seconds for stay in stays):
            assert sum(stay.gpus for stay in stays if stay.start_seconds <= at < stay.end_seconds) <= 4
    for job_id in (job_id for job_id, outcome in left.items() if outcome == "finished"):
        stays = [stay for stay in found.shadow.stays if stay.job_id == job_id]
        speeds = [SPEEDS["bert"][stay.accelerator == "k80"] * stay.gpus for stay in stays]
        done = sum((stay.end_seconds - stay.start_seconds) * speed for stay, speed in zip(stays, speeds, strict=True))
        work, slack = slurm.work[int(job_id)], 1.1 * sum(speeds)  # a stop counts whole seconds, as in Slurm
        ends_at = [work, work / pace] if plays[int(job_id) - 1][3] else [work / pace]
        if plays[int(job_id) - 1][3]:
            assert min(abs(done - each) for each in ends_at) < slack
        else:
            assert done > work / pace - slack


def test_the_controller_is_away_for_a_while(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(5.0, 1, work=3200)
    slurm.plays.append((START + 50, lambda: setattr(slurm, "fails", no_answer)))
    slurm.plays.append((START + 250, lambda: setattr(slurm, "fails", None)))
    with pytest.warns(gp.GavelWarning, match="Slurm (does not answer since|answers again, after 20)"):
        assert watched(slurm, tmp_path, 900).both == 1
    assert events(tmp_path, "no_answer")
    assert ends(tmp_path, "left")["1"] == pytest.approx(110, abs=6), "the time of its end does not depend on when it is seen"


def test_a_driver_in_the_same_partition_is_reported(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    with driver(slurm, tmp_path / "driver") as driven, shadow(slurm, tmp_path / "before"):
        driven.round()
        message = r"a driver manages partition gpu \(process \d+ on .*\); a shadow is for"
        with pytest.warns(gp.GavelWarning, match=message), shadow(slurm, tmp_path / "after"):
            pass


def test_directories_of_drivers_and_shadows_are_not_mixed(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(0.0, 1, work=3200)
    slurm.clock.sleep(5.0)
    with shadow(slurm, tmp_path / "shadow") as watching:
        watching.round()
    with driver(slurm, tmp_path / "driver") as driven:
        driven.round()
    with pytest.raises(gp.InputError, match=r"driver: is the state of a driver; use another directory \(--state\)"):
        shadow(slurm, tmp_path / "driver").__enter__()
    with pytest.raises(gp.InputError, match=r"shadow: is the state of a shadow \(--shadow\); use another directory"):
        driver(slurm, tmp_path / "shadow").__enter__()
    assert gp.slurm_comparison(tmp_path / "driver" / "log.jsonl") is None


@pytest.mark.deep
def test_the_comparison_says_how_sure_it_is_and_what_knowing_users_would_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs of all GPUs of a node, 4 times as fast on v100: users who know wait for its node, one after another, for 29.7 s each."""
    slurm = PlainSlurm(loading=9.1)
    slurm.arrive(0.0, 1, work=320.0)
    slurm.clock.sleep(0.0)  # it runs on k80 when the shadow begins
    for number in range(2, 25):
        slurm.arrive(25.0 * (number - 1), number, work=640.0, more={"time_limit": 5})
    found = watched(slurm, tmp_path, 1000, restart_seconds=10.0)
    assert found.both == 24
    left = [{int(job): end for job, end in ends(tmp_path, event).items()} for event in ("left", "slurm_left")]
    shadow_jcts, slurm_jcts = ([each[number] - 25.0 * (number - 1) for number in range(1, 25)] for each in left)
    ratio = sum(shadow_jcts) / sum(slurm_jcts)
    assert ratio == pytest.approx(found.shadow.metrics["mean_jct_seconds"] / found.slurm.metrics["mean_jct_seconds"])
    batches = [range(start, start + 3) for start in range(0, 12, 3)] + [range(start, start + 2) for start in range(12, 24, 2)]
    off = [sum(shadow_jcts[i] - ratio * slurm_jcts[i] for i in batch) for batch in batches]
    half = t.ppf(0.975, 9) * 10**0.5 * stdev(off) / sum(slurm_jcts)
    assert found.change == (pytest.approx(ratio - 1), pytest.approx(half, rel=1e-3))
    end, jcts = 0.0, [49.1]
    for arrival in (25.0 * number for number in range(1, 24)):
        end = max(end, arrival) + 29.7
        jcts.append(end - arrival)
    assert found.knowing is not None
    assert found.knowing["mean_jct_seconds"] == pytest.approx(mean(jcts), rel=0.03)
    assert found.knowing["makespan_seconds"] == pytest.approx(end, rel=0.03)
    gavel = runner(capsys, "slurm")
    told = gavel("report", str(tmp_path)).out
    assert f"{ratio - 1:+.1%} ± {half:.1%}" in told
    assert "0.3 s to stop and 0.6 s to start" in told
    assert "9.1 s to load (from --restart-seconds)" in " ".join(told.split())
    document = json.loads(gavel("report", str(tmp_path), "--json").out)
    assert document["knowing"]["mean_jct_seconds"] == found.knowing["mean_jct_seconds"]
    assert tuple(document["change"]) == found.change


@pytest.mark.deep
def test_the_report_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slurm = PlainSlurm(pace=0.5)
    for number, account in enumerate(("team", "other", "team"), 1):
        slurm.arrive(5.0, number, work=3200.0, more={"account": account})
    watched(slurm, tmp_path, 2000)
    gavel = runner(capsys, "slurm")
    done = gavel("report", str(tmp_path), "--html", str(tmp_path / "page.html"))
    assert done.code == 0
    assert done.out.startswith("3 jobs finished in both, 0 only in Slurm, 0 only in the shadow\n")
    assert "In Slurm, the median job took 2 times as long as steps and profile predict." in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "Slurm" in (tmp_path / "page.html").read_text()
    document = json.loads(gavel("report", str(tmp_path), "--json").out)
    assert {name: each["jobs"] for name, each in document["tenants"].items()} == {"other": 1, "team": 2}
    metrics = [document[side]["metrics"]["mean_jct_seconds"] for side in ("slurm", "shadow")]
    assert f"{metrics[1] / metrics[0] - 1:+.1%}" in done.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--on-exit", "release"),
            "--shadow changes nothing in Slurm, and reads only what Slurm lists; leave out --on-exit rel",
        ),
        (("--progress", "."), "leave out --progress"),
        (("--learn", "optimistic"), "leave out --learn"),
    ],
)
def test_options_without_a_meaning_are_refused(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = runner(capsys, "slurm")("run", "--partition", "gpu", "--shadow", *words)
    assert (done.code, text in done.err) == (2, True)


def test_a_history_without_a_meaning_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gavel = runner(capsys, "slurm")
    done = gavel("run", "--partition", "gpu", "--history", str(tmp_path))
    assert (done.code, "--history is for --shadow" in done.err) == (2, True)
    done = gavel("run", "--partition", "gpu", "--shadow", "--history", str(tmp_path), "--state", str(tmp_path / "shadow"))
    assert (done.code, f"{tmp_path}/state.json" in done.err) == (2, True)


def test_a_job_whose_dependency_has_ended_arrives_within_seconds(tmp_path: Path) -> None:
    """Slurm starts it at once, on the slow node."""
    slurm = PlainSlurm()
    slurm.arrive(5.0, 1, 2, work=1e6)
    slurm.arrive(20.0, 2, 2, work=320, priority=0, more={"dependency": "afterany:1(unfulfilled)"})

    def freed() -> None:
        slurm.jobs[2].priority, slurm.jobs[2].more["dependency"] = 1000, ""

    slurm.plays.append((START + 150, freed))
    found = watched(slurm, tmp_path, 600)
    (stay,) = (stay for stay in found.shadow.stays if stay.job_id == "2")
    assert 148 <= stay.start_seconds + 5 <= 161


def test_jobs_have_the_time_after_a_warning_that_nobody_sends(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    for number in range(1, 4):
        slurm.arrive(5.0, number, work=1e6)
    watched(slurm, tmp_path, 500, warn_signal="USR1", warn_seconds=20.0)
    warned = [(job_id, each["until"]) for entry in events(tmp_path, "warned") for job_id, each in entry["jobs"].items()]
    stopped = [entry for entry in events(tmp_path, "stopped") if entry["preempted"]]
    assert stopped
    for entry in stopped:
        assert any(job_id == entry["job"] and 0 <= entry["seconds"] - until < 5.1 for job_id, until in warned)


def test_a_rotated_log_is_compared_too(tmp_path: Path) -> None:
    slurm = PlainSlurm()
    slurm.arrive(5.0, 1, work=3200)
    slurm.arrive(305.0, 2, work=320)
    slurm.clock.stops_at = START + 600
    with shadow(slurm, tmp_path) as watching:
        slurm.plays.append((START + 200, lambda: (tmp_path / "log.jsonl").rename(tmp_path / "log.jsonl.1")))
        slurm.plays.append((START + 200, watching.reopen_log))
        watching.run()
    found = gp.slurm_comparison(tmp_path / "log.jsonl")
    assert found is not None
    assert (found.both, found.only_slurm, found.only_shadow) == (1, 0, 0), "the other one arrived before"
    whole = gp.slurm_comparison(tmp_path)
    assert whole is not None
    assert (whole.both, whole.only_slurm, whole.only_shadow) == (2, 0, 0)


def test_logs_in_a_directory_are_read_from_the_oldest_on(tmp_path: Path) -> None:
    """The parts of a log are the whole log, whatever rotation names them; other files do not count."""
    slurm = PlainSlurm()
    for number in range(1, 7):
        slurm.arrive(50.0 * number, number, work=640)
    watched(slurm, tmp_path, 900)
    log, whole = tmp_path / "log.jsonl", gp.slurm_run(tmp_path / "log.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    parts = {"log.jsonl-20261101": lines[:9], "log.jsonl.2": lines[9:20], "log.jsonl.1": lines[20:31], "log.jsonl": lines[31:]}
    for name, part in parts.items():
        (tmp_path / name).write_text("".join(part))
    (tmp_path / "log.jsonl.3.gz").write_bytes(b"\x1f\x8b\xff")
    (tmp_path / "log.jsonl.4").touch()
    found = gp.slurm_run(tmp_path)
    assert (found.metrics, found.stays) == (whole.metrics, whole.stays)
    with pytest.raises(gp.InputError, match=r"log\.jsonl.*cannot be read"):
        gp.slurm_run(tmp_path.parent)
