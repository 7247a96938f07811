"""The generator: reproducible traces with the expected distributions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel_py import Empirical, LogUniform, Trace, generate_trace, trace_text
from tests.support.examples import examples
from tests.support.fakes import refusal
from tests.support.profiles import OSDI

MANY = 20_000


def generated(num_jobs: int = 50, **options: object) -> Trace:
    return generate_trace(num_jobs, OSDI, **{"jobs_per_hour": 4.0, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def many() -> Trace:
    return generated(MANY, heavy_share=0.2, seed=3)


def within(found: float, expected: float, deviation: float, draws: int = MANY) -> bool:
    """Return whether a mean of `draws` random numbers is within five standard deviations of the expected one."""
    return abs(found - expected) < 5 * deviation / draws**0.5


@pytest.mark.deep
def test_the_published_gangs(many: Trace) -> None:
    sizes = Counter(submission.job.num_gpus for submission in many)
    for size, part in ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05)):
        assert within(sizes[size] / MANY, part, (part * (1 - part)) ** 0.5)
    assert set(sizes) == {1, 2, 4, 8}


def test_the_published_durations(many: Trace) -> None:
    logs = np.log10([(submission.run_seconds or 0) / 60 for submission in many])
    # Steps are whole, which moves a duration by half a step at most.
    assert 1.49 < logs.min() < logs.max() < 4.01
    assert within(float((logs < 3).mean()), 0.8, 0.4)
    assert within(float(logs[logs < 3].mean()), 2.25, 1.5 / 12**0.5, int((logs < 3).sum()))
    assert within(float(logs[logs >= 3].mean()), 3.5, 1 / 12**0.5, int((logs >= 3).sum()))


def test_steps_are_the_duration_times_the_throughput_on_v100(many: Trace) -> None:
    for submission in many[:500]:
        steps = submission.job.total_steps
        assert steps is not None
        assert steps == round(steps)
        speed = OSDI.job_throughput(submission.job, "v100")
        assert submission.run_seconds == pytest.approx(steps / speed)


def test_heavy_share_sets_the_number_of_heavy_jobs(many: Trace) -> None:
    weights = Counter(submission.job.weight for submission in many)
    assert set(weights) == {1, 5}
    assert within(weights[5] / MANY, 0.2, 0.4)


@pytest.mark.deep
@pytest.mark.parametrize("burstiness", [1.0, 2.0, 4.0])
def test_gaps_between_arrivals_have_the_given_mean_and_variation(burstiness: float) -> None:
    gaps = np.diff([s.job.arrival_seconds for s in generated(MANY, burstiness=burstiness, seed=1)])
    assert within(float(gaps.mean()), 900, 900 * burstiness)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.15)


@pytest.mark.deep
def test_poisson_arrivals_are_exponential() -> None:
    gaps = np.sort(np.diff([s.job.arrival_seconds for s in generated(MANY)]))
    # Kolmogorov and Smirnov: the largest distance between the two distributions, at a level of one in ten thousand.
    distance = np.abs(np.arange(1, len(gaps) + 1) / len(gaps) - (1 - np.exp(-gaps / 900))).max()
    assert distance < 2.23 / len(gaps) ** 0.5


def test_job_types_are_drawn_uniformly_among_those_of_the_gang_size(many: Trace) -> None:
    types = Counter(submission.job.job_type for submission in many if submission.job.num_gpus == 1)
    assert len(types) == 26
    number = types.total()
    assert all(within(count / number, 1 / 26, (25 / 26**2) ** 0.5, number) for count in types.values())
    assert len({submission.job.job_type for submission in many if submission.job.num_gpus == 8}) == 19


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    assert trace_text(generated(5, seed=seed)) == trace_text(generated(5, seed=seed))
    assert generated(5, seed=seed) != generated(5, seed=seed + 1)


def test_aspects_have_independent_random_streams() -> None:
    mixed, single = generated(seed=2), generated(seed=2, gang_mix={1: 1.0})
    assert [s.job.arrival_seconds for s in mixed] == [s.job.arrival_seconds for s in single]
    longer = generated(100, seed=2)
    assert longer[:50] == mixed


def test_without_a_rate_all_jobs_arrive_at_time_0() -> None:
    assert {s.job.arrival_seconds for s in generated(jobs_per_hour=None)} == {0.0}


def test_empirical_durations_are_drawn_from_the_recorded_ones() -> None:
    trace = generated(200, durations=Empirical([100.0, 5000.0]))
    rounded = Counter(min((100, 5000), key=lambda d: abs(d - (s.run_seconds or 0))) for s in trace)
    assert abs(rounded[100] - 100) < 5 * 200**0.5 / 2


def test_means_of_durations() -> None:
    draws = np.random.default_rng(0).random((2, MANY))
    for durations in (LogUniform(((3, 10, 1000), (1, 50, 50))), Empirical([1, 2, 6])):
        found = durations.draw(*draws)
        assert within(float(found.mean()), durations.mean_seconds, float(found.std()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_jobs": 0}, "generate, field num_jobs: must be a whole number of at least 1, found 0"),
        ({"burstiness": 0.5}, "arrivals, field burstiness: must be at least 1 (1 = Poisson, more = burstier), found 0.5"),
        ({"jobs_per_hour": 0.0}, "arrivals, field jobs_per_hour: must be a finite number greater than 0, found 0.0"),
        ({"seed": -1}, "generate, field seed: must be at least 0, found -1"),
        ({"seed": 3.0}, "generate, field seed: must be a whole number, found 3.0"),
        ({"heavy_share": 2}, "generate, field heavy_share: must be at most 1, found 2"),
        ({"gang_mix": {}}, "generate, field gang_mix: must name at least one gang size"),
        ({"gang_mix": {1: 0.0}}, "generate, field gang_mix[1]: must be a finite number greater than 0, found 0.0"),
        (
            {"gang_mix": {16: 1.0}},
            "generate, field gang_mix: profile 'gavel-osdi20' has no job type for gangs of 16 GPUs that runs on v100",
        ),
        (
            {"reference": "h100"},
            "generate, field reference: 'h100' is not in this profile; known: k80, p100, v100",
        ),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, object], said: str) -> None:
    assert refusal(generated, **options) == said


def test_invalid_distributions_of_durations_are_refused() -> None:
    assert "must name at least one piece" in refusal(LogUniform, ())
    assert "0 < shortest <= longest" in refusal(LogUniform, ((1, 5, 4),))
    assert "must be at least one number, all finite and greater than 0" in refusal(Empirical, [0.0])
