"""gavel serve plan: tables, JSON and CSV of a plan, plans over time, and messages for wrong use."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.shared_data import SHARED, needs_shared_data

SERVICES = "name,model,rate,tenant\nchat,m,4,t\ncode,m,2,\n"
RATES = "model,accelerator,num_gpus,requests_per_second,condition\nm,a,1,1,closed_loop\nm,b,2,3,closed_loop\n"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    """Runs `gavel serve plan` for two services on four GPUs."""
    enter_folder(tmp_path, monkeypatch)
    written("services.csv", SERVICES)
    written("rates.csv", RATES)
    return runner(capsys, "serve", "plan", "services.csv", "-c", "a:2,b:2", "--rates", "rates.csv")


def test_tables_have_the_plan_and_its_proof(plan: Gavel) -> None:
    done = plan()
    assert done.code == 0
    assert done.out.startswith("Least served fraction 0.75, proven optimal.")
    assert "  chat     2 b             1     2" in done.out
    price = "Dual price of GPUs of b: if replicas could be divided, one more would raise the least served fraction by at most"
    assert price in " ".join(done.out.split())


def test_json_and_csv_have_the_plan(plan: Gavel) -> None:
    document = json.loads(plan("--json").out)
    assert document["schema_version"] == 2
    assert document["served_fractions"] == {"chat": 0.75, "code": 1.0}
    lines = plan("--csv").out.splitlines()
    assert lines[0].startswith("service,model,accelerator,num_gpus")
    assert len(lines) == 1 + len(document["replicas"])


def test_promised_and_found_attainment_are_side_by_side(plan: Gavel) -> None:
    assert "service  requests/s  served  promised   found  least found" in plan().out
    assert "promised" not in plan("--seeds", "0").out
    replay = json.loads(plan("--json", "--seeds", "3").out)["replay"]
    assert replay["services"][0]["promised"] == 0.75
    assert replay["services"][0]["found"] == pytest.approx(0.75, abs=0.01)
    assert len(replay["requests"]) == 3


@pytest.mark.deep
def test_stage_times_get_rates_by_simulation(plan: Gavel) -> None:
    written("services.csv", "name,model,rate,slo_seconds,attainment\nchat,m,1,0.5,0.9\n")
    written("rates.csv", "model,accelerator,stage_seconds\nm,a,0.1\n")
    document = json.loads(plan("--json", "--seeds", "1").out)
    assert document["served_fractions"] == {"chat": 1.0}
    assert document["replay"]["found"] >= 0.9


def test_limits_and_prices_are_options(plan: Gavel) -> None:
    document = json.loads(plan("--objective", "min_cost", "--times", "0.5", "--price", "a=1", "--price", "b=1", "--json").out)
    assert (document["value"], document["status"]) == (3.0, "optimal")
    document = json.loads(plan("--quota", "t=1", "--objective", "weighted_rate", "--json").out)
    assert sum(row["num_gpus"] * row["replicas"] for row in document["replicas"] if row["service"] == "chat") <= 1


def test_training_jobs_get_the_rest(plan: Gavel) -> None:
    written("jobs.csv", "job_id,job_type\n0,j\n")
    written("speeds.csv", "job_type,num_gpus,accelerator,steps_per_second\nj,1,a,1\nj,1,b,2\n")
    options = ("--times", "0.1", "--training", "jobs.csv", "--profile", "speeds.csv", "-p", "max_total_throughput")
    done = plan(*options, "--json")
    assert json.loads(done.out)["training"]["policy"].startswith("max_total_throughput")
    assert json.loads(done.out)["replica_prices"]


def test_a_conflict_is_one_message(plan: Gavel) -> None:
    done = plan("--floor", "chat=1", "--quota", "t=1")
    assert done.code == 2
    assert "service 'chat': at least 100% of its demand" in done.err
    assert "the quota of tenant t: 1 GPUs" in done.err
    assert "would if any one of them were removed:" in done.err
    assert "Traceback" not in done.err


def test_gpus_without_rates_need_rates_and_only_training_jobs_have_estimates(plan: Gavel) -> None:
    lacking = plan("-c", "c:2")
    assert lacking.code == 2
    assert "add rates of replicas on them to a serving profile (--rates FILE; see docs/serving.md)" in lacking.err
    for hint in ("--throughputs", "gavel profiles missing", "--estimate"):
        assert hint not in lacking.err
    written("jobs.csv", "job_id,job_type\n0,j\n")
    written("speeds.csv", "job_type,num_gpus,accelerator,steps_per_second\nj,1,c,1\n")
    training = plan("--training", "jobs.csv", "--profile", "speeds.csv")
    assert training.code == 2
    for hint in ("--throughputs", "gavel profiles missing", "--estimate"):
        assert hint in training.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--plot", "a.svg"), "give --intervals N with it"),
        (("--floor", "chat=much"), "'much' is not a decimal number"),
        (("--price", "z=1"), "the cluster has no 'z'"),
        (("--seeds", "-1"), "-1 is not in the range x>=0"),
        (("--intervals", "2"), "field trace: is required with --intervals"),
        (("--intervals", "2", "--floor", "chat=1"), "are for a single plan"),
        (("--intervals", "2", "--objective", "min_cost"), "leave out --objective min_cost"),
        (("--profile", "speeds.csv"), "give --training JOBS with them"),
        (("-p", "fifo"), "give --training JOBS with them"),
        (("--set", "agnostic=true"), "give --training JOBS with them"),
        (("--constraints", "services.csv"), "give --training JOBS with them"),
        (("--training", "services.csv", "-p", "fifo", "-p", "isolated"), "the training jobs have one --policy"),
    ],
)
def test_wrong_use_is_explained(plan: Gavel, options: tuple[str, ...], expected: str) -> None:
    done = plan(*options)
    assert done.code == 2
    assert expected in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("chat,m,,2,1,0.05", "line 2 (service 'chat'), field slo_seconds: must be at least the fastest latency, 0.1 s, found 0.05"),
        ("chat,n,,2,1,", "line 2 (service 'chat'), field model: 'n' is missing; known: m, zero"),
        ("chat,m,,0,1,", "line 2 (service 'chat'), field rate: must be greater than 0, found '0'"),
        ("chat,m,,2,21,", "line 2 (service 'chat'), field cv: must be at most 20, found '21'"),
        ("chat,m,,2,20,1", "serves any requests within the SLO, with such bursts: all of its rates are 0"),
        ("chat,m,t.csv,,1,", "field trace: t.csv, line 4: arrives before the request above it; sort the file"),
        ("chat,m,u.csv,,1,", "field trace: u.csv: cannot be read: No such file"),
        ("chat,zero,,2,1,", "no replica of model 'zero' in the cluster serves any requests: all of its rates are 0"),
        ("chat,m,,2,1,\nchat,m,,2,1,", "line 3 (service 'chat'), field name: appears twice, first at services.csv, line 2"),
    ],
)
def test_services_that_cannot_be_planned_are_named(plan: Gavel, fields: str, expected: str) -> None:
    written("rates.csv", "model,accelerator,stage_seconds,requests_per_second,condition\nm,a,0.1,,\nzero,a,,0,closed_loop\n")
    written("services.csv", f"name,model,trace,rate,cv,slo_seconds\n{fields}\n")
    written("t.csv", "seconds\n0\n2\n1\n")
    done = plan()
    assert done.code == 2
    assert expected in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_service_with_a_single_request_in_its_trace_is_planned(plan: Gavel) -> None:
    written("t.csv", "seconds,service\n0,\n5,other\n")
    written("services.csv", "name,model,trace\nchat,m,t.csv\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = plan()
    assert (done.code, done.err) == (0, "")
    assert "  chat            0.2  100.0%" in done.out


@pytest.mark.parametrize("cv", [0, 20])
def test_arrivals_at_equal_gaps_and_in_extreme_bursts_are_planned(plan: Gavel, cv: int) -> None:
    written("rates.csv", "model,accelerator,requests_per_second,condition\nm,a,5,offline\n")
    written("services.csv", f"name,model,rate,cv,ttft_seconds,rate_factor\nchat,m,2,{cv},1,0.5\n")
    replay = json.loads(plan("--json").out)["replay"]
    assert replay["promised"] == 0.99
    assert (replay["found"] >= 0.99) == (cv == 0)
    assert ("Fewer requests of chat are in time than promised" in plan().out) == (cv > 0)


def test_intervals_of_traces_are_planned_and_drawn(plan: Gavel) -> None:
    arrivals = "".join(f"{second}\n" for second in range(100))
    written("chat.csv", "seconds\n" + arrivals)
    written("services.csv", "name,model,trace\nchat,m,chat.csv\n")
    document = json.loads(plan("--intervals", "4", "--load-seconds", "5", "--plot", "gpus.svg", "--json").out)
    assert len(document["intervals"]) == 4
    assert set(document["compared"]) == {"each interval alone", "one plan for all", "known future"}
    assert Path("gpus.svg").read_text().startswith("<?xml")
    assert document["replay"]["found"] == pytest.approx(document["replay"]["promised"], abs=0.05)
    assert "this plan" in plan("--intervals", "4", "--load-seconds", "5").out
    assert "1 trace of about 200 requests" in plan("--intervals", "4", "--load-seconds", "5", "--times", "2").out
    assert "--times multiplies rates; with a trace" in " ".join(plan("--times", "2").err.split())


@pytest.mark.guard
@needs_shared_data
def test_the_hour_of_the_tutorial_is_planned_in_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of docs/serving.md, step 5."""
    fields = "model: LLaMA v3.1 70B, ttft_seconds: 1, tpot_seconds: 0.1, rate_factor: 0.55"
    files = {"conversation": "AzureLLMInferenceTrace_conv.csv", "code": "AzureLLMInferenceTrace_code.csv"}
    lines = [f"  - {{name: {name}, trace: {SHARED / 'azure-llm-2023' / file}, {fields}}}" for name, file in files.items()]
    enter_folder(tmp_path, monkeypatch)
    written("azure.yaml", "\n".join(["services:", *lines]))
    done = runner(capsys, "serve", "plan", "azure.yaml")("-c", "h100:4,l40s:8", "--intervals", "6")
    rows = [line.split() for line in done.out.splitlines()]
    assert ["this", "plan", "98.69%", "4"] in rows
    assert ["known", "future", "98.93%", "5"] in rows
    assert "0.8643 found on 1 trace" in done.out


@pytest.mark.parametrize("name", ["H100", "H100-80GB", "NVIDIA H100 80GB HBM3"])
def test_any_name_of_an_accelerator_is_that_of_the_profile(name: str, plan: Gavel) -> None:
    written("rates.csv", "model,accelerator,num_gpus,requests_per_second,condition\nm,h100,1,3,closed_loop\n")
    done = plan("-c", f"{name}:4", "--objective", "min_cost", "--price", "h100-sxm=2", "--seeds", "0", "--json")
    assert done.err == "GPU names: 1 found in the profile under other names; gavel -v lists them\n"
    document = json.loads(done.out)
    assert (document["value"], document["gpus_used"], document["gpus_free"]) == (6.0, {"h100": 3}, {"h100": 1})


def test_training_jobs_share_the_gpus_under_names_of_their_own_profile(plan: Gavel) -> None:
    written("rates.csv", "model,accelerator,num_gpus,requests_per_second,condition\nm,h100,1,3,closed_loop\n")
    written("speeds.csv", "job_type,num_gpus,accelerator,steps_per_second\nt,1,NVIDIA H100 80GB HBM3,2\n")
    written("jobs.csv", "job_id,job_type,total_steps\nj,t,100\n")
    done = plan("-c", "H100:4,L40S:1", "--training", "jobs.csv", "--profile", "speeds.csv", "--seeds", "0", "--json")
    document = json.loads(done.out)
    assert (document["gpus_used"], document["gpus_free"]) == ({"h100": 3, "L40S": 0}, {"h100": 1, "L40S": 1})
    assert document["replica_prices"]
