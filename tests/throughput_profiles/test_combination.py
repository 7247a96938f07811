"""Several profiles as one: which measurements are kept, names of accelerators, units, and names on the command line."""

from pathlib import Path

import pytest

import gavel_py as gp


def profile(name: str, *cells: tuple[str, str, float], unit: str = "steps/s") -> gp.ThroughputProfile:
    made = (
        gp.Measurement(job_type=job_type, num_gpus=1, accelerator=accelerator, steps_per_second=speed, unit=unit)
        for job_type, accelerator, speed in cells
    )
    return gp.ThroughputProfile(name, made, licence=f"{name}'s")


def test_the_first_profile_comes_before_the_next() -> None:
    mine, public = profile("mine", ("a", "v100", 2.0)), profile("public", ("a", "v100", 9.0), ("a", "k80", 1.0), ("b", "k80", 3.0))
    both = gp.combine_profiles([mine, public])
    assert both.name == "mine+public"
    assert both.licence == "mine's; public's"
    assert [(row.job_type, row.accelerator, row.steps_per_second) for row in both.rows] == [
        ("a", "v100", 2.0),
        ("a", "k80", 1.0),
        ("b", "k80", 3.0),
    ]
    assert gp.combine_profiles([mine], name="x").rows == mine.rows


def test_an_accelerator_has_one_name() -> None:
    both = gp.combine_profiles([profile("mine", ("a", "NVIDIA H100 80GB HBM3", 2.0)), profile("public", ("b", "h100", 3.0))])
    assert both.accelerators == ("NVIDIA H100 80GB HBM3",)
    assert both.throughput("b", 1, "NVIDIA H100 80GB HBM3") == 3.0
    assert both.accelerator_named("h100-sxm") == "NVIDIA H100 80GB HBM3"
    assert both.accelerator_named("abacus") == "abacus"


def test_a_job_type_keeps_one_unit() -> None:
    with pytest.raises(gp.InputError, match=r"'a' is steps/s in 'mine' and tokens/s in 'public'"):
        gp.combine_profiles([profile("mine", ("a", "v100", 2.0)), profile("public", ("a", "k80", 9.0), unit="tokens/s")])
    both = gp.combine_profiles([profile("mine", ("a", "v100", 2.0)), profile("public", ("b", "v100", 9.0), unit="tokens/s")])
    assert both.units == ("steps/s", "tokens/s")
    with pytest.raises(gp.InputError, match="combined profile, field profiles: must not be empty"):
        gp.combine_profiles([])


def test_what_is_no_profile_is_refused() -> None:
    with pytest.raises(gp.InputError, match="must be throughput profiles, found 'x'"):
        gp.combine_profiles([profile("mine", ("a", "v100", 2.0)), "x"])  # type: ignore[list-item]


def test_pairs_are_combined_from_either_side() -> None:
    fields = {"num_gpus": 1, "accelerator": "v100"}
    one = gp.Measurement(job_type="a", steps_per_second=1, partner_job_type="b", partner_steps_per_second=2, **fields)
    other = gp.Measurement(job_type="b", steps_per_second=7, partner_job_type="a", partner_steps_per_second=8, **fields)
    both = gp.combine_profiles([gp.ThroughputProfile("x", [one]), gp.ThroughputProfile("y", [other])])
    assert both.pair("a", "b", 1, "v100") == (1, 2)


def test_names_and_files_are_joined_by_plus(tmp_path: Path) -> None:
    store = gp.ThroughputStore(tmp_path / "store.sqlite")
    store.save(profile("mine", ("a", "v100", 2.0)))
    store.save(profile("c++", ("c", "v100", 5.0)))
    profile("file", ("b", "v100", 3.0)).to_csv(tmp_path / "f.csv")
    profile("odd", ("o", "v100", 3.0)).to_csv(tmp_path / "g+h.csv")
    assert store.find("mine").job_types == ("a",)
    assert store.find("c++").job_types == ("c",)
    assert store.find("g+h.csv", tmp_path).job_types == ("o",)
    joined = store.find("f.csv+mine+gavel-osdi20", tmp_path)
    assert joined.job_types[:2] == ("b", "a")
    assert len(joined.job_types) == 28
    with pytest.raises(gp.UnknownNameError, match="'mind'"):
        store.find("mind+f.csv", tmp_path)
