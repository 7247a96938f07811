"""gavel profiles missing, check and plan: the way from a cluster without figures to estimates of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, enter_folder, runner, written

JOBS = """job_id,job_type,num_gpus,total_steps,allowed_accelerators
a,ResNet-50 (batch size 64),1,1e5,
b,ResNet-50 (batch size 64),2,1e5,
c,LM (batch size 20),1,1e6,
d,LM (batch size 20),1,1e6,
e,Mistral (batch size 4),1,1e4,
f,Mistral (batch size 4),8,1e4,
g,LM (batch size 20),1,1e6,v100
"""


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    written("jobs.csv", JOBS)
    return runner(capsys)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_missing_rows_are_those_that_jobs_look_up(gavel: Gavel) -> None:
    """Gangs of 8 fit no node, and g may not use the L40S; the most needed rows come first."""
    found = rows(gavel("profiles", "missing", "jobs.csv", "-c", "v100:4/4,L40S:4/4").out)
    listed = [(row["job_type"], int(row["num_gpus"]), row["accelerator"], row["jobs"]) for row in found]
    assert listed[0] == ("LM (batch size 20)", 1, "L40S", "2")
    assert set(listed[1:]) == {
        ("ResNet-50 (batch size 64)", 1, "L40S", "1"),
        ("ResNet-50 (batch size 64)", 2, "L40S", "1"),
        ("Mistral (batch size 4)", 1, "L40S", "1"),
        ("Mistral (batch size 4)", 1, "v100", "1"),
    }
    assert {row["steps_per_second"] for row in found} == {""}


def test_missing_rows_of_elastic_jobs_are_those_of_numbers_of_gpus_that_fit(gavel: Gavel) -> None:
    written("elastic.csv", "job_id,job_type,gpu_counts\na,ResNet-50 (batch size 64),1|4|8\n")
    found = rows(gavel("profiles", "missing", "elastic.csv", "-c", "l40s:4/4,h100:8/8").out)
    needed = {("1", "l40s"), ("4", "l40s"), ("1", "h100"), ("4", "h100"), ("8", "h100")}
    assert {(row["num_gpus"], row["accelerator"]) for row in found} == needed
    assert {row["jobs"] for row in found} == {"1"}


def test_nothing_missing(gavel: Gavel) -> None:
    written("known.csv", "job_id,job_type,num_gpus\na,A3C,1\n")
    found = gavel("profiles", "missing", "known.csv", "-c", "v100:4,k80:4")
    assert rows(found.out) == []
    assert found.err == "Nothing is missing: all that these jobs need was measured.\n"


@pytest.mark.deep
def test_from_missing_rows_to_an_answer_with_estimates(gavel: Gavel) -> None:
    """A form with the measured rows is a profile once some of its rows are filled in; the others are estimated."""
    place = ("jobs.csv", "-c", "v100:8/8,l40s:8/8")
    form = gavel("profiles", "missing", *place, "--with-measured").out
    known = gp.ThroughputProfile.builtin("gavel-osdi20")
    given = {("Mistral (batch size 4)", "1", "v100"): "2.5", ("LM (batch size 20)", "1", "l40s"): "90"}
    table = rows(form)
    assert len(table) == len(known.rows) + 7
    for row in table:
        key = row["job_type"], row["num_gpus"], row["accelerator"]
        if not row["steps_per_second"] and key in given:
            row["steps_per_second"] = given[key]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(table[0]))
    writer.writeheader()
    writer.writerows(table)
    written("mine.csv", buffer.getvalue())
    mine = gp.ThroughputProfile.from_csv("mine.csv")
    assert len(mine) == len(known.rows) + len(given)
    assert mine.throughput("LM (batch size 20)", 1, "l40s") == 90
    document = json.loads(gavel("solve", *place, "--profile", "mine.csv", "--estimate", "--json").out)
    assert len(document["estimates"]) == 5
    assert {each["accelerator"] for each in document["estimates"]} == {"v100", "l40s"}


def test_a_form_keeps_unit_and_family_of_its_job_types(gavel: Gavel) -> None:
    measured = "job_type,num_gpus,accelerator,placement,steps_per_second,unit,family\nx,1,v100,consolidated,5,tokens/s,X\n"
    written("units.csv", measured)
    written("x.csv", "job_id,job_type,num_gpus\na,x,1\n")
    (row,) = rows(gavel("profiles", "missing", "x.csv", "-c", "v100:1,h100:1", "--profile", "units.csv").out)
    assert (row["accelerator"], row["unit"], row["family"]) == ("h100", "tokens/s", "X")


def test_rows_without_a_figure_are_an_error_in_other_files(gavel: Gavel) -> None:
    written("bare.csv", "job_type,num_gpus,accelerator,steps_per_second\na,1,v100,\n")
    assert "steps_per_second" in gavel("profiles", "import", "bare.csv").err


def test_check_shows_errors_and_coverage_by_method(gavel: Gavel) -> None:
    text = gavel("profiles", "check", "--seeds", "2", "--method", "additive", "--method", "specs").out
    lines = text.splitlines()
    assert lines[0] == "gavel-osdi20: 50 % of the figures hidden and estimated, 2 random choices"
    assert [line.split()[0] for line in lines if line.startswith(("  a", "  s"))] == ["additive", "specs"]
    assert max(map(len, lines)) <= 80
    document = json.loads(gavel("profiles", "check", "--seeds", "2", "--method", "specs", "--json").out)
    (expected,) = gp.check_estimates(gp.ThroughputProfile.builtin("gavel-osdi20"), ["specs"], seeds=2)
    assert document["methods"] == [expected._asdict()]
    assert document["profile"] == "gavel-osdi20"


@pytest.mark.deep
def test_check_names_a_misplaced_decimal_point(gavel: Gavel) -> None:
    builtin = gp.ThroughputProfile.builtin("gavel-osdi20")
    alone = [m for m in builtin.measurements if m.partner_job_type is None and m.placement == "consolidated"]
    wrong = next(m for m in alone if m.job_type == "ResNet-50 (batch size 64)" and m.accelerator == "p100" and m.num_gpus == 1)
    changed = [m if m is not wrong else m.model_copy(update={"steps_per_second": 10 * m.steps_per_second}) for m in alone]
    gp.ThroughputProfile("wrong", changed).to_csv("wrong.csv")
    text = gavel("profiles", "check", "wrong.csv", "--seeds", "1", "--method", "additive").out
    (line,) = [line for line in text.splitlines() if line.startswith("ResNet-50 (batch size 64) on p100: ")]
    assert line.count(" steps/s") == 2
    assert "No figure contradicts" in gavel("profiles", "check", "--seeds", "1", "--method", "additive").out


def test_check_says_that_few_estimates_say_little(gavel: Gavel) -> None:
    written("few.csv", "job_type,num_gpus,accelerator,steps_per_second\na,1,v100,3\na,1,k80,1\nb,1,v100,5\nb,1,k80,2\n")
    assert "Fewer than 30 estimates" in gavel("profiles", "check", "few.csv", "--seeds", "2", "--method", "additive").out
    assert "Fewer than" not in gavel("profiles", "check", "--seeds", "1", "--method", "additive").out


def test_a_profile_of_one_row_cannot_be_checked(gavel: Gavel) -> None:
    written("one.csv", "job_type,num_gpus,accelerator,steps_per_second\na,1,v100,3\n")
    found = gavel("profiles", "check", "one.csv")
    assert found.code == 2
    assert "has too few measurements to hide some" in found.err


def test_plan_lists_what_teaches_most(gavel: Gavel) -> None:
    options = ("--jobs", "jobs.csv", "-c", "v100:4/4,l40s:4/4", "--budget", "3")
    text = gavel("profiles", "plan", *options).out
    assert text.startswith("gavel-osdi20: what to measure next, the most useful first\n")
    assert max(map(len, text.splitlines())) <= 80
    planned = json.loads(gavel("profiles", "plan", *options, "--json").out)["measurements"]
    assert len(planned) == 3
    assert "error before" in text
    assert [each["remaining"] for each in planned] == sorted((each["remaining"] for each in planned), reverse=True)
    assert gavel("profiles", "plan", "--jobs", "jobs.csv").code == 2


def test_a_header_alone_is_neither_imported_nor_planned(gavel: Gavel) -> None:
    written("bare.csv", "job_type,num_gpus,accelerator,steps_per_second,jobs\n")
    imported, planned = gavel("profiles", "import", "bare.csv"), gavel("profiles", "plan", "bare.csv")
    assert (imported.code, planned.code) == (2, 2)
    assert "bare.csv has no measurement; a row needs job_type, num_gpus, accelerator and steps_per_second" in imported.err
    assert "'bare': has no measurement above 0 of a gang alone; give jobs and a cluster" in planned.err
    assert "bare" not in gavel("profiles", "list").out


def test_plan_of_a_complete_profile(gavel: Gavel) -> None:
    written("all.csv", "job_type,num_gpus,accelerator,steps_per_second\na,1,v100,3\na,1,k80,1\n")
    assert gavel("profiles", "plan", "all.csv").out == "Nothing is missing: all was measured.\n"
