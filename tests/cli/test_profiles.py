"""`gavel profiles list` and `show`: what is measured, in which unit, from where, on 80 columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gavel_py as gp
from tests.support.commands import Gavel, runner


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gavel:
    monkeypatch.setenv("COLUMNS", "80")
    return runner(capsys, "profiles", "--store", str(tmp_path / "store.sqlite"))


def test_the_list_states_coverage_and_units(gavel: Gavel) -> None:
    lines = gavel("list").out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    shown = {line.split()[0]: line for line in lines[1:]}
    for name in gp.ThroughputProfile.builtin_names():
        profile = gp.ThroughputProfile.builtin(name)
        assert str(profile.coverage) in shown[name]
        assert (profile.units[0] if len(profile.units) == 1 else f"{len(profile.units)} units") in shown[name]


def test_the_list_as_json(gavel: Gavel) -> None:
    found = {each["name"]: each for each in json.loads(gavel("list", "--json").out)}
    nvidia = found["nvidia-2023"]
    assert (nvidia["measured"], nvidia["possible"], nvidia["units"]) == (251, 484, ["samples/s", "tokens/s"])


@pytest.mark.parametrize("name", ["mlperf-training", "mpt-2023", "elasticflow"])
def test_a_profile_fits_the_screen_and_names_its_sources(gavel: Gavel, name: str) -> None:
    out = gavel("show", name).out
    profile = gp.ThroughputProfile.builtin(name)
    assert all(len(line) <= 80 for line in out.splitlines())
    assert f"{profile.units[0]} of the whole gang" in out
    assert f"Measured: {profile.coverage} combinations" in out
    assert "Sources, with the number of figures:" in out
    assert "Licence: Apache-2.0" in out


def test_several_units_have_a_column(gavel: Gavel, tmp_path: Path) -> None:
    rows = "job_type,num_gpus,accelerator,steps_per_second,unit,condition\na,1,h100,2,,\nb,1,h100,3,requests/s,server\n"
    (tmp_path / "two.csv").write_text(rows)
    assert gavel("import", str(tmp_path / "two.csv")).code == 0
    table = [line.split() for line in gavel("show", "two").out.splitlines()]
    assert ["a", "steps/s", "1", "2"] in table
    assert ["b", "requests/s", "(server)", "1", "3"] in table
    assert "requests/s (server)" in gavel("show", "two", "--job-type", "b").out


def test_what_was_observed_on_running_jobs_is_shown(gavel: Gavel, tmp_path: Path) -> None:
    store = gp.ThroughputStore(tmp_path / "store.sqlite")
    for steps in (98.0, 102.0):
        store.observe("slurm", ("llama (batch size 8)", 4, "a100"), steps=steps, seconds=10.0, at=0.0)
    store.observe("slurm", ("bert", 1, "h100"), steps=100.0, seconds=10.0, at=0.0)
    out = gavel("show", "slurm").out
    assert [line.split() for line in out.splitlines()[2:4]] == [
        ["bert", "1", "h100", "10", "steps/s", "0.0%", "1"],
        ["llama", "(batch", "size", "8)", "4", "a100", "9.998", "steps/s", "2.0%", "2"],
    ]
    assert out.startswith("Observed on running jobs\n"), "there is no table of measurements, of which it has none"
    assert "llama" not in gavel("show", "slurm", "--job-type", "bert").out
    unknown = gavel("show", "slurm", "--job-type", "brt")
    assert (unknown.code, "'brt'" in unknown.err) == (2, True)
    assert "Observed" not in gavel("show", "gavel-osdi20").out


def test_show_and_export_take_files_and_several_profiles(gavel: Gavel, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("job_type,num_gpus,accelerator,steps_per_second\nown,1,h100,2\n")
    assert "own" in gavel("show", str(file)).out
    assert "MPT-7B" in gavel("show", f"{file}+mpt-2023").out
    exported = gavel("export", f"{file}+mpt-2023").out.splitlines()
    assert len(exported) == 2 + len(gp.ThroughputProfile.builtin("mpt-2023").rows)
    assert "is not" in gavel("show", "nosuch").err or "no " in gavel("show", "nosuch").err


def test_the_command_warns_of_figures_that_contradict_the_others(gavel: Gavel, tmp_path: Path) -> None:
    profile = gp.ThroughputProfile.builtin("mpt-2023")
    rows = [
        m if n != 50 else m.model_copy(update={"steps_per_second": 10 * m.steps_per_second})
        for n, m in enumerate(profile.measurements)
    ]
    gp.ThroughputProfile("wrong", rows).to_csv(tmp_path / "wrong.csv")
    done = gavel("import", str(tmp_path / "wrong.csv"))
    assert done.code == 0
    assert f"warning: {rows[50].entry} has" in done.err
    assert "more than 4 standard deviations away" in done.err
    assert gp.ThroughputStore(tmp_path / "store.sqlite").load("wrong").measurements == tuple(rows)


@pytest.mark.parametrize("speed", ["0", "3"])
def test_one_row_contradicts_nothing(gavel: Gavel, tmp_path: Path, speed: str) -> None:
    (tmp_path / "one.csv").write_text(f"job_type,num_gpus,accelerator,steps_per_second\na,1,h100,{speed}\n")
    done = gavel("import", str(tmp_path / "one.csv"))
    assert (done.code, done.err) == (0, "")


def test_models_are_found_by_words_best_first(gavel: Gavel) -> None:
    lines = gavel("find", "mpt", "7b").out.splitlines()
    assert lines[0].startswith("Best matches first: 10 of ")
    assert all(len(line) <= 80 for line in lines)
    found = json.loads(gavel("find", "mpt", "7B", "--json").out)
    whole = [each for each in found if each["scores"] == [1, 1]]
    profile = gp.ThroughputProfile.builtin("mpt-2023")
    assert {each["job_type"] for each in whole} == {name for name in profile.job_types if name.startswith("MPT-7B ")}
    for each in whole:
        rows = [row for row in profile.rows if row.job_type == each["job_type"]]
        assert each["gang_sizes"] == sorted({row.num_gpus for row in rows})
        assert set(each["accelerators"]) == {row.accelerator for row in rows}
    sums = [sum(each["scores"]) for each in found]
    assert sums == sorted(sums, reverse=True)
    assert {each["job_type"] for each in found if "70B" in each["job_type"]} == {
        each["job_type"] for each in json.loads(gavel("find", "mpt", "--json").out) if "70B" in each["job_type"]
    }, "7b is not the beginning of 70b"
    first = gavel("find", "llama", "7b").out.splitlines()[2]
    assert "LLaMA" in first or "Llama" in first, "no profile has both; the first word counts first"


def test_the_profiles_of_a_store_are_searched_too(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("job_type,num_gpus,accelerator,steps_per_second\nzebra finetune,4,h100,2\nother,1,h100,1\n")
    assert gavel("import", str(tmp_path / "own.csv")).code == 0
    (row,) = json.loads(gavel("find", "zeb", "h100", "--json").out)
    assert (row["job_type"], row["profile"], row["gang_sizes"], row["scores"]) == ("zebra finetune", "own", [4], [0.5, 1])
    nothing = gavel("find", "qwertz")
    assert nothing.code == 2
    assert "no profile has any of the words qwertz" in nothing.err


def test_an_accelerator_alone_finds_what_runs_on_it(gavel: Gavel) -> None:
    found = json.loads(gavel("find", "gh200", "--json").out)
    profile = gp.ThroughputProfile.builtin("trtllm")
    expected = {row.job_type for row in profile.rows if row.accelerator == "gh200"}
    assert {each["job_type"] for each in found if each["profile"] == "trtllm"} == expected
    assert all(any("gh200" in name for name in each["accelerators"]) for each in found)
