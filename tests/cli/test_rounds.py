"""gavel rounds: tenants, cost, nodes that are down, and forecasts until all jobs are done."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py.cli import rounds_text, tables
from tests.support.commands import Gavel, enter_folder, runner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = [str(EXAMPLES / "jobs.csv"), "--cluster", str(EXAMPLES / "cluster.yaml")]
SMALL = ["jobs.csv", "-c", "cluster.yaml", "--throughputs", "speeds.csv"]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\na,4,1\nb,2,1\nc,1,1\nd,3,1\n")
    rows = ["a,1,20000,,red", "b,1,10000,50,red", "c,1,5000,20,blue", "d,2,9000,10,blue"]
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus,total_steps,arrival_seconds,tenant\n" + "\n".join(rows) + "\n")
    types = "accelerator_types:\n  v100: {price_per_hour: 3}\n  k80: {price_per_hour: 1}\n"
    nodes = "nodes:\n  - {name: fast, accelerator: v100, num_gpus: 2}\n  - {name: slow, count: 2, accelerator: k80, num_gpus: 1}\n"
    (tmp_path / "cluster.yaml").write_text(types + nodes)
    return runner(capsys)


def leaves(tenants: list[dict[str, Any]]) -> list[dict[str, Any]]:
    parents = {each["parent"] for each in tenants}
    return [each for each in tenants if each["tenant"] not in parents]


def test_every_command_treats_jobs_that_wait_for_a_finished_one_alike(gavel: Gavel) -> None:
    header = "job_id,total_steps,steps_done,depends_on\n"
    Path("jobs.csv").write_text(header + "a,100,100,\nb,20000,0,a\nc,10000,0,afternotok:a\nd,9000,0,b\n")
    why = {"a": "it has finished: no steps remain", "c": "it can never start: 'a', for whose failure it waits, has finished"}
    assert json.loads(gavel("solve", *SMALL, "--json").out)["excluded"] == why | {"d": "it waits for 'b'"}
    assert why["c"] in " ".join(gavel("explain", "c", *SMALL).out.split())
    found = json.loads(gavel("rounds", *SMALL, "-n", "2", "--json").out)
    assert found["left_out"] == why
    assert found["blocked"] == {"d": ["b"]}
    assert [list(each["assignments"]) for each in found["rounds"]] == [["b"], ["b"]]
    assert f"c: {why['c']}" in gavel("rounds", *SMALL, "-n", "2").out
    jobs = {each["job_id"]: each for each in json.loads(gavel("rounds", *SMALL, "--until-done", "--json").out)["jobs"]}
    assert jobs["c"]["end_seconds"] is None
    assert jobs["c"]["reason"] == "it can never start: what it waits for can no longer happen"
    assert jobs["d"]["end_seconds"] > jobs["b"]["end_seconds"] > 0
    outcomes = json.loads(gavel("simulate", *SMALL, "--json").out)["policies"][0]["summary"]["outcomes"]
    assert (outcomes["finished"], outcomes["cancelled"]) == (3, 1)


def test_the_makespan_of_ready_jobs_is_not_said_to_be_that_of_all(gavel: Gavel) -> None:
    Path("jobs.csv").write_text("job_id,total_steps,depends_on\na,20000,\nb,10000,a\n")
    text = " ".join(gavel("solve", *SMALL, "-p", "min_makespan").out.split())
    assert "Proven optimal: the jobs that are ready and the paths of jobs that wait for them end after" in text
    assert "dependencies can only make this later, as --workflows shows." in text
    Path("jobs.csv").write_text("job_id,total_steps\na,20000\nb,10000\n")
    assert "Proven optimal: the last job ends after" in gavel("solve", *SMALL, "-p", "min_makespan").out


def test_rounds_state_why_jobs_are_left_out(gavel: Gavel) -> None:
    Path("jobs.csv").write_text("job_id,num_gpus\na,1\nb,3\n")
    shown = gavel("rounds", *SMALL, "-n", "1")
    assert "Left out:\n  b: " in shown.out


@pytest.mark.parametrize("more", [[], ["--sharing"], ["-p", "hierarchical,tenants=" + str(EXAMPLES / "tenants.yaml")]])
def test_tenants_of_rounds_add_up_to_the_gpus_and_to_the_delivery(gavel: Gavel, more: list[str]) -> None:
    document = json.loads(gavel("rounds", *EXAMPLE, "-n", "4", "--json", *more).out)
    tenants, delivery = leaves(document["tenants"]), document["delivery"]
    held: dict[str, float] = {}
    for round_ in document["rounds"]:
        for name, _ in {(each["accelerator"], tuple(gpu)) for each in round_["assignments"].values() for gpu in each["gpus"]}:
            held[name] = held.get(name, 0.0) + 1 / len(document["rounds"])
    assert {name: sum(each["gpus"][name] for each in tenants) for name in held} == pytest.approx(held)
    prices = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
    assert document["cost_per_hour"] == pytest.approx(sum(gpus * prices[name] for name, gpus in held.items()))
    assert document["cost_per_hour"] == pytest.approx(sum(each["cost_per_hour"] for each in tenants))
    assert sum(each["promised_gpu_seconds"] for each in tenants) == pytest.approx(delivery["promised_gpu_seconds"])
    seconds = len(document["rounds"]) * document["round_seconds"]
    for each in tenants:  # time of one of its jobs makes up for another
        received = sum(each["gpus"].values()) * seconds
        assert each["delivered_gpu_seconds"] == pytest.approx(min(each["promised_gpu_seconds"], received))
    assert sum(each["share"] for each in tenants) == pytest.approx(1)
    got = [each["throughput_share"] for each in tenants]
    assert got == [None] * len(got) if "--sharing" in more else sum(got) == pytest.approx(1)


def test_no_gang_runs_on_a_node_that_is_down(gavel: Gavel) -> None:
    document = json.loads(gavel("rounds", *EXAMPLE, "-n", "2", "--json", "--down", "v100-a-0, p100-3", "--down", "k80-a-1").out)
    assert document["down"] == ["v100-a-0", "p100-3", "k80-a-1"]
    nodes = {node for round_ in document["rounds"] for each in round_["assignments"].values() for node, _ in each["gpus"]}
    assert nodes
    assert not nodes & set(document["down"])
    text = gavel("rounds", *EXAMPLE, "-n", "2", "--down", "v100-a-0,p100-3").out
    assert text.startswith("Down: v100-a-0, p100-3, with 12 GPUs.\nRound 0, 6 minutes: ")
    assert "of 100 GPUs" in text
    wrong = gavel("rounds", *EXAMPLE, "--down", "v100-a-9")
    assert wrong.code == 2
    assert "did you mean 'v100-a-2'" in wrong.err


def independent_rounds(folder: Path, policy: str) -> dict[str, tuple[float, float]]:
    """Return start and end of each job from a scheduler and a loop of its own: steps of a round are done at once."""
    jobs, cluster = gp.JobSet.from_file(folder / "jobs.csv"), gp.Cluster.from_file(folder / "cluster.yaml")
    speeds = gp.ThroughputProfile.from_matrix(folder / "speeds.csv")
    scheduler = gp.RoundScheduler(cluster, speeds, policy=policy)
    for job in jobs:
        scheduler.submit(job)
    by_id = {job.job_id: job for job in jobs}
    done, start, end = dict.fromkeys((job.job_id for job in jobs), 0.0), {}, {}
    while len(end) < len(jobs):
        round_ = scheduler.next_round()
        for job_id, held in round_.assignments.items():
            speed, total = speeds.job_throughput(by_id[job_id], held.accelerator), by_id[job_id].total_steps or 0.0
            start.setdefault(job_id, round_.start_seconds)
            needed = (total - done[job_id]) / speed
            done[job_id] += 360 * speed
            if needed <= 360:
                end[job_id] = round_.start_seconds + needed
                scheduler.complete(job_id)
            else:
                scheduler.report(job_id, steps_done=done[job_id])
    return {job_id: (start[job_id], end[job_id]) for job_id in end}


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["fifo", "max_min_fairness", "shortest_job_first", "min_makespan"])
def test_the_forecast_is_that_of_a_loop_over_rounds(gavel: Gavel, tmp_path: Path, policy: str) -> None:
    document = json.loads(gavel("rounds", *SMALL, "--until-done", "--json", "-p", policy).out)
    found = {job["job_id"]: (job["start_seconds"], job["end_seconds"]) for job in document["jobs"]}
    wanted = independent_rounds(tmp_path, policy)
    assert {job: times[0] for job, times in found.items()} == {job: times[0] for job, times in wanted.items()}
    assert {job: times[1] for job, times in found.items()} == pytest.approx({job: times[1] for job, times in wanted.items()})
    assert document["end_seconds"] == pytest.approx(max(end for _, end in wanted.values()))
    assert document["cost"] == pytest.approx(sum(job["cost"] for job in document["jobs"]))
    assert sum(each["cost"] for each in document["tenants"]) == pytest.approx(document["cost"])
    # Also the simulator, on the same jobs, all of which arrive at once.
    jobs = [job.model_copy(update={"arrival_seconds": 0.0}) for job in gp.JobSet.from_file("jobs.csv")]
    if policy in ("max_min_fairness", "min_makespan"):  # others order equal jobs by arrival
        result = gp.simulate(jobs, gp.Cluster.from_file("cluster.yaml"), gp.ThroughputProfile.from_matrix("speeds.csv"), policy)
        assert {each.job_id: each.end_seconds for each in result.jobs.values()} == pytest.approx(
            {job: times[1] for job, times in wanted.items()}
        )


def test_forecasts_as_text_and_csv(gavel: Gavel) -> None:
    text = " ".join(gavel("rounds", *SMALL, "--until-done").out.split())
    assert "Forecast without new arrivals, with max_min_fairness solved again as jobs leave: all" in text
    assert "The GPU time until then costs" in text
    for part in ("Jobs by their end", "starts in", "Tenants until then"):
        assert part in text
    rows = list(csv.DictReader(io.StringIO(gavel("rounds", *SMALL, "--until-done", "--csv").out)))
    assert [row["job_id"] for row in rows] == ["a", "b", "c", "d"]
    tenants = list(csv.DictReader(io.StringIO(gavel("rounds", *SMALL, "--until-done", "--csv", "--by", "tenant").out)))
    assert [row["tenant"] for row in tenants] == ["blue", "red"]
    tenants = list(csv.DictReader(io.StringIO(gavel("rounds", *SMALL, "--csv", "--by", "tenant").out)))
    assert [row["finished"] for row in tenants] == ["", ""]
    assert gavel("rounds", *SMALL, "--by", "tenant").out.startswith("Tenants over 10 rounds\n")
    for wrong in (["--until-done", "-n", "3"], ["--until-done", "--plot", "x.svg"], ["--by", "tenant", "--json"]):
        assert gavel("rounds", *SMALL, *wrong).code == 2


@pytest.mark.parametrize(("least", "told"), [(1e-6, False), (3600.0, True)])
def test_rounding_noise_is_not_said_to_have_to_wait(least: float, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gp.DeliveryReport, "least_undelivered_gpu_seconds", least)
    scheduler = gp.RoundScheduler(gp.Cluster.from_counts({"v100": 1}), gp.ThroughputProfile.builtin("gavel-osdi20"))
    scheduler.submit_all([gp.Job(job_id=name, job_type="A3C") for name in "ab"])
    rounds = [scheduler.next_round()]
    text = rounds_text.delivery_text(scheduler.delivery(), rounds)
    assert ("had to wait" in text) == told
    assert "o job is more than" in text


def test_the_forecast_of_one_job_is_about_the_job(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,total_steps\na,9000\n")
    text = " ".join(gavel("rounds", "jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "--until-done").out.split())
    assert re.search(r"as jobs leave: the job ends [0-9.]+ \w+ from now\.", text)


def test_jobs_without_steps_stay_and_may_starve_others(gavel: Gavel, tmp_path: Path) -> None:
    rows = ["a,2,,0", "b,1,9000,1", "c,1,5000,2"]
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus,total_steps,arrival_seconds\n" + "\n".join(rows) + "\n")
    document = json.loads(gavel("rounds", "jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "--until-done", "--json").out)
    ends = {job["job_id"]: job["end_seconds"] for job in document["jobs"]}
    assert ends["a"] is None
    assert None not in (ends["b"], ends["c"])
    assert (document["cost"], document["tenants"]) == (None, [])
    starved = gavel("rounds", "jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "--until-done", "-p", "fifo").out
    for text in ("0 of 2 jobs end", "1 job without known steps", "others are served first"):
        assert text in " ".join(starved.split())
    needy = gavel("rounds", "jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "--until-done", "-p", "min_makespan")
    assert (needy.code, "'a'" in needy.err) == (2, True)


@pytest.mark.deep
@pytest.mark.parametrize("columns", ["40", "80"])
def test_bad_input_is_shown(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    names = ["n" * 120, "訓練" * 40, "e\u0301" * 30, "job with spaces", "-", "\U0001f680" * 20]
    texts = "".join(f"{name},A3C,{name},{9000 * (i + 1)}\n" for i, name in enumerate(names))
    (tmp_path / "names.csv").write_text("job_id,job_type,tenant,total_steps\n" + texts)
    (tmp_path / "none.csv").write_text("job_id,job_type\n")
    (tmp_path / "large.csv").write_text("job_id,job_type,num_gpus,tenant,total_steps\na,A3C,16,x,10\nb,A3C,32,y,10\n")
    for jobs in ("names.csv", "none.csv", "large.csv"):
        for more in (
            [],
            ["--until-done"],
            ["--by", "tenant"],
            ["--until-done", "--all"],
            ["--down", "v100-0"],
            ["--down", "v100-0", "--all"],
        ):
            outcome = gavel("rounds", jobs, "-c", "v100:4,k80:2", *more)
            assert outcome.code == 0, outcome.err
            assert max(map(tables.cell_width, outcome.out.splitlines()), default=0) <= int(columns)
            if columns == "80" and "--by" not in more:
                assert json.loads(gavel("rounds", jobs, "-c", "v100:4,k80:2", *more, "--json").out)
    endless = gavel("rounds", "none.csv", "-c", "v100:4", "--until-done").out
    assert "No job has known steps" in " ".join(endless.split())


def test_prices_that_are_partly_unknown_are_not_summed(gavel: Gavel, tmp_path: Path) -> None:
    text = (tmp_path / "cluster.yaml").read_text()
    (tmp_path / "cluster.yaml").write_text(text.replace("  k80: {price_per_hour: 1}\n", ""))
    document = json.loads(gavel("rounds", *SMALL, "--json").out)
    assert document["cost_per_hour"] is None
    assert "The GPUs in use cost unknown an hour" not in gavel("rounds", *SMALL).out
    assert "unknown" in gavel("rounds", *SMALL).out
    (tmp_path / "cluster.yaml").write_text("nodes:\n  - {name: fast, accelerator: v100, num_gpus: 2}\n")
    for command in (["rounds", *SMALL], ["rounds", *SMALL, "--until-done"], ["solve", *SMALL]):
        assert "cost" not in gavel(*command).out


@pytest.mark.deep
def test_elastic_jobs_are_shown_with_their_range_of_gpus(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(
        "job_id,job_type,gpu_counts,num_gpus,total_steps\na,A3C,,1,1e6\nb,ResNet-50 (batch size 64),1|2|4,,1e5\n"
    )
    for more in (["-n", "1"], ["--until-done"]):
        lines = gavel("rounds", "e.csv", "-c", "v100:4/4", *more).out.splitlines()
        assert sorted(line.split()[:2] for line in lines if line.startswith(("  a ", "  b "))) == [["a", "1"], ["b", "1-4"]]


def test_a_forecast_has_jobs_give_way_as_time_passes(gavel: Gavel) -> None:
    """One v100; the first job has run for an hour, the threshold of the policy, after ten rounds."""
    Path("jobs.csv").write_text("job_id,total_steps,arrival_seconds\na,144000,0\nb,3600,100\n")
    forecast = gavel("rounds", "jobs.csv", "-c", "v100:1", *SMALL[3:], "-p", "least_attained_service", "--until-done", "--json")
    jobs = {each["job_id"]: each for each in json.loads(forecast.out)["jobs"]}
    assert jobs["b"]["end_seconds"] == 3600 + 1800
    assert jobs["a"]["end_seconds"] == 36000 + 1800


def test_gpus_of_tenants_in_each_round(gavel: Gavel, tmp_path: Path) -> None:
    lines = [f"{tenant}{i},1,{tenant}" for tenant in "xyz" for i in range(6)]
    (tmp_path / "equal.csv").write_text("job_id,num_gpus,tenant\n" + "\n".join(lines) + "\n")
    (tmp_path / "equal-speeds.csv").write_text("job_id,v100\n" + "".join(f"{line.split(',')[0]},1\n" for line in lines))
    (tmp_path / "tree.yaml").write_text("tenants:\n  top: {tenants: {x: {}, y: {}}}\n  z: {}\n")
    equal = ["equal.csv", "-c", "v100:4", "--throughputs", "equal-speeds.csv", "-p", "hierarchical,tenants=tree.yaml"]
    text = gavel("rounds", *equal, "-n", "40").out
    table = text[text.index("GPUs of tenants, promised on average and held in each round") :].splitlines()
    assert table[1].split() == ["tenant", "promised", *map(str, range(14)), "…"]
    assert [line.split() for line in table[2:4]] == [[name, "2", *["2"] * 14, "…"] for name in ("top", "z")]
    assert max(map(len, table)) <= 80
    assert table[1:] == gavel("rounds", *equal, "-n", "40", "--by", "tenant").out.partition("in each round")[2].splitlines()[1:]
    assert "Each tenant has received what it was promised." in text
    document = json.loads(gavel("rounds", *equal, "-n", "2", "--json").out)
    assert document["tenant_gpus"] == {"top": [2, 2], "x": [1, 1], "y": [1, 1], "z": [2, 2]}
    delivered = {each["tenant"]: each["delivered_gpu_seconds"] for each in document["delivery"]["tenants"]}
    assert delivered == {name: 360 * sum(gpus) for name, gpus in document["tenant_gpus"].items()}


def test_whole_gangs_leave_tenants_some_of_their_time(gavel: Gavel, tmp_path: Path) -> None:
    lines = [f"{tenant}{i},{size},{tenant}" for tenant, size in (("x", 2), ("y", 4)) for i in range(3)]
    (tmp_path / "gangs.csv").write_text("job_id,num_gpus,tenant\n" + "\n".join(lines) + "\n")
    (tmp_path / "gang-speeds.csv").write_text("job_id,v100\n" + "".join(f"{line.split(',')[0]},1\n" for line in lines))
    gangs = ["gangs.csv", "-c", "v100:6/6", "--throughputs", "gang-speeds.csv", "-p", "hierarchical"]
    text = " ".join(gavel("rounds", *gangs, "-n", "1").out.split())
    owed = "Tenants are owed 0.1 of it, of which whole gangs leave at least 0.1 in any case; none is more than 0.4 rounds behind."
    assert owed in text


def test_without_tenants_nothing_is_said_of_them(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id\na\nb\nc\n")
    assert "tenant" not in gavel("rounds", *SMALL).out.lower()
    assert "tenant_gpus" not in json.loads(gavel("rounds", *SMALL, "--json").out)
