"""Lookups in throughput profiles, and errors for missing throughputs."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import gavel_py as gp

Entry = gp.throughput_profiles.Entry


def alone(job_type: str, num_gpus: int, accelerator: str, speed: float, placement: str = "consolidated") -> gp.Measurement:
    return gp.Measurement(
        job_type=job_type, num_gpus=num_gpus, accelerator=accelerator, placement=placement, steps_per_second=speed
    )


def pair(job_type: str, speed: float, partner: str, partner_speed: float, accelerator: str = "v100") -> gp.Measurement:
    return gp.Measurement(
        job_type=job_type,
        num_gpus=1,
        accelerator=accelerator,
        steps_per_second=speed,
        partner_job_type=partner,
        partner_steps_per_second=partner_speed,
    )


@pytest.fixture
def profile() -> gp.ThroughputProfile:
    return gp.ThroughputProfile(
        "mine",
        [
            alone("resnet", 1, "v100", 4.0),
            alone("resnet", 2, "v100", 7.5),
            alone("resnet", 8, "v100", 25.0),
            alone("resnet", 8, "v100", 20.0, "spread"),
            alone("resnet", 1, "k80", 0.0),
            alone("bert", 1, "v100", 2.0),
            pair("resnet", 3.0, "bert", 1.5),
            pair("bert", 1.2, "bert", 1.2),
        ],
    )


class TestLookup:
    def test_a_measured_speed(self, profile: gp.ThroughputProfile) -> None:
        assert profile.throughput("resnet", 2, "v100") == 7.5

    def test_consolidated_and_spread_are_different_entries(self, profile: gp.ThroughputProfile) -> None:
        assert profile.throughput("resnet", 8, "v100") == 25.0
        assert profile.throughput("resnet", 8, "v100", "spread") == 20.0

    def test_a_pair_is_known_from_both_sides(self, profile: gp.ThroughputProfile) -> None:
        assert profile.throughput("resnet", 1, "v100", partner="bert") == 3.0
        assert profile.throughput("bert", 1, "v100", partner="resnet") == 1.5
        assert profile.pair("resnet", "bert", 1, "v100") == (3.0, 1.5)
        assert profile.pair("bert", "resnet", 1, "v100") == (1.5, 3.0)
        assert profile.pair("bert", "bert", 1, "v100") == (1.2, 1.2)

    def test_zero_is_a_value(self, profile: gp.ThroughputProfile) -> None:
        assert profile.has("resnet", 1, "k80")
        assert profile.throughput("resnet", 1, "k80") == 0.0

    def test_a_missing_throughput_is_an_error(self, profile: gp.ThroughputProfile) -> None:
        assert not profile.has("bert", 1, "k80")
        with pytest.raises(gp.MissingThroughputError):
            profile.throughput("bert", 1, "k80")

    def test_an_unmeasured_pair_is_missing_even_if_both_are_known_alone(self, profile: gp.ThroughputProfile) -> None:
        assert not profile.has("resnet", 1, "v100", partner="resnet")
        with pytest.raises(gp.MissingThroughputError, match="sharing with 'resnet'"):
            profile.pair("resnet", "resnet", 1, "v100")

    def test_the_throughput_of_a_job(self, profile: gp.ThroughputProfile) -> None:
        job = gp.Job("j", job_type="resnet", num_gpus=8)
        assert profile.job_throughput(job, "v100") == 25.0
        assert profile.job_throughput(job, "v100", "spread") == 20.0

    def test_names_in_order_of_first_appearance(self, profile: gp.ThroughputProfile) -> None:
        assert profile.accelerators == ("v100", "k80")
        assert profile.job_types == ("resnet", "bert")
        assert profile.gang_sizes == (1, 2, 8)
        assert len(profile) == 8
        assert repr(profile) == "ThroughputProfile('mine': 8 measurements, 2 job types on v100, k80)"

    def test_a_job_type_known_only_as_a_partner_is_known(self) -> None:
        assert gp.ThroughputProfile("p", [pair("a", 1.0, "b", 2.0)]).job_types == ("a", "b")

    def test_it_is_immutable(self, profile: gp.ThroughputProfile) -> None:
        with pytest.raises(FrozenInstanceError):
            profile.name = "other"  # type: ignore[misc]

    def test_it_can_be_pickled(self, profile: gp.ThroughputProfile) -> None:
        assert pickle.loads(pickle.dumps(profile)) == profile  # noqa: S301

    def test_measurements_have_each_pair_once(self) -> None:
        profile = gp.ThroughputProfile("p", [pair("b", 2.0, "a", 1.0), pair("a", 1.0, "b", 2.0)])
        assert profile.measurements == (pair("a", 1.0, "b", 2.0),)


class TestMessages:
    def test_a_missing_gang_size_lists_the_nearest(self, profile: gp.ThroughputProfile) -> None:
        with pytest.raises(gp.MissingThroughputError) as caught:
            profile.throughput("resnet", 4, "v100")
        assert str(caught.value) == (
            "throughput profile 'mine': has no throughput of 'resnet' on 4 x v100 (consolidated); nearest known: "
            "2 x v100 (consolidated), 1 x v100 (consolidated), 8 x v100 (consolidated), 1 x k80 (consolidated), 8 x v100 (spread)"
        )

    def test_nearest_entries_put_the_same_pair_first(self, profile: gp.ThroughputProfile) -> None:
        near = profile.nearest_entries(Entry("bert", 2, "v100", partner="resnet"), count=2)
        assert near == (
            Entry("bert", 1, "v100", partner="resnet"),
            Entry("bert", 1, "v100"),
        )

    @pytest.mark.parametrize(
        ("arguments", "field", "suggestion"),
        [
            (("resnt", 1, "v100"), "job_type", "'resnt' is missing; did you mean 'resnet'?"),
            (("resnet", 1, "v10"), "accelerator", "'v10' is missing; did you mean 'v100'?"),
            (("resnet", 1, "v100", "spred"), "placement", "'spred' is missing; did you mean 'spread'?"),
            (("resnet", 1, "v100", "consolidated", "brt"), "partner", "'brt' is missing; did you mean 'bert'?"),
        ],
    )
    def test_an_unknown_name_suggests_the_nearest(
        self, profile: gp.ThroughputProfile, arguments: tuple[str, int, str], field: str, suggestion: str
    ) -> None:
        with pytest.raises(gp.UnknownNameError) as caught:
            profile.throughput(*arguments)
        assert [(fault.field, fault.problem) for fault in caught.value.faults] == [(field, suggestion)]

    def test_all_unknown_names_are_reported(self, profile: gp.ThroughputProfile) -> None:
        with pytest.raises(gp.UnknownNameError) as caught:
            profile.throughput("gpt", 1, "h100")
        assert [fault.field for fault in caught.value.faults] == ["job_type", "accelerator"]


class TestMatrix:
    def test_rows_are_jobs_and_columns_accelerators(self, profile: gp.ThroughputProfile) -> None:
        jobs = [gp.Job("a", job_type="resnet"), gp.Job("b", job_type="resnet"), gp.Job("c", job_type="resnet", num_gpus=1)]
        assert profile.matrix(jobs, ["k80", "v100"]).tolist() == [[0.0, 4.0]] * 3

    def test_without_jobs_or_accelerators(self, profile: gp.ThroughputProfile) -> None:
        assert profile.matrix([], ["k80", "v100"]).shape == (0, 2)
        assert profile.matrix([gp.Job("a", job_type="resnet")], []).shape == (1, 0)

    def test_missing_values_count_as_zero_where_the_job_may_not_run(self, profile: gp.ThroughputProfile) -> None:
        jobs = [gp.Job("a", job_type="bert", allowed_accelerators=("v100",))]
        assert profile.matrix(jobs, ["v100", "k80", "h100"]).tolist() == [[2.0, 0.0, 0.0]]

    def test_each_missing_value_is_reported_once(self, profile: gp.ThroughputProfile) -> None:
        jobs = [
            gp.Job("fine", job_type="resnet"),
            gp.Job("j1", job_type="bert"),
            gp.Job("j2", job_type="bert"),
            gp.Job("j3", job_type="bert", allowed_accelerators=("k80",)),
            gp.Job("j4", job_type="bert", allowed_accelerators=("v100",)),
            gp.Job("j5", job_type="gpt", num_gpus=2),
            gp.Job("j6", job_type="gpt", num_gpus=4),
        ]
        with pytest.raises(gp.MissingThroughputError) as caught:
            profile.matrix(jobs, ["v100", "k80"])
        assert [fault.problem for fault in caught.value.faults] == [
            "has no throughput of 'bert' on 1 x k80 (consolidated), needed by job 'j1' and 2 more; "
            "nearest known: 1 x v100 (consolidated)",
            "'gpt' is missing, needed by job 'j5' and 1 more; known: resnet, bert",
        ]

    def test_the_list_of_known_job_types_is_given_once(self, profile: gp.ThroughputProfile) -> None:
        with pytest.raises(gp.MissingThroughputError) as caught:
            profile.matrix([gp.Job("a", job_type="gpt"), gp.Job("b", job_type="vit")], ["v100"])
        first, second = (fault.problem for fault in caught.value.faults)
        assert first == "'gpt' is missing, needed by job 'a'; known: resnet, bert"
        assert second == "'vit' is missing, needed by job 'b'"

    def test_numbers_of_one_are_singular(self) -> None:
        one = gp.ThroughputProfile("one", [gp.Measurement(job_type="a", num_gpus=1, accelerator="v100", steps_per_second=1)])
        assert repr(one) == "ThroughputProfile('one': 1 measurement, 1 job type on v100)"

    def test_an_unknown_accelerator_is_one_fault(self, profile: gp.ThroughputProfile) -> None:
        jobs = [
            gp.Job("a", job_type="resnet"),
            gp.Job("b", job_type="bert"),
            gp.Job("c", job_type="bert", allowed_accelerators=("v100",)),
        ]
        with pytest.raises(gp.MissingThroughputError) as caught:
            profile.matrix(jobs, ["v100", "h100"])
        assert [str(fault) for fault in caught.value.faults] == [
            "throughput profile 'mine', field accelerator: 'h100' is missing, needed by job 'a' and 1 more; did you mean 'v100'?"
        ]

    def test_thousands_of_unknown_job_types_are_all_counted(self, profile: gp.ThroughputProfile) -> None:
        jobs = [gp.Job(str(n), job_type=f"type-{n}") for n in range(3000)]
        with pytest.raises(gp.MissingThroughputError) as caught:
            profile.matrix(jobs, profile.accelerators)
        assert len(caught.value.faults) == 3000

    def test_jobs_of_different_types_have_different_rows(self, profile: gp.ThroughputProfile) -> None:
        sizes = [1, 2, 8] * 10
        jobs = [gp.Job(str(n), job_type="resnet", num_gpus=size) for n, size in enumerate(sizes)]
        expected = [[{1: 4.0, 2: 7.5, 8: 25.0}[size]] for size in sizes]
        np.testing.assert_array_equal(profile.matrix(jobs, ["v100"]), expected)


class TestContradictions:
    def test_duplicate_entries_are_refused(self) -> None:
        with pytest.raises(gp.InputError) as caught:
            gp.ThroughputProfile("p", [alone("a", 1, "v100", 1.0), alone("b", 1, "v100", 1.0), alone("a", 1, "v100", 1.0)])
        assert str(caught.value) == (
            "throughput profile 'p', measurement 3: 'a' on 1 x v100 (consolidated) appears twice, first at measurement 1"
        )

    def test_duplicate_pairs_are_refused(self) -> None:
        with pytest.raises(gp.InputError, match=r"measurement 2: 'b' on 1 x v100 .* appears twice, first at measurement 1"):
            gp.ThroughputProfile("p", [pair("b", 1.0, "a", 2.0), pair("b", 1.0, "a", 2.0)])

    def test_a_pair_whose_two_sides_agree(self) -> None:
        assert len(gp.ThroughputProfile("p", [pair("b", 1.0, "a", 2.0), pair("a", 2.0, "b", 1.0)])) == 1

    @pytest.mark.parametrize("first", ["a", "b"])
    def test_a_pair_whose_two_sides_differ(self, first: str) -> None:
        sides = [pair("a", 1.0, "b", 2.0), pair("b", 2.5, "a", 1.0)]
        with pytest.raises(gp.InputError, match=r"measurement 2: .* contradicts the same pair .* at measurement 1"):
            gp.ThroughputProfile("p", sides if first == "a" else sides[::-1])

    def test_the_same_pair_on_another_accelerator_is_another_entry(self) -> None:
        assert len(gp.ThroughputProfile("p", [pair("a", 1.0, "b", 2.0), pair("b", 3.0, "a", 3.0, "k80")])) == 2

    @pytest.mark.parametrize("name", ["", "two\nlines"])
    def test_unprintable_names_are_refused(self, name: str) -> None:
        with pytest.raises(gp.InputError, match="must be printable and not empty"):
            gp.ThroughputProfile(name, [])


class TestMeasurement:
    @pytest.mark.parametrize(
        ("field", "value", "problem"),
        [
            ("job_type", "", "must not be empty"),
            ("num_gpus", 0, "must be at least 0.001 of a GPU, found 0"),
            ("num_gpus", 1.5, "must be a whole number of GPUs, or a fraction of one, found 1.5"),
            ("accelerator", "a\nb", "must not contain line breaks or control characters"),
            ("placement", "scattered", "must be one of 'consolidated' or 'spread', found 'scattered'"),
            ("steps_per_second", -1, "must be at least 0, found -1"),
            ("steps_per_second", float("nan"), "must be a finite number, found nan"),
            ("steps_per_second", float("inf"), "must be a finite number, found inf"),
            ("partner_steps_per_second", 1.0, "must be given together"),
            ("partner_job_type", "b", "must be given together"),
        ],
    )
    def test_faults(self, field: str, value: object, problem: str) -> None:
        fields = {"job_type": "a", "num_gpus": 1, "accelerator": "v100", "steps_per_second": 1.0} | {field: value}
        with pytest.raises(gp.InputError) as caught:
            gp.Measurement(**fields)
        assert problem in str(caught.value)

    def test_a_pair_with_itself_has_one_speed(self) -> None:
        with pytest.raises(gp.InputError, match="must have the same steps_per_second on both sides"):
            pair("a", 1.0, "a", 2.0)


def test_memory_that_was_measured_on_a_fraction_of_a_gpu_goes_before_that_of_a_whole_one() -> None:
    measured = [("v100", 1, 12.0), ("v100", 0.5, 6.0), ("k80", 1, 11.0)]
    rows = [
        gp.Measurement(job_type="a", num_gpus=gpus, accelerator=name, steps_per_second=1.0, gpu_memory_gb=gb)
        for name, gpus, gb in measured
    ]
    profile = gp.ThroughputProfile("lab", rows)
    assert [profile.gpu_memory_gb("a", 0.5, name) for name in ("v100", "k80")] == [6.0, 11.0]
