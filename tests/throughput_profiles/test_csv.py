"""CSV files of measurements: defaults, faults with their lines, and round trips."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp

HEADER = "job_type,num_gpus,accelerator,placement,steps_per_second,partner_job_type,partner_steps_per_second,source\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_only_four_columns_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path, "job_type,num_gpus,accelerator,steps_per_second\nresnet,2,v100,7.5\n")
    profile = gp.ThroughputProfile.from_csv(path)
    assert profile.name == "mine"
    assert profile.throughput("resnet", 2, "v100", "consolidated") == 7.5


def test_empty_cells_mean_the_default(tmp_path: Path) -> None:
    profile = gp.ThroughputProfile.from_csv(write(tmp_path, HEADER + "resnet,2,v100,,7.5,,,\n"), name="other")
    assert profile.name == "other"
    assert profile.measurements == (gp.Measurement(job_type="resnet", num_gpus=2, accelerator="v100", steps_per_second=7.5),)


def test_a_pair(tmp_path: Path) -> None:
    profile = gp.ThroughputProfile.from_csv(write(tmp_path, HEADER + "resnet,1,v100,,3,bert,1.5,measured\n"))
    assert profile.pair("bert", "resnet", 1, "v100") == (1.5, 3.0)
    assert profile.rows[0].source == "measured"


def test_the_column_of_gpu_memory_is_written_only_if_known(tmp_path: Path) -> None:
    text = HEADER[:-1] + ",gpu_memory_gb\nresnet,2,v100,consolidated,3.0,,,run 1,10.5\nbert,1,v100,consolidated,1.0,,,,\n"
    profile = gp.ThroughputProfile.from_csv(write(tmp_path, text))
    assert [row.gpu_memory_gb for row in profile.rows] == [10.5, None]
    target = io.StringIO()
    profile.to_csv(target)
    assert target.getvalue() == text


def test_gpu_memory_must_be_positive_and_not_of_a_pair(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER[:-1] + ",gpu_memory_gb\na,1,v100,,3,,,,0\na,2,v100,,3,b,1,,4\n")
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_csv(path)
    first, second = map(str, caught.value.faults)
    assert first.startswith(f"{path}, line 2")
    assert first.endswith("field gpu_memory_gb: must be greater than 0, found '0'")
    assert second.startswith(f"{path}, line 3")
    assert "give it where the gang runs alone, not for a pair" in second


FAULTS = {
    "an entry twice in another case": ("a,1,V100,,1,,,\na,1,v100,,1,,,\n", 3, "line 2 on V100: they differ only in case"),
    "an entry twice by an alias": (
        "a,1,h100,,1,,,\na,1,NVIDIA H100 80GB HBM3,,2,,,\n",
        3,
        "line 2 on h100: they name the same accelerator",
    ),
    "an entry twice": ("a,1,v100,,1,,,\na,1,v100,consolidated,1,,,\n", 3, "'a' on 1 x v100 (consolidated) appears twice, first at"),
    "a contradicting pair": ("a,1,v100,,1,b,2,\nb,1,v100,,3,a,1,\n", 3, "contradicts the same pair given in the other order at"),
    "no job type": (",1,v100,,1,,,\n", 2, "field job_type: is required"),
    "no speed": ("a,1,v100,,,,,\n", 2, "field steps_per_second: is required"),
    "no GPUs": ("a,0,v100,,1,,,\n", 2, "field num_gpus: must be at least 0.001 of a GPU, found '0'"),
    "GPU and a half": (
        "a,1.5,v100,,1,,,\n",
        2,
        "field num_gpus: must be a whole number of GPUs, or a fraction of one, found '1.5'",
    ),
    "a pair on half a GPU": ("a,0.5,v100,,1,b,1,\n", 2, "a pair shares whole GPUs"),
    "another placement": ("a,1,v100,near,1,,,\n", 2, "field placement: must be one of 'consolidated' or 'spread', found 'near'"),
    "a negative speed": ("a,1,v100,,-1,,,\n", 2, "field steps_per_second: must be at least 0, found '-1'"),
    "no number": ("a,1,v100,,fast,,,\n", 2, "field steps_per_second: must be a number, found 'fast'"),
    "not a number": ("a,1,v100,,nan,,,\n", 2, "field steps_per_second: must be a finite number, found 'nan'"),
    "infinite": ("a,1,v100,,inf,,,\n", 2, "field steps_per_second: must be a finite number, found 'inf'"),
    "a partner without speed": ("a,1,v100,,1,b,,\n", 2, "must be given together"),
    "a speed without partner": ("a,1,v100,,1,,1,\n", 2, "must be given together"),
    "two speeds with itself": ("a,1,v100,,1,a,2,\n", 2, "must have the same steps_per_second on both sides"),
    "too few cells": ("a,1,v100\n", 2, "has 3 fields, but the header has 8"),
}


@pytest.mark.parametrize(("text", "line", "problem"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_names_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path, HEADER + text)
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_csv(path)
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{path}, line {line}")
    assert problem in str(fault)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "a,1,v100,,1,,,\na,1,v100,,2,,,\nb,0,v100,,1,,,\nc,1,v100,,x,,,\n")
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_csv(path)
    assert sorted(fault.where.split(" (")[0] for fault in caught.value.faults) == [f"{path}, line {n}" for n in (3, 4, 5)]


def test_an_unknown_column_is_one_fault(tmp_path: Path) -> None:
    header = HEADER.replace("source", "sauce")
    path = write(tmp_path, header + "a,1,v100,,1,,,x\nb,1,v100,,1,,,y\n")
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_csv(path)
    assert str(caught.value) == f"{path}, line 2: column 'sauce' is not known; did you mean 'source'?"


def test_a_missing_column(tmp_path: Path) -> None:
    path = write(tmp_path, "job_type,gpus,accelerator,steps_per_second\n")
    with pytest.raises(gp.InputError, match="line 1: column 'num_gpus' is missing; did you mean 'gpus'"):
        gp.ThroughputProfile.from_csv(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match=r"absent\.csv: cannot be read: No such file"):
        gp.ThroughputProfile.from_csv(tmp_path / "absent.csv")


def test_the_suffix_decides_the_format(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "a,1,v100,,1,,,\n")
    assert gp.ThroughputProfile.from_file(path) == gp.ThroughputProfile.from_csv(path)
    with pytest.raises(gp.InputError, match=r"it must end in \.csv, \.json"):
        gp.ThroughputProfile.from_file(tmp_path / "mine.xlsx")


def test_a_name_selects_the_format(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("job_type,num_gpus,accelerator,steps_per_second\na,1,h100,2\n")
    assert gp.ThroughputProfile.from_file(tmp_path / "notes.txt", format="csv").job_types == ("a",)
    with pytest.raises(gp.UnknownNameError, match="'pollx' is not known; did you mean 'pollux'"):
        gp.ThroughputProfile.from_file(tmp_path / "notes.txt", format="pollx")
    formats = gp.profile_formats()
    assert list(formats) == ["csv", "gavel", "pollux"]
    assert all(formats.values())


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="cannot be written: No such file or directory"):
        gp.ThroughputProfile("p", []).to_csv(tmp_path / "absent" / "mine.csv")


def test_writing_to_an_open_file() -> None:
    target = io.StringIO()
    gp.ThroughputProfile("p", [gp.Measurement(job_type="a, b", num_gpus=1, accelerator="v100", steps_per_second=0.1)]).to_csv(
        target
    )
    assert target.getvalue() == HEADER + '"a, b",1,v100,consolidated,0.1,,,\n'


texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=8).map(str.strip)
names = texts.filter(bool)
speeds = st.floats(min_value=0, allow_infinity=False)


@st.composite
def measurements(draw: st.DrawFn) -> gp.Measurement:
    fields = {
        "job_type": draw(names),
        "num_gpus": draw(st.integers(1, 16)),
        "accelerator": draw(names),
        "placement": draw(st.sampled_from(["consolidated", "spread"])),
        "steps_per_second": draw(speeds),
        "source": draw(texts),
    }
    partner = draw(st.none() | names)
    if partner is None:
        fields["gpu_memory_gb"] = draw(st.none() | st.floats(0, exclude_min=True, allow_infinity=False))
    else:
        own = fields["steps_per_second"]
        fields |= {"partner_job_type": partner, "partner_steps_per_second": own if partner == fields["job_type"] else draw(speeds)}
    return gp.Measurement(**fields)


@given(st.lists(measurements(), max_size=6, unique_by=lambda m: m.canonical().entry))
def test_reading_restores_what_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[gp.Measurement]) -> None:
    path = tmp_path_factory.mktemp("round_trip") / "p.csv"
    profile = gp.ThroughputProfile("p", rows)
    profile.to_csv(path)
    assert gp.ThroughputProfile.from_csv(path) == profile
    assert profile.measurements == tuple(row.canonical() for row in rows)


@pytest.mark.parametrize("name", gp.ThroughputProfile.builtin_names())
def test_the_built_in_profiles_survive_the_round_trip(tmp_path: Path, name: str) -> None:
    profile = gp.ThroughputProfile.builtin(name)
    profile.to_csv(tmp_path / "copy.csv")
    assert gp.ThroughputProfile.from_csv(tmp_path / "copy.csv").rows == profile.rows
