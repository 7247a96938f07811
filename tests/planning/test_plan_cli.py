"""gavel plan: the first screen, JSON, and messages for wrong use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import Gavel, enter_folder, runner, written
from tests.support.shared_data import SHARED, needs_shared_data


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gavel:
    """Runs `gavel plan` beside a catalog and 240 hours of demand."""
    enter_folder(tmp_path, monkeypatch)
    written("gpus.csv", "accelerator,gpus_per_node,rent_usd_per_gpu_hour,max_nodes\nh100,8,2.9,20\nl40s,4,0.9,\n")
    gpus = np.random.default_rng(0).integers(0, 60, (240, 2))
    written("hourly.csv", "hour,h100,l40s\n" + "".join(f"{hour},{a},{b}\n" for hour, (a, b) in enumerate(gpus.tolist())))
    return runner(capsys, "plan", "--catalog", "gpus.csv")


def test_the_first_screen_has_fleet_cost_service_and_what_would_change_it(plan: Gavel) -> None:
    done = plan("--demand", "hourly.csv", "--have", "h100:80,l40s:20/4")
    assert done.code == 0
    assert len(done.out.splitlines()) <= 30
    assert done.out.startswith("Rent ")
    assert "retire 2 of h100" in done.out.splitlines()[0]
    assert "Asked for joint=95%: all demand is served in " in done.out
    assert "Planned on the hours before, 3 blocks of 40 hours got " in done.out
    assert "In other words: each=95% costs " in done.out


def test_json_has_the_plan(plan: Gavel) -> None:
    document = json.loads(plan("--demand", "hourly.csv", "--have", "h100:80", "--json").out)
    h100, l40s = document["types"]
    assert document["schema_version"] == 2
    assert h100["keep"] + h100["retire"] == 10
    assert document["usd_per_hour"] == pytest.approx((h100["keep"] + h100["buy"]) * 23.2 + l40s["buy"] * 3.6)
    assert document["served"]["joint"] >= 0.95 > l40s["served_with_one_fewer"]
    assert set(document["in_other_words"]) == {"each=95%", "work=95%", "joint=90%", "joint=97.5%"}


def test_a_budget_per_hour_and_more_nodes_of_a_type(plan: Gavel) -> None:
    document = json.loads(plan("--demand", "hourly.csv", "--budget", "150/h", "--max", "h100=4", "--json").out)
    assert document["usd_per_hour"] <= 150
    assert document["types"][0]["buy"] <= 4
    out = plan("--demand", "hourly.csv", "--budget", "150/h").out
    assert "Within the budget: all demand is served in " in out
    assert "Asked for" not in out


def test_an_output_that_cannot_be_written_is_refused_at_once(plan: Gavel) -> None:
    done = plan("--demand", "nowhere.csv", "--out", "none/plan.txt")
    assert (done.code, done.err) == (2, "Error: none/plan.txt: cannot be written: there is no folder 'none'\n")


def test_all_faults_of_all_files_come_at_once(plan: Gavel) -> None:
    written("gpus.csv", "accelerator,gpus_per_node,price\nh100,8,4\n")
    written("hourly.csv", "hour,h100\n0,-1\n")
    done = plan("--demand", "hourly.csv", "--serve", "joint=95")
    assert done.code == 2
    assert "gpus.csv, line 1, field price: must state its unit" in done.err
    assert "hourly.csv, line 2, field h100: must be a number of at least 0, found '-1'" in done.err
    assert "write 95%" in done.err


@pytest.mark.parametrize(
    "wrong", [["--budget", "lots"], ["--budget", "7,5/h"], ["--max", "h100=-1"], ["--max", "b200=1"], ["--have", "b200:8"]]
)
def test_options_of_another_form_are_refused(plan: Gavel, wrong: list[str]) -> None:
    done = plan("--demand", "hourly.csv", *wrong)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_options_for_the_other_kind_of_input_are_refused(plan: Gavel) -> None:
    done = plan("--demand", "hourly.csv", "--resamples", "2")
    assert (done.code, "--resamples has no effect with --demand" in done.err) == (2, True)
    written("jobs.csv", "job_id,num_gpus\n")
    done = plan("jobs.csv", "--time-limit", "5")
    assert (done.code, "--time-limit has no effect with JOBS" in done.err) == (2, True)


def test_jobs_that_do_not_end_are_refused(plan: Gavel) -> None:
    written("gpus.csv", "accelerator,gpus_per_node,rent_usd_per_gpu_hour\nv100,4,1.9\n")
    written("jobs.csv", "job_id,num_gpus\n")
    done = plan("jobs.csv")
    assert (done.code, "has no jobs that end" in done.err) == (2, True)


@pytest.mark.deep
@needs_shared_data
def test_the_question_of_an_operator_has_the_answer_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter_folder(tmp_path, monkeypatch)
    case, page = SHARED.parent / "cases" / "operator", Path(__file__).parents[2] / "docs" / "plan.md"
    files = {"jobs.csv": "", "cluster.yaml": "-c", "gpus.csv": "--catalog"}
    arguments = [text for name, option in files.items() for text in (option, str(case / name)) if text]
    profile = f"{case / 'measured.csv'}+mpt-2023"
    done = runner(capsys, "plan")(*arguments, "--budget", "250000", "--profile", profile, "--estimate", "--resamples", "4")
    answer = re.search("```text\n(Buy .*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert answer
    assert done.out.startswith(answer[1])


def test_nothing_is_bought_without_money_or_demand(plan: Gavel) -> None:
    assert plan("--demand", "hourly.csv", "--budget", "0/h").out.startswith("Buy nothing: 0.00 $/h")
    written("hourly.csv", "hour,h100\n" + "".join(f"{hour},0\n" for hour in range(40)))
    assert plan("--demand", "hourly.csv").out.startswith("Buy nothing: 0.00 $/h")
    assert plan("--demand", "hourly.csv", "--have", "h100:8").out.startswith("Retire 1 of h100 (nodes): 0.00 $/h")
