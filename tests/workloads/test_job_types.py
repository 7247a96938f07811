"""Job types and steps for traces without them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel_py import (
    InputError,
    Job,
    Measurement,
    MissingThroughputError,
    Submission,
    ThroughputProfile,
    Trace,
    assign_job_types,
    assume_durations,
    extend_profile,
)
from tests.support.fakes import refusal

SPEEDS = {
    ("a", 1): {"v100": 8.0, "k80": 2.0},
    ("a", 2): {"v100": 12.0, "k80": 3.0},
    ("a", 4): {"v100": 18.0, "k80": 6.0},
    ("b", 1): {"v100": 4.0, "k80": 4.0},
    ("b", 4): {"v100": 20.0, "k80": 0.0},
    ("c", 1): {"v100": 0.0, "k80": 1.0},
    ("d", 1): {"v100": 5.0},
}
PROFILE = ThroughputProfile(
    "small",
    [
        Measurement(job_type=job_type, num_gpus=gpus, accelerator=accelerator, steps_per_second=speed)
        for (job_type, gpus), row in SPEEDS.items()
        for accelerator, speed in row.items()
    ],
)


def trace_of(*gangs: int, **recorded: object) -> Trace:
    recorded = {"run_seconds": 10.0} | recorded
    return Trace(Submission(Job(str(n), num_gpus=size, arrival_seconds=n), **recorded) for n, size in enumerate(gangs))  # type: ignore[arg-type]


def types_of(trace: Trace) -> list[str]:
    return [submission.job.job_type for submission in trace]


def test_types_are_drawn_from_those_known_for_the_gang_size() -> None:
    trace, profile = assign_job_types(trace_of(*[1] * 3000, *[2] * 10), PROFILE)
    assert profile is PROFILE
    drawn = Counter(types_of(trace)[:3000])
    assert set(drawn) == {"a", "b"}  # c cannot run on v100, and d was never measured on k80
    assert abs(drawn["a"] - 1500) < 4 * 3000**0.5 / 2  # four standard deviations
    assert types_of(trace)[3000:] == ["a"] * 10
    assert any(said.startswith("Job types are drawn") and ": 3,010 jobs." in said for said in trace.report.assumptions)


@pytest.mark.parametrize(("accelerators", "types"), [(["v100"], {"a", "b", "d"}), (["k80"], {"a", "b"})])
def test_the_required_accelerators_can_be_restricted(accelerators: list[str], types: set[str]) -> None:
    trace, _ = assign_job_types(trace_of(*[1] * 100), PROFILE, accelerators=accelerators)
    assert set(types_of(trace)) == types


def test_steps_are_the_duration_times_the_throughput_on_the_recorded_accelerator() -> None:
    trace, _ = assign_job_types(trace_of(2, 2), PROFILE)
    assert [s.job.total_steps for s in trace] == [120, 120]
    trace, _ = assign_job_types(trace_of(2), PROFILE, reference="k80")
    assert trace[0].job.total_steps == 30
    trace, _ = assign_job_types(trace_of(2, accelerator="k80"), PROFILE)
    assert trace[0].job.total_steps == 30
    assert "duration x throughput on v100: 1 job; for 1 of them, on the accelerator where they ran." in str(trace.report)
    trace, _ = assign_job_types(trace_of(2, accelerator="h100"), PROFILE)
    assert trace[0].job.total_steps == 120


def test_known_job_types_and_steps_are_kept() -> None:
    given = Trace(
        [
            Submission(Job("typed", job_type="b"), run_seconds=3.0),
            Submission(Job("counted", job_type="other", total_steps=7), run_seconds=3.0),
            Submission(Job("without")),
            Submission(Job("short"), run_seconds=0.0),
        ]
    )
    trace, _ = assign_job_types(given, PROFILE)
    typed, counted, without, short = trace
    assert (typed.job.job_type, typed.job.total_steps) == ("b", 12)
    assert counted == given[1]
    assert without.job.job_type
    assert without.job.total_steps is None
    assert short.job.total_steps == PROFILE.job_throughput(short.job, "v100")
    assert [said.rsplit(": ", 1)[1] for said in trace.report.assumptions] == ["2 jobs.", "2 jobs.", "1 job.", "1 job."]


@given(seed=st.integers(0, 50))
def test_the_same_seed_draws_the_same_types(seed: int) -> None:
    given = trace_of(*[1, 2, 4] * 10)
    assert assign_job_types(given, PROFILE, seed=seed)[0] == assign_job_types(given, PROFILE, seed=seed)[0]


def test_missing_gang_sizes_are_refused_with_their_number_of_jobs() -> None:
    said = refusal(assign_job_types, trace_of(1, 3, 8, 8), PROFILE)
    assert said.splitlines() == [
        "throughput profile 'small', field num_gpus: has no job type for the gangs of 3 of 4 jobs on all of v100, k80; "
        "estimate them (--extrapolate), or restrict the accelerators (--accelerators)",
        "throughput profile 'small': gangs of 3 GPUs on v100: 1 job",
        "throughput profile 'small': gangs of 8 GPUs on v100: 2 jobs",
    ]


@pytest.mark.parametrize("options", [{"reference": "h100"}, {"accelerators": ["v100", "h100"]}])
def test_accelerators_must_be_in_the_profile(options: dict[str, object]) -> None:
    said = refusal(assign_job_types, trace_of(1), PROFILE, **options)
    assert said == "throughput profile 'small', field accelerator: 'h100' is not in this profile; known: v100, k80"


def test_durations_and_steps_are_converted_back_and_forth() -> None:
    given = trace_of(*[1, 2, 4] * 5)
    typed, profile = assign_job_types(given, PROFILE)
    forgotten = Trace(Submission(submission.job) for submission in typed)
    again = assume_durations(forgotten, profile)
    assert [s.run_seconds for s in again] == pytest.approx([10.0] * 15)
    unknown = Trace([Submission(Job("a", job_type="other", total_steps=5)), Submission(Job("b")), typed[0]])
    assert assume_durations(unknown, profile) is unknown


class TestEstimates:
    def test_sizes_of_gangs_are_numbers(self) -> None:
        with pytest.raises(InputError, match="must be numbers of GPUs, found '8'"):
            extend_profile(PROFILE, ["8"])  # type: ignore[list-item]

    def test_beyond_the_largest_gang_the_measured_scaling_is_extrapolated(self) -> None:
        profile = extend_profile(PROFILE, [16])
        # 8 at 1 GPU, 18 at 4 GPUs: each doubling gives 1.5 times as much, and so do the next two.
        assert profile.throughput("a", 16, "v100") == pytest.approx(18 * 1.5**2)
        assert profile.name == "small+estimates"

    def test_estimates_have_the_gpu_memory_of_the_next_smaller_gang(self) -> None:
        known = {1: 9.0, 4: 6.0}
        rows = [
            Measurement(job_type="a", num_gpus=n, accelerator="v100", steps_per_second=n, gpu_memory_gb=size)
            for n, size in known.items()
        ]
        extended = extend_profile(ThroughputProfile("sized", rows), [2, 8])
        assert [extended.gpu_memory_gb("a", n, "v100") for n in (2, 8)] == [9, 6]

    def test_speedups_are_at_most_linear(self) -> None:
        profile = extend_profile(PROFILE, [8])
        assert profile.throughput("b", 8, "v100") == pytest.approx(40)  # 4 at 1, 20 at 4: more than 4 times as much

    def test_more_gpus_never_slow_a_job_down(self) -> None:
        falling = ThroughputProfile(
            "falling",
            [
                Measurement(job_type="a", num_gpus=n, accelerator="v100", steps_per_second=s)
                for n, s in ((1, 8.0), (2, 9.0), (4, 7.0))
            ],
        )
        assert extend_profile(falling, [64]).throughput("a", 64, "v100") == 7

    def test_between_two_gangs_a_power_function_interpolates(self) -> None:
        speed = extend_profile(PROFILE, [3]).throughput("a", 3, "v100")
        assert speed == pytest.approx(12 * 1.5 ** (0.5849625007211562))
        assert 12 < speed < 18

    def test_a_throughput_of_0_is_extrapolated_as_0(self) -> None:
        assert extend_profile(PROFILE, [8]).throughput("b", 8, "k80") == 0

    def test_single_sizes_and_smaller_gangs_are_not_extrapolated(self) -> None:
        profile = extend_profile(PROFILE, [8])
        assert not profile.has("c", 8, "k80")
        large = ThroughputProfile(
            "large", [Measurement(job_type="a", num_gpus=n, accelerator="v100", steps_per_second=n) for n in (4, 8)]
        )
        assert extend_profile(large, [2]) is large

    def test_measurements_are_kept_and_estimates_name_their_source(self) -> None:
        profile = ThroughputProfile.builtin("gavel-osdi20")
        extended = extend_profile(profile, [4, 12, 128])
        assert extended.rows[: len(profile)] == profile.rows
        added = extended.rows[len(profile) :]
        assert {row.num_gpus for row in added} == {12, 128}
        assert all(row.source.startswith("estimated from ") for row in added)
        for row in added:
            largest = profile.throughput(row.job_type, 8, row.accelerator, row.placement)
            assert largest <= row.steps_per_second <= largest * row.num_gpus / 8 * (1 + 1e-12)

    @pytest.mark.parametrize(
        ("fields", "sizes"),
        [
            ({"gpu_counts": (1, 2, 8)}, {8}),
            ({"max_gpus": 12}, {8, 12}),
            ({"min_gpus": 3, "max_gpus": 9}, {3, 6, 9}),
            ({"min_gpus": 5, "max_gpus": 16, "gpus_per_node": 4}, {8, 16}),
            ({"min_gpus": 5, "max_gpus": 7, "gpus_per_node": 4}, set()),
        ],
    )
    def test_elastic_jobs_have_estimates_of_all_their_numbers(self, fields: dict[str, Any], sizes: set[int]) -> None:
        job = Job("elastic", job_type="a", **fields)
        known = {row.num_gpus for row in PROFILE.rows}
        extended = extend_profile(PROFILE, [job])
        assert {row.num_gpus for row in extended.rows} - known == sizes
        if sizes:
            _, profile = assign_job_types(Trace([Submission(job)]), PROFILE, extrapolate=True)
            assert profile.rows == extended.rows

    def test_estimates_allow_job_types_for_more_gang_sizes(self) -> None:
        trace, profile = assign_job_types(trace_of(1, 3, 8), PROFILE, extrapolate=True)
        assert set(types_of(trace)) <= {"a", "b"}
        for submission in trace:
            assert submission.job.total_steps == pytest.approx(10 * profile.job_throughput(submission.job, "v100"))
        assert trace.report.assumptions[0].startswith("Throughputs of gangs of 3, 8 GPUs are estimated from measured ones")

    def test_gangs_that_cannot_be_estimated_are_refused(self) -> None:
        single = ThroughputProfile("single", [Measurement(job_type="a", num_gpus=1, accelerator="v100", steps_per_second=1.0)])
        with pytest.raises(InputError, match="gangs of 2 GPUs on v100: 1 job"):
            assign_job_types(trace_of(1, 2), single, extrapolate=True)
        with pytest.raises(MissingThroughputError):
            single.throughput("a", 2, "v100")


def test_accelerators_of_a_trace_and_of_a_profile_are_matched_by_any_of_their_names() -> None:
    trace, _ = assign_job_types(trace_of(2), PROFILE, reference="NVIDIA K80", accelerators=["Tesla V100"])
    same, _ = assign_job_types(trace_of(2), PROFILE, reference="k80", accelerators=["v100"])
    assert trace.submissions == same.submissions
    recorded, _ = assign_job_types(trace_of(2, accelerator="Tesla V100-PCIE-16GB"), PROFILE, reference="k80")
    assert recorded.submissions[0].job.total_steps == 120  # 12 steps/s on v100, not 3 on k80
    assert not [each for each in recorded.report.assumptions if "does not have" in each]


def test_accelerators_of_a_trace_are_renamed_by_any_of_their_names() -> None:
    job = Job("a", allowed_accelerators=("NVIDIA H100 80GB HBM3", "T4"))
    (found,) = Trace([Submission(job, accelerator="H100")]).map_accelerators({"h100": "x"}).submissions
    assert (found.job.allowed_accelerators, found.accelerator) == (("x", "T4"), "x")
