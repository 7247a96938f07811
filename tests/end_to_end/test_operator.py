"""An operator's questions, each answered by one command on the operator's files, against values that the test computes itself."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.support.commands import Gavel, enter_folder, runner

FILES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "operator"
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not FILES.is_dir(), reason=f"the operator's files at {FILES} are absent"),
]

MIX = ["--profile", f"{FILES / 'measured.csv'}+mpt-2023", "--estimate"]
WHOLE = [str(FILES / "jobs.csv"), "-c", str(FILES / "cluster.yaml"), *MIX]
FAILING = [str(FILES / "jobs.csv"), "-c", "H100-80GB:8/8,A100-80GB:16/8,L40S:4/4", *MIX]
"""What is left of the cluster on a bad day: one node of H100, two of A100, one of L40S."""

FAIR = ["-p", f"hierarchical,tenants={FILES / 'tenants.yaml'}"]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    return runner(capsys)


def jobs() -> dict[str, dict[str, str]]:
    with open(FILES / "jobs.csv", encoding="utf-8", newline="") as file:
        return {row["job_id"]: row for row in csv.DictReader(file)}


def speeds_of(document: dict[str, Any]) -> dict[tuple[str, int, str], float]:
    """Return {(job type, GPUs, accelerator): steps/s}: the measured figures, and the estimates that the answer lists."""
    with open(FILES / "measured.csv", encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file), *document["estimates"]]
    return {(row["job_type"], int(row["num_gpus"]), row["accelerator"]): float(row["steps_per_second"]) for row in rows}


def late_hours(document: dict[str, Any]) -> dict[str, float]:
    """Return {job: hours by which it misses its deadline} of the jobs with a deadline, from times, speeds and steps."""
    speeds, found, file = speeds_of(document), {}, jobs()
    for answer in document["jobs"]:
        job = file[answer["job_id"]]
        if not job["deadline_seconds"]:
            continue
        own = {name: speeds.get((job["job_type"], int(job["num_gpus"]), name)) for name in answer["time_fractions"]}
        rate = sum(part * (own[name] or 0.0) for name, part in answer["time_fractions"].items())
        found[answer["job_id"]] = max(0.0, float(job["total_steps"]) / rate - float(job["deadline_seconds"])) / 3600
    return found


def can_meet_all(document: dict[str, Any], gpus: dict[str, int]) -> bool:
    """Return whether time fractions exist with which all deadlines are met, by a linear program over the jobs that have one."""
    due = [job for job in jobs().values() if job["deadline_seconds"]]
    speeds, rows, limits = speeds_of(document), [], []
    cells = [(n, name) for n in range(len(due)) for name in gpus]
    rate = [speeds.get((due[n]["job_type"], int(due[n]["num_gpus"]), name), 0.0) for n, name in cells]
    rate = [each if int(due[n]["num_gpus"]) <= gpus[name] else 0.0 for each, (n, name) in zip(rate, cells, strict=True)]
    for n, job in enumerate(due):
        rows.append([-each * (m == n) for each, (m, _) in zip(rate, cells, strict=True)])
        limits.append(-float(job["total_steps"]) / float(job["deadline_seconds"]))
        rows.append([float(m == n) for m, _ in cells])
        limits.append(1.0)
    for name, count in gpus.items():
        rows.append([int(due[n]["num_gpus"]) * float(other == name) for n, other in cells])
        limits.append(count)
    return bool(linprog(np.zeros(len(cells)), A_ub=rows, b_ub=limits, bounds=(0, None)).success)


def test_question_2_does_a_job_make_its_deadline_and_which_do_not(gavel: Gavel) -> None:
    for given in ([*WHOLE], [*WHOLE, *FAIR], [*FAILING, *FAIR], [*FAILING, "-p", "max_min_fairness"]):
        document = json.loads(gavel("solve", *given, "--json").out)
        late = late_hours(document)
        missed = sorted((job_id for job_id, hours in late.items() if hours > 1e-6), key=lambda job_id: -late[job_id])
        shown = {job["job_id"]: job["late"] for job in document["jobs"]}
        assert {job_id: (shown[job_id] or 0) / 3600 for job_id in late} == pytest.approx(late, rel=1e-5, abs=1e-6)
        assert document["deadlines"] == {"met": len(late) - len(missed), "missed": len(missed), "unknown": 0}
        named = ", ".join(f"{job_id} by {late[job_id]:.3g} h" for job_id in missed)
        rest = f"; late: {named}" if missed else ""
        assert f"Deadlines met at these speeds: {len(late) - len(missed)} of {len(late)}{rest}." in gavel("solve", *given).out


def test_question_2_explain_begins_with_the_answer(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *FAILING, *FAIR, "--json").out)
    late = late_hours(document)
    (job_id,) = (name for name, hours in late.items() if hours > 1e-6)
    assert can_meet_all(document, {"h100": 8, "a100-80gb": 16, "l40s": 4})
    text = gavel("explain", job_id, *FAILING, *FAIR).out
    all_met = f"with `deadline` as a constraint {len(late)} of {len(late)} are met"
    assert text.startswith(f"{job_id} misses its deadline by {late[job_id]:.3g} h at this speed; {all_met}.")
    (other, *_) = (name for name in late if name != job_id)
    assert gavel("explain", other, *FAILING, *FAIR).out.startswith(f"{other} meets its deadline at this speed; {all_met}.")


PRICES = {"h100": 2.9, "a100-80gb": 1.6, "l40s": 0.9}
GPUS = {"h100": 48, "a100-80gb": 64, "l40s": 40}


def gpus_of(document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return {job: {accelerator: GPUs on average}}, from the time fractions and the file of jobs."""
    file = jobs()
    return {
        answer["job_id"]: {name: int(file[answer["job_id"]]["num_gpus"]) * part for name, part in answer["time_fractions"].items()}
        for answer in document["jobs"]
    }


def of_teams(document: dict[str, Any], worth: dict[str, float]) -> dict[str, float]:
    """Return {team: Σ of the worth of the GPUs that its jobs have}."""
    file, found = jobs(), dict[str, float]()
    for job_id, gpus in gpus_of(document).items():
        team = file[job_id]["tenant"]
        found[team] = found.get(team, 0.0) + sum(worth[name] * count for name, count in gpus.items())
    return found


def test_question_1_who_gets_what_and_why(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *WHOLE, *FAIR, "--json").out)
    have = of_teams(document, dict.fromkeys(GPUS, 1.0))
    shares = {"research": 50, "product": 30, "platform": 20}
    named = ", ".join(f"{team} {have[team] / 152:.1%} ({shares[team]}.0%)" for team in shares)
    assert f"Tenants' GPUs (share): {named}" in gavel("solve", *WHOLE, *FAIR).out
    used = {name: sum(gpus[name] for gpus in gpus_of(document).values()) for name in GPUS}
    full = [f"{GPUS[name]} GPUs of type {name}" for name in GPUS if used[name] >= GPUS[name] * (1 - 1e-6)]
    assert full
    worst = min(document["jobs"], key=lambda job: job["vs_fair_share"])
    text = gavel("explain", worst["job_id"], *WHOLE, *FAIR).out
    assert f"All {' and '.join(full)} are in use" in text
    assert f"gets {100 * worst['vs_fair_share']:.3g} % of its fair share" in text


def test_question_3_what_it_costs_per_hour_per_team_and_until_done(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *WHOLE, *FAIR, "--json").out)
    costs, file, speeds = of_teams(document, PRICES), jobs(), speeds_of(document)
    assert {each["tenant"]: each["cost_per_hour"] for each in document["tenants"]} == pytest.approx(costs)
    until, ends = 0.0, 0
    for answer in document["jobs"]:
        job = file[answer["job_id"]]
        if job["total_steps"]:
            own = {name: speeds.get((job["job_type"], int(job["num_gpus"]), name)) for name in GPUS}
            rate = sum(part * (own[name] or 0.0) for name, part in answer["time_fractions"].items())
            price = sum(PRICES[name] * count for name, count in gpus_of(document)[answer["job_id"]].items())
            until, ends = until + price * float(job["total_steps"]) / rate / 3600, ends + 1
    said = (
        f"The GPUs in use cost {sum(costs.values()):,.2f} an hour; until the {ends} jobs with a known end are done: {until:,.2f}."
    )
    text = gavel("solve", *WHOLE, *FAIR, "--by", "tenant").out
    assert said in text
    for team, cost in costs.items():
        assert f" {cost:.2f} " in next(line for line in text.splitlines() if line.startswith(f"  {team}"))


def test_question_6_why_a_job_waits_and_until_when(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *WHOLE, *FAIR, "--json").out)
    waits = {answer["job_id"]: 1 - sum(answer["time_fractions"].values()) for answer in document["jobs"]}
    job_id = max((each for each in waits if jobs()[each]["total_steps"]), key=waits.__getitem__)
    answer = next(each for each in document["jobs"] if each["job_id"] == job_id)
    job, speeds = jobs()[job_id], speeds_of(document)
    rate = sum(
        part * speeds.get((job["job_type"], int(job["num_gpus"]), name), 0.0) for name, part in answer["time_fractions"].items()
    )
    text = gavel("explain", job_id, *WHOLE, *FAIR).out
    assert f"{waits[job_id]:.1%} waiting" in text
    assert f"At this speed it ends in {float(job['total_steps']) / rate / 3600:.3g} hours" in text
    holders = {each for each, gpus in gpus_of(document).items() if each != job_id and sum(gpus.values()) > 1}
    table = text.split("Jobs that hold GPUs that it could use")[1].splitlines()[2:5]
    assert {line.split()[0] for line in table} <= holders


def test_question_7_a_page_for_the_boss(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *WHOLE, *FAIR, "--json").out)
    given = (*WHOLE, *FAIR, "--services", str(FILES / "services.yaml"), "--what-if", "down:h100-0+h100-3", "--html", "page.html")
    gavel("solve", *given)
    page = Path("page.html").read_text(encoding="utf-8").replace("<wbr>", "")
    late = [hours for hours in late_hours(document).values() if hours > 1e-6]
    assert not late
    assert "all 5 deadlines are met" in page
    for part in ("research", "product", "platform", "chat", "assistant", "down:h100-0+h100-3", "Rounds", "<svg"):
        assert part in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/", "")


def test_question_8_speeds_of_what_was_never_measured(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *WHOLE, "--json").out)
    with open(FILES / "measured.csv", encoding="utf-8", newline="") as file:
        measured = {(row["job_type"], int(row["num_gpus"]), row["accelerator"]) for row in csv.DictReader(file)}
    needed = {(row["job_type"], int(row["num_gpus"]), name) for row in jobs().values() for name in GPUS}
    estimated = {(row["job_type"], row["num_gpus"], row["accelerator"]): row for row in document["estimates"]}
    assert needed <= measured | estimated.keys()
    assert not measured & estimated.keys()
    assert all(row["low"] < row["median"] < row["high"] for row in estimated.values())
