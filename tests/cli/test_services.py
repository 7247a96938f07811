"""Services beside training jobs on the command line: one answer, its rounds, simulations, other clusters, page and errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.shared_data import SHARED

FILES = {
    "jobs.csv": "job_id,tenant,job_type,num_gpus,total_steps\n"
    "a1,a,small,1,9000\na2,a,small,1,9000\nb1,b,wide,2,7000\nb2,b,small,1,500\n",
    "speeds.csv": "job_type,num_gpus,accelerator,steps_per_second\n"
    "small,1,v100,2\nsmall,1,k80,1\nsmall,1,h100,5\nwide,2,v100,3\nwide,2,k80,1\nwide,2,h100,6\n",
    "cluster.yaml": "accelerator_types: {v100: {price_per_hour: 3}, k80: {price_per_hour: 1}}\n"
    "nodes:\n  - {name: v, count: 2, accelerator: v100, num_gpus: 2}\n  - {name: k, accelerator: k80, num_gpus: 2}\n",
    "services.yaml": "services:\n  - {name: chat, model: m, rate: 3, tenant: a}\n",
    "rates.csv": "model,accelerator,num_gpus,requests_per_second,condition\nm,v100,1,3,offline\nm,k80,1,1.5,offline\n",
}
GIVEN = ("jobs.csv", "-c", "cluster.yaml", "--profile", "speeds.csv", "--services", "services.yaml", "--rates", "rates.csv")
OPERATOR = SHARED.parent / "cases" / "operator"


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """A command line among these files, on a terminal of 80 columns."""
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    for name, content in FILES.items():
        written(name, content)
    return runner(capsys)


def best_rest(policy: str) -> tuple[dict[str, int], float]:
    """The better of the two ways to serve 3 requests/s, one V100 or two K80, and the objective of the training jobs beside it."""
    jobs, speeds = gp.JobSet.from_file("jobs.csv"), gp.ThroughputProfile.from_file("speeds.csv")
    whole = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_file("cluster.yaml"), speeds)
    found = []
    for used in ({"v100": 1, "k80": 0}, {"v100": 0, "k80": 2}):
        left = [count - used[name] for name, count in zip(whole.accelerator_types, whole.capacities.tolist(), strict=True)]
        found.append((used, gp.solve(whole.with_capacities(left), policy).objective_value or 0.0))
    return max(found, key=lambda each: each[1])


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput"])
def test_one_answer_has_services_teams_and_training(gavel: Gavel, policy: str) -> None:
    used, value = best_rest(policy)
    document = json.loads(gavel("solve", *GIVEN, "-p", policy, "--json").out)
    services = document["services"]
    assert services["gpus_used"] == used
    assert services["value"] == pytest.approx(value)
    assert document["objective"]["value"] == pytest.approx(value)
    assert services["served_fractions"] == {"chat": 1.0}
    text = gavel("solve", *GIVEN, "-p", policy).out
    assert "all of their demand is served; no other replicas leave the training jobs more, proven" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    (name, count), *_ = ((name, count) for name, count in used.items() if count)
    row = next(line.split() for line in text.splitlines() if line.startswith("  chat"))
    assert row[:5] == ["chat", "1", name, str(count), "100.0%"]
    teams = {line.split()[0]: line.split()[2] for line in text.splitlines() if line.startswith(("  a  ", "  b  "))}
    assert teams == {"a": str(count), "b": "0"}


def test_tenants_above_others_have_their_services(gavel: Gavel) -> None:
    written("tenants.yaml", "tenants: {org: {tenants: {dept: {tenants: {a: }}}}, b: }\n")
    text = gavel("solve", *GIVEN, "-p", "hierarchical,tenants=tenants.yaml").out.split("GPUs of tenants")[1]
    rows = {line.split()[0]: line.split()[2] for line in text.splitlines() if line.startswith("  ") and "%" in line}
    assert rows["a"] == rows["dept"] == rows["org"] != "0"
    assert rows["b"] == "0"


def test_no_team_loses_where_that_is_said(gavel: Gavel) -> None:
    written("jobs.csv", "job_id,tenant,job_type,num_gpus,total_steps\na1,a,small,1,9000\n")
    text = " ".join(gavel("solve", *GIVEN).out.split())
    assert "No tenant's training jobs would gain from one replica fewer." in text


def test_rounds_never_place_a_job_on_the_gpus_of_replicas(gavel: Gavel) -> None:
    document = json.loads(gavel("rounds", *GIVEN, "-n", "5", "--json").out)
    taken: dict[str, int] = {}
    for place in document["services"]["places"]:
        taken[place["node"]] = taken.get(place["node"], 0) + place["num_gpus"]
    for each in document["rounds"]:
        held = [gpu[0] for job in each["assignments"].values() for gpu in job["gpus"]]
        assert held
        assert all(held.count(node) <= 2 - count for node, count in taken.items())
    assert "Replicas of services stay on" in gavel("rounds", *GIVEN, "-n", "2").out
    assert "Replicas of services stay on" in gavel("rounds", *GIVEN, "--until-done").out
    assert "services" in json.loads(gavel("rounds", *GIVEN, "--until-done", "--json").out)


def test_a_simulation_keeps_the_replicas(gavel: Gavel) -> None:
    given = ("simulate", *GIVEN, "-p", "fifo", "-p", "max_total_throughput")
    document = json.loads(gavel(*given, "--json").out)
    assert document["services"]["gpus_used"] == best_rest("max_total_throughput")[0]
    less = json.loads(gavel(*given[:6], "-p", "fifo", "--json").out)
    makespans = [each["policies"][0]["summary"]["makespan_seconds"] for each in (document, less)]
    assert makespans[0] >= makespans[1]
    assert "Replicas of services stay on" in gavel(*given).out
    assert "Replicas of services stay on" in gavel("simulate", *GIVEN, "-p", "max_min_fairness,agnostic=true").out


def test_a_simulation_beside_services_continues(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("simulate", *GIVEN, "-p", "max_min_fairness", "--floor", "chat=1", "--json")
    whole = json.loads(gavel(*given).out)
    step, calls = gp.Simulation.step, iter(range(1_000_000))

    def stepping(self: gp.Simulation, until_seconds: float = float("inf")) -> bool:
        more = step(self, until_seconds)
        if next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return more

    with monkeypatch.context() as patched:
        patched.setattr(gp.Simulation, "step", stepping)
        assert gavel(*given, "--save-state", "state.json").code == 130
    again = json.loads(gavel(*given, "--continue", "state.json").out)
    ends = [each["policies"][0]["summary"]["makespan_seconds"] for each in (whole, again)]
    assert ends[0] == ends[1]
    assert again["services"] == whole["services"]
    written("other.csv", FILES["rates.csv"])
    for name, other in {"rates": ("--rates", "other.csv"), "above_floors": ("--above-floors",)}.items():
        done = gavel(*given, "--continue", "state.json", *other)
        assert done.code
        assert [fault["field"] for fault in json.loads(done.out)["faults"]] == [name]


def test_rounding_is_no_work_of_which_parts_are_gained(gavel: Gavel) -> None:
    """Team a holds more than its share, so that the last GPU is for team b, but for 1e-10 of it."""
    written("services.yaml", FILES["services.yaml"].replace("rate: 3", "rate: 13.5"))
    document = json.loads(gavel("solve", *GIVEN, "-p", "hierarchical", "--json").out)
    gains = [row["work_gained"]["a"] for row in document["services"]["costs"]]
    assert gains
    assert all(gain is None or gain < 10 for gain in gains)


def test_other_clusters_have_their_own_replicas(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *GIVEN, "--what-if", "down:v-0+v-1", "--json").out)
    (other,) = document["what_if"]
    assert other["gpus"] == {"v100": 0, "k80": 0}  # both K80 serve requests
    assert set(other["allocation"]["excluded"]) == {"a1", "a2", "b1", "b2"}


def test_the_page_has_the_services(gavel: Gavel) -> None:
    gavel("solve", *GIVEN, "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "Services" in page
    assert "Replicas, which training never interrupts" in page
    assert "Services: all of their demand is served; no other replicas leave the training jobs more, proven." in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-p", "fifo"), "policy fifo: cannot decide beside services"),
        (("--floor", "chat=x"), "--floor chat=x: 'x' is not a decimal number"),
        (("--floor", "chta=1"), "chta"),
        (("--above-floors",), "--above-floors is for services with a --floor below 1"),
        (("--services", "jobs.csv"), "jobs.csv"),
        (("-c", "k80:1"), "service 'chat': at least 100% of its demand"),
    ],
)
def test_what_is_wrong_is_named(gavel: Gavel, options: Any, message: str) -> None:
    done = gavel("solve", *GIVEN, *options)
    assert done.code
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workflows",), "--workflows makes one schedule up to the end of all jobs, without a policy; leave out --services"),
        (("--write-program", "p.lp"), "and --services takes some of them; leave out one of them"),
        (("--merge-tolerance", "0.1"), "and --services compares them; leave out one of them"),
        (("--what-if", "V100=0"), "replicas of --services are on nodes; change these, as in V100=0nodes"),
    ],
)
def test_what_services_cannot_be_with_is_refused(gavel: Gavel, options: Any, message: str) -> None:
    done = gavel("solve", *GIVEN, *options)
    assert done.code == 2
    assert message in " ".join(done.err.split())


def test_rates_without_services_are_refused(gavel: Gavel) -> None:
    assert "--rates is about services; give --services FILE with it" in gavel("rounds", *GIVEN[:5], "--rates", "rates.csv").err


def test_no_replicas_are_on_nodes_that_are_down(gavel: Gavel) -> None:
    document = json.loads(gavel("rounds", *GIVEN, "--down", "v-0", "-n", "3", "--json").out)
    assert {place["node"] for place in document["services"]["places"]} <= {"v-1", "k"}
    used = {gpu[0] for each in document["rounds"] for job in each["assignments"].values() for gpu in job["gpus"]}
    assert "v-0" not in used


def test_each_policy_has_its_rounds_beside_its_own_replicas(gavel: Gavel) -> None:
    text = gavel("solve", *GIVEN, "-p", "max_min_fairness", "-p", "min_makespan", "--rounds", "1").out
    documents = json.loads(gavel("solve", *GIVEN, "-p", "max_min_fairness", "-p", "min_makespan", "--json").out)
    gpus = [6 - sum(each["services"]["gpus_used"].values()) for each in documents]
    assert gpus[0] != gpus[1]
    assert all(
        f" of {count} GPUs" in text.partition(f"Under {each['policy']}")[2] for each, count in zip(documents, gpus, strict=True)
    )


def test_types_without_replicas_are_not_called_ignored(gavel: Gavel) -> None:
    done = gavel("solve", "jobs.csv", "-c", "v100:4/2,k80:2/2,h100:2/2", *GIVEN[3:])
    assert not done.code
    assert "ignored" not in done.err


def test_a_floor_without_services_is_refused(gavel: Gavel) -> None:
    done = gavel("solve", *GIVEN[:5], "--floor", "chat=1")
    assert "--floor is about services; give --services FILE with it" in done.err


def test_jobs_that_look_like_services_are_warned_of(gavel: Gavel) -> None:
    written("jobs.csv", FILES["jobs.csv"] + "api-serving,a,small,1,\nobserver,a,small,1,\n")
    done = gavel("solve", *GIVEN)
    assert "warning: api-serving: without an end, and named like a service" in done.err
    assert "observer" not in done.err


@pytest.mark.skipif(not OPERATOR.exists(), reason="the operator's files are not beside this checkout (../shared/cases/operator)")
def test_services_of_the_operator(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OPERATOR)
    profile = ("--profile", "measured.csv+mpt-2023", "--estimate", "--services", "services.yaml")
    document = json.loads(gavel("solve", "jobs.csv", "-c", "cluster.yaml", *profile, "-p", "max_total_throughput", "--json").out)
    services = document["services"]
    assert services["status"] == "optimal"
    assert all(part == pytest.approx(1) for part in services["served_fractions"].values())
    routed = dict.fromkeys(services["served_fractions"], 0.0)
    for row in services["routes"]:
        routed[row["service"]] += row["requests_per_second"]
    assert routed == pytest.approx({"chat": 60, "assistant": 6})
    on_nodes: dict[str, int] = {}
    for place in services["places"]:
        on_nodes[place["node"]] = on_nodes.get(place["node"], 0) + place["num_gpus"]
    assert all(count <= (4 if name.startswith("l40s") else 8) for name, count in on_nodes.items())
    assert sum(on_nodes.values()) == sum(services["gpus_used"].values()) > 0
