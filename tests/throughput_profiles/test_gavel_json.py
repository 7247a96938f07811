"""The throughputs JSON of the published Gavel, and its faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.support.shared_data import SHARED, needs_shared_data

A = "('a (batch size 1)', 1)"
B = "('b', 1)"
GOOD: dict[str, Any] = {
    "v100": {
        A: {"null": 4.0, A: [2.0, 2.0], B: [3.0, 1.5]},
        B: {"null": 2.0, A: [1.5, 3.0]},
        "('b', 2)": {"null": 3.5},
    },
    "v100_unconsolidated": {"('b', 2)": {"null": 3.25}},
}


def write(folder: Path, document: object) -> Path:
    path = folder / "throughputs.json"
    path.write_text(json.dumps(document))
    return path


def test_throughputs_alone_spread_and_in_pairs(tmp_path: Path) -> None:
    profile = gp.ThroughputProfile.from_gavel_json(write(tmp_path, GOOD))
    assert profile.name == "throughputs"
    assert profile.accelerators == ("v100",)
    assert profile.throughput("a (batch size 1)", 1, "v100") == 4.0
    assert profile.throughput("b", 2, "v100") == 3.5
    assert profile.throughput("b", 2, "v100", "spread") == 3.25
    assert profile.pair("b", "a (batch size 1)", 1, "v100") == (1.5, 3.0)


def test_each_pair_is_kept_once(tmp_path: Path) -> None:
    profile = gp.ThroughputProfile.from_file(write(tmp_path, GOOD), name="mine")
    assert profile.name == "mine"
    assert len(profile) == 6
    assert profile.measurements[2] == gp.Measurement(
        job_type="a (batch size 1)",
        num_gpus=1,
        accelerator="v100",
        steps_per_second=3.0,
        partner_job_type="b",
        partner_steps_per_second=1.5,
        source="throughputs.json, v100",
    )


FAULTS: dict[str, tuple[object, str, str]] = {
    "no object": ([1], "", "must be an object, found [1]"),
    "a type that is no object": ({"v100": 3}, ", type 'v100'", "must be an object, found 3"),
    "a job type that is no object": ({"v100": {A: 3}}, f", type 'v100', key {A!r}", "must be an object, found 3"),
    "a key that is no tuple": (
        {"v100": {"resnet": {"null": 1}}},
        ", type 'v100', key 'resnet'",
        "'resnet' is not a key of the form",
    ),
    "a key that calls": (
        {"v100": {"(str(1), 1)": {"null": 1}}},
        ", type 'v100', key '(str(1), 1)'",
        "'(str(1), 1)' is not a key of the form ('job type', GPUs)",
    ),
    "a key too deep": ({"v100": {"(" * 500: {"null": 1}}}, ", type 'v100', key '((", "is not a key of the form"),
    "a partner that is no tuple": ({"v100": {A: {"b": [1, 2]}}}, f", type 'v100', key {A!r}", "'b' is not a key of the form"),
    "gangs of two sizes": ({"v100": {A: {"('b', 2)": [1, 2]}}}, f", type 'v100', key {A!r}", "of equal size, found 1 and 2"),
    "a pair of one": ({"v100": {A: {B: [1]}}}, f", type 'v100', key {A!r}", "must be a list [own steps/s, partner's steps/s]"),
    "a negative speed": ({"v100": {A: {"null": -1}}}, f", type 'v100', key {A!r}", "must be at least 0, found -1"),
    "no number": ({"v100": {A: {"null": None}}}, f", type 'v100', key {A!r}", "must be a number, found None"),
    "no GPUs": ({"v100": {"('a', 0)": {"null": 1}}}, ", type 'v100', key \"('a', 0)\"", "must be at least 0.001 of a GPU, found 0"),
    "no accelerator": ({"_unconsolidated": {A: {"null": 1}}}, ", type '_unconsolidated'", "must not be empty"),
    "an entry twice": (
        {"v100": {B: {"null": 1}, "('b',1)": {"null": 1}}},
        ", type 'v100', key \"('b',1)\"",
        "appears twice, first at",
    ),
    "two sides that differ": (
        {"v100": {A: {B: [1, 2]}, B: {A: [2, 1.5]}}},
        f", type 'v100', key {B!r}",
        "contradicts the same pair given in the other order",
    ),
}


def test_two_faults_of_a_pair_are_told_each_at_its_place(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_gavel_json(write(tmp_path, {"v100": {A: {"('b', 2)": 3}}}))
    assert [fault.field for fault in caught.value.faults] == ["('b', 2)"] * 2
    assert ["equal size" in fault.problem for fault in caught.value.faults] == [True, False]


@pytest.mark.parametrize(("document", "place", "problem"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_names_file_type_and_key(tmp_path: Path, document: object, place: str, problem: str) -> None:
    path = write(tmp_path, document)
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_gavel_json(path)
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{path}{place}")
    assert problem in str(fault)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    document = {"k80": 1, "v100": {"x": {"null": 1}, A: {"null": -1}, B: {"null": 1}}}
    with pytest.raises(gp.InputError) as caught:
        gp.ThroughputProfile.from_gavel_json(write(tmp_path, document))
    assert len(caught.value.faults) == 3


def test_duplicate_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.json"
    path.write_text('{"v100": {}, "v100": {}}')
    with pytest.raises(gp.InputError, match="key 'v100' appears twice in one object"):
        gp.ThroughputProfile.from_gavel_json(path)


@pytest.mark.deep
@needs_shared_data
def test_the_published_file_equals_the_built_in_profile() -> None:
    published = gp.ThroughputProfile.from_gavel_json(SHARED / "gavel" / "simulation_throughputs.json")
    builtin = gp.ThroughputProfile.builtin("gavel-osdi20")
    assert len(published) == len(builtin)
    assert set(published.job_types) == set(builtin.job_types)
    for row in published.rows:
        own = builtin.throughput(row.job_type, row.num_gpus, row.accelerator, row.placement, row.partner_job_type)
        assert own == float(f"{row.steps_per_second:.4g}")
