"""What `gavel solve --what-if` says of teams, ends, costs, nodes that are down, and types that the cluster lacks."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.instances import best_level
from tests.support.shared_data import SHARED

JOBS = """job_id,tenant,job_type,num_gpus,locality,total_steps,deadline_seconds
a1,a,small,1,any,9000,9000
a2,a,small,1,any,20000,
b1,b,wide,4,node,7000,30000
b2,b,small,1,any,5000,
serve,b,small,1,any,,
"""
SPEEDS = """job_type,num_gpus,accelerator,steps_per_second
small,1,v100,2
small,1,k80,1
small,1,h100,5
wide,4,v100,3
wide,4,k80,0
wide,4,h100,6
"""
CLUSTER = """accelerator_types:
  v100: {price_per_hour: 3}
  k80: {price_per_hour: 1}
nodes:
  - {name: v, count: 2, accelerator: v100, num_gpus: 4}
  - {name: k, accelerator: k80, num_gpus: 2}
"""
GIVEN = ("solve", "jobs.csv", "-c", "cluster.yaml", "--profile", "speeds.csv")
OPERATOR = SHARED.parent / "cases" / "operator"


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """A command line among these files, on a terminal of 80 columns."""
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    for name, content in (("jobs.csv", JOBS), ("speeds.csv", SPEEDS), ("cluster.yaml", CLUSTER)):
        written(name, content)
    return runner(capsys)


def by_hand(nodes: list[gp.Node], profile: gp.Profile | None = None) -> gp.AllocationProblem:
    """The problem of the jobs on these nodes, with the normalisers of the cluster of the file."""
    read = gp.JobSet.from_file("jobs.csv"), profile or gp.ThroughputProfile.from_file("speeds.csv")
    here = gp.Cluster.from_file("cluster.yaml")
    there = gp.AllocationProblem.from_jobs(read[0], gp.Cluster(nodes, here.accelerator_types), read[1])
    shares = [*here.capacities, *[0.0] * (len(there.accelerator_types) - len(here.capacities))]
    return dataclasses.replace(there, share_capacities=np.array(shares))


def level_of(problem: gp.AllocationProblem) -> float:
    """The objective of max_min_fairness by another program: max t with t P_i w_i / s_i <= what job i gets."""
    served = problem.select(problem.runnable.any(axis=1))
    return best_level(served, served.equal_share * served.weights / served.num_gpus)


def measures(document: dict[str, Any]) -> dict[str, list[Any]]:
    """{name, with the tenant: values} of a comparison."""
    return {" ".join(filter(None, (each["name"], each["tenant"]))): each["values"] for each in document["comparison"]["measures"]}


def test_nodes_that_are_down_are_the_cluster_without_them(gavel: Gavel) -> None:
    document = json.loads(gavel(*GIVEN, "--what-if", "down:v-0+k", "--what-if", "down:v-1,k80+2", "--json").out)
    first, second = document["what_if"]
    assert [each["gpus"] for each in document["what_if"]] == [{"v100": 4, "k80": 0}, {"v100": 4, "k80": 4}]
    nodes = gp.Cluster.from_file("cluster.yaml").nodes
    rest = by_hand([node for node in nodes if node.name == "v-1"])
    more = by_hand([node for node in nodes if node.name != "v-1"]).with_capacities([4, 4])
    for found, problem in ((first, rest), (second, more)):
        value = found["allocation"]["objective"]["value"]
        assert value == pytest.approx(level_of(problem), rel=1e-6)
        assert value == pytest.approx(gp.solve(problem, "max_min_fairness").objective_value)
    assert measures(document)["objective"] == [
        each["objective"]["value"] for each in (document, *(w["allocation"] for w in (first, second)))
    ]


def test_gangs_that_no_longer_fit_are_named(gavel: Gavel) -> None:
    text = gavel(*GIVEN, "--what-if", "down:v-0+v-1").out
    assert "Left out then:\n  b1: its gang of 4 GPUs" in text
    row = next(line.split() for line in text.splitlines() if line.strip().startswith("last job ends"))
    assert row[-1] == "-", "b1 has no end"
    assert "none if a job gets no GPU time" in " ".join(text.split())


@pytest.mark.parametrize("policy", ["max_min_fairness", "hierarchical", "fifo"])
def test_figures_of_each_cluster_follow_from_the_time_of_its_jobs(gavel: Gavel, policy: str) -> None:
    """Costs, ends, deadlines and the work of tenants, from the time fractions in the JSON output alone."""
    document = json.loads(gavel(*GIVEN, "-p", policy, "--what-if", "down:v-0", "--what-if", "k80+8", "--json").out)
    jobs = list(csv.DictReader(io.StringIO(JOBS)))
    speeds = {(row["job_type"], row["accelerator"]): float(row["steps_per_second"]) for row in csv.DictReader(io.StringIO(SPEEDS))}
    gpus, price = {"v100": 8, "k80": 2}, {"v100": 3, "k80": 1}
    rows = measures(document)
    assert document["comparison"]["clusters"] == ["as it is", "down:v-0", "k80+8"]
    before: list[float] = []
    for at, found in enumerate((document, *(each["allocation"] for each in document["what_if"]))):
        work, normalized, hourly, total, end, met = {"a": 0.0, "b": 0.0}, [], 0.0, 0.0, 0.0, 0
        for job, answer in zip(jobs, found["jobs"], strict=True):
            size = int(job["num_gpus"])
            speed = sum(part * speeds[job["job_type"], name] for name, part in answer["time_fractions"].items())
            normalized.append(speed / (sum(speeds[job["job_type"], name] * count for name, count in gpus.items()) / 10))
            work[job["tenant"]] += size * normalized[-1]
            cost = size * sum(part * price[name] for name, part in answer["time_fractions"].items())
            hourly += cost
            if job["total_steps"]:
                seconds = float(job["total_steps"]) / speed if speed else np.inf
                end, total = max(end, seconds), total + cost * seconds / 3600
                met += bool(job["deadline_seconds"]) and seconds <= float(job["deadline_seconds"])
        assert rows["cost_per_hour"][at] == pytest.approx(hourly)
        assert rows["end_seconds"][at] == (pytest.approx(end) if end < np.inf else None)
        assert rows["cost_until_done"][at] == (pytest.approx(total) if end < np.inf else None)
        assert rows["deadlines_met"][at] == met
        assert rows["total_normalized_throughput"][at] == pytest.approx(sum(normalized))
        for tenant, done in work.items():
            assert rows[f"work_over_share {tenant}"][at] == pytest.approx(done / (10 / 2)), "equal shares of ten GPUs"
        if at:
            changes = np.array(normalized) - before
            assert [rows["gain"][at], rows["lose"][at]] == [(changes > 1e-6).sum(), (changes < -1e-6).sum()]
            assert {"gain": len(document["what_if"][at - 1]["gain"]), "lose": len(document["what_if"][at - 1]["lose"])} == {
                name: rows[name][at] for name in ("gain", "lose")
            }
        else:
            before = normalized
            assert (rows["gain"][0], rows["lose"][0]) == (None, None)


def test_a_type_of_the_profile_can_be_added(gavel: Gavel) -> None:
    """Its GPUs are on nodes, as in --cluster h100:8; the normalisers are those without it."""
    given = (*GIVEN, "--what-if", "H100+8", "--what-if", "h100+2nodes/4,v100-4", "--price", "h100=7", "--json")
    document = json.loads(gavel(*given).out)
    nodes = list(gp.Cluster.from_file("cluster.yaml").nodes)
    problem = by_hand([*nodes, gp.Node(name="h", accelerator="h100", num_gpus=8)])
    first, second = (each["allocation"] for each in document["what_if"])
    assert first["objective"]["value"] == pytest.approx(level_of(problem), rel=1e-6)
    small = by_hand([*nodes, *(gp.Node(name=name, accelerator="h100", num_gpus=4) for name in "hi")]).with_capacities([4, 2, 8])
    assert second["objective"]["value"] == pytest.approx(level_of(small), rel=1e-6)
    assert "h100" not in document["jobs"][0]["time_fractions"], "the answer for the cluster as it is stays the same"
    plain = json.loads(gavel(*GIVEN, "--json").out)
    assert [each["time_fractions"] for each in document["jobs"]] == [each["time_fractions"] for each in plain["jobs"]]
    held = sum(job["time_fractions"]["h100"] * size for job, size in zip(first["jobs"], (1, 1, 4, 1, 1), strict=True))
    others = sum(
        size * (3 * job["time_fractions"]["v100"] + job["time_fractions"]["k80"])
        for job, size in zip(first["jobs"], (1, 1, 4, 1, 1), strict=True)
    )
    assert measures(document)["cost_per_hour"][1] == pytest.approx(7 * held + others)


def test_costs_are_unknown_without_a_price(gavel: Gavel) -> None:
    result = gavel(*GIVEN, "--what-if", "h100+8")
    rows = {line.strip().split("  ")[0]: line.split() for line in result.out.splitlines()}
    assert rows["cost per hour"][-1] == rows["cost until then"][-1] == "unknown"
    assert "h100+8: cost unknown, since the price of h100 is; --price h100=PRICE gives it" in result.out
    priced = json.loads(gavel(*GIVEN, "--price", "V100=6", "--what-if", "v100+0", "--json").out)
    assert priced["cost"]["per_hour"] == pytest.approx(
        sum(
            size * (6 * job["time_fractions"]["v100"] + job["time_fractions"]["k80"])
            for job, size in zip(priced["jobs"], (1, 1, 4, 1, 1), strict=True)
        )
    )


def test_speeds_on_a_new_type_may_be_estimates_with_their_intervals(gavel: Gavel) -> None:
    """The estimates are those of the Python API, and the allocation that of a cluster with the type in its file."""
    written("speeds.csv", "".join(line for line in SPEEDS.splitlines(keepends=True) if "h100" not in line))
    given = (*GIVEN, "--estimate", "specs", "--what-if", "l40s+8")
    document = json.loads(gavel(*given, "--json").out)
    (what_if,) = document["what_if"]
    assert {each["accelerator"] for each in what_if["estimates"]} == {"l40s"}
    profile = gp.ThroughputProfile.from_file("speeds.csv").with_estimates("specs")
    nodes = [*gp.Cluster.from_file("cluster.yaml").nodes, gp.Node(name="n", accelerator="l40s", num_gpus=8)]
    wanted = gp.solve(by_hand(nodes, profile), "max_min_fairness")
    assert what_if["allocation"]["objective"]["value"] == pytest.approx(wanted.objective_value)
    for each in what_if["estimates"]:
        assert each["low"] < each["median"] < each["high"]
        speed = profile.throughput(each["job_type"], each["num_gpus"], "l40s")
        assert speed == pytest.approx(each["median"])
    text = gavel(*given).out
    assert "l40s+8: 2 estimated speeds, those in use and least certain first" in text
    assert "80 % interval" in text
    assert re.search(r"small +1 +l40s +[0-9.]+ +[0-9.]+ to [0-9.]+", text)


def test_csv_has_columns_for_all_types(gavel: Gavel) -> None:
    given = (*GIVEN, "--what-if", "h100+8", "--csv")
    rows = list(csv.DictReader(io.StringIO(gavel(*given).out)))
    assert [row["h100"] == "" for row in rows] == [True] * 5 + [False] * 5
    teams = list(csv.DictReader(io.StringIO(gavel(*given, "--by", "tenant").out)))
    assert [(row["what_if"], row["tenant"], row["h100_gpus"] == "") for row in teams] == [
        ("", "a", True),
        ("", "b", True),
        ("h100+8", "a", False),
        ("h100+8", "b", False),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("down:v-2", "'v-2' is not a node of this cluster; did you mean 'v-1' or 'v-0'?"),
        ("down:", "--what-if 'down:' is not of the form"),
        ("down:v-0+", "down:NODE+NODE for nodes that are down"),
        ("down:v-0+v-0", "names 'v-0' twice"),
        ("down:v-0,v-1", "'v-1' is also the name of a node; write down:NODE+v-1 if it is down, too"),
        ("b200+8", "'b200' is not an accelerator type of this cluster; known: v100, k80"),
        ("b200+8", "profile 'speeds' has v100, k80, h100; --estimate fills in speeds that were not measured"),
        ("h100-8", "removes 8 GPUs of h100, but there are only 0"),
        ("h100+2nodes", "there are no nodes of h100; add the GPUs per node, as in h100+2nodes/8"),
    ],
)
def test_mistakes(gavel: Gavel, change: str, message: str) -> None:
    result = gavel(*GIVEN, "--what-if", change)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_more_mistakes(gavel: Gavel) -> None:
    result = gavel(*GIVEN, "--estimate", "--what-if", "b2000+8")
    assert "an estimate needs its specifications (GAVEL_PY_ACCELERATORS) or a measurement on it" in result.err
    result = gavel(*GIVEN, "--price", "h200=3")
    assert "--price: the cluster has no 'h200', only v100, k80" in result.err


@pytest.mark.skipif(not OPERATOR.exists(), reason="the operator's files are not beside this checkout (../shared/cases/operator)")
def test_two_nodes_of_the_operator_fail(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What if two named H100 nodes fail tomorrow? One command, at most 80 columns; the objective by a plain linear program."""
    monkeypatch.chdir(OPERATOR)
    given = (
        "solve",
        "jobs.csv",
        "-c",
        "cluster.yaml",
        "--profile",
        "measured.csv+mpt-2023",
        "--estimate",
        "-p",
        "max_min_fairness",
    )
    text = gavel(*given, "--what-if", "down:h100-0+h100-3").out
    text = text[text.index("What if, under") : text.index("estimated speeds")]
    assert max(map(len, text.splitlines())) <= 80
    rows = {line.strip().split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["GPUs"] == ["GPUs", "152", "136"]
    assert rows["deadlines met"][-3:] == ["5", "of", "5"]
    for team in ("platform", "product", "research"):
        assert float(rows[f"{team} vs. its share"][-2]) < float(rows[f"{team} vs. its share"][-3])
    here = gp.Cluster.from_file("cluster.yaml").renamed({"H100-80GB": "h100", "A100-80GB": "a100-80gb", "L40S": "l40s"})
    rest = gp.Cluster([node for node in here.nodes if node.name not in ("h100-0", "h100-3")], here.accelerator_types)
    profile = gp.ThroughputStore().find("measured.csv+mpt-2023").with_estimates()
    problem = dataclasses.replace(
        gp.AllocationProblem.from_jobs(gp.JobSet.from_file("jobs.csv"), rest, profile), share_capacities=here.capacities
    )
    assert float(rows["objective"][-2]) == pytest.approx(level_of(problem), rel=1e-3)
