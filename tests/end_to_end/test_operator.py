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
