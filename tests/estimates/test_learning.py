"""Learning from running jobs: posteriors, snapshots, contradictions, measured entries, and a start from nothing."""

import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel_py as gp
from gavel_py.estimates.gaussian_process import _expected
from gavel_py.estimates.variance_components import Posterior
from gavel_py.io import locking
from tests.support.profiles import OSDI

Entry = gp.throughput_profiles.Entry

TYPES = ("ResNet-50 (batch size 64)", "ResNet-50 (batch size 32)", "A3C", "LM (batch size 20)")
ACCELERATORS = ("k80", "p100", "v100")
JOBS = [gp.Job(str(n), job_type=name) for n, name in enumerate(TYPES)]
HALF = gp.ThroughputProfile(
    "half", [m for m in OSDI.measurements if m.partner_job_type is None and (m.job_type != TYPES[0] or m.accelerator == "v100")]
)
"""All but the first type on two of the accelerators."""

DEVIATIONS = 1.2815515655446004
"""Standard deviations from the median to the ends of an interval of 80 %."""


def seen(
    learner: gp.ThroughputLearner, job_type: str, accelerator: str, rate: float, times: int = 1, at: float | None = None
) -> None:
    for _ in range(times):
        learner.observe((job_type, 1, accelerator), steps=360 * rate, seconds=360, at=at)


def speed(learner: gp.ThroughputLearner, job_type: str, accelerator: str) -> float:
    return learner.profile.throughput(job_type, 1, accelerator)


def test_from_nothing_the_first_observation_sets_the_level_of_its_type() -> None:
    learner = gp.ThroughputLearner(explore="median")
    assert learner.profile.matrix(JOBS, ACCELERATORS).shape == (4, 3)
    seen(learner, TYPES[0], "v100", 4.4)
    found = learner.profile.matrix(JOBS, ACCELERATORS)
    assert found[0, 2] == pytest.approx(4.4, rel=0.01)
    # The other accelerators follow from their specifications, and the same model with another batch size from its family.
    assert 0 < found[0, 0] < found[0, 1] < found[0, 2]
    assert 4.4 / 3 < found[1, 2] < 4.4 * 3


@pytest.mark.deep
def test_speeds_in_other_units_are_not_expected_of_new_job_types() -> None:
    learner = gp.ThroughputLearner(gp.ThroughputProfile.builtin("nvidia-2023"), explore="median")
    for job_type in (TYPES[2], "Transformer (batch size 256)"):  # the profile has tokens/s of a "Transformer (PyTorch, ...)"
        found = learner.profile.estimate(Entry(job_type, 1, "v100"))
        assert found is not None
        assert found.unit == "steps/s"
        assert found.median < 100  # its samples/s and tokens/s are thousands
        assert found.low < OSDI.throughput(job_type, 1, "v100") < found.high
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for job in JOBS:
            seen(learner, job.job_type, "v100", OSDI.job_throughput(job, "v100"))


def test_others_of_a_kind_are_estimated_from_what_was_observed() -> None:
    learner = gp.ThroughputLearner(explore="median")
    for accelerator in ("v100", "p100"):
        for job in JOBS:
            if job.job_type != TYPES[0] or accelerator == "v100":
                seen(learner, job.job_type, accelerator, OSDI.job_throughput(job, accelerator), times=3)
    truth, estimate = OSDI.throughput(TYPES[0], 1, "p100"), learner.profile.estimate(Entry(TYPES[0], 1, "p100"))
    assert estimate is not None
    assert abs(math.log(estimate.median / truth)) < 0.2
    assert estimate.low < truth < estimate.high


def test_optimism_is_one_standard_deviation_and_only_for_what_was_not_observed() -> None:
    median, optimistic = (gp.ThroughputLearner(HALF, explore=each) for each in ("median", "optimistic"))
    for learner in (median, optimistic):
        seen(learner, TYPES[0], "p100", 3.0)
    estimate = median.profile.estimate(Entry(TYPES[0], 1, "k80"))
    assert estimate is not None
    assert speed(median, TYPES[0], "p100") == speed(optimistic, TYPES[0], "p100")
    assert speed(median, TYPES[0], "k80") == estimate.median < speed(optimistic, TYPES[0], "k80") < estimate.high
    deviations = median.deviations([Entry(TYPES[0], 1, name) for name in ("k80", "p100")])
    assert deviations == pytest.approx([math.log(estimate.high / estimate.low) / (2 * DEVIATIONS), 0.0])


def test_posterior_of_an_observed_entry_lies_between_observation_and_estimate() -> None:
    before = HALF.with_estimates().estimate(Entry(TYPES[0], 1, "p100"))
    assert before is not None
    learner = gp.ThroughputLearner(HALF, explore="median")
    rate = before.median * 1.25
    seen(learner, TYPES[0], "p100", rate)
    first = speed(learner, TYPES[0], "p100")
    assert before.median < first < rate
    seen(learner, TYPES[0], "p100", rate, times=200)
    assert first <= speed(learner, TYPES[0], "p100") == pytest.approx(rate, rel=0.02)
    estimate = learner.profile.estimate(Entry(TYPES[0], 1, "p100"))
    assert estimate is not None
    assert "observed on running jobs" in estimate.source


def test_posterior_is_that_of_the_joint_normal_distribution() -> None:
    """The closed form against conditioning the covariance of (f + ε at the entry, observations) directly."""
    learner = gp.ThroughputLearner(HALF, explore="median")
    for accelerator, rate in (("p100", 3.0), ("k80", 0.9)):
        seen(learner, TYPES[0], accelerator, rate)
    effects = learner._effects
    entries = [*effects.entries, Entry(TYPES[0], 1, "k80"), Entry(TYPES[0], 1, "p100")]
    features = effects.vocabulary.features(entries)
    latent = effects.effects.covariance(effects.variances, features, features) + effects.variances[-1] * np.eye(len(entries))
    noise = np.zeros(len(entries))
    noise[-2:] = 0.05**2
    logs = np.array([math.log(0.9), math.log(3.0)]) - _expected(features, effects.levels)[-2:]
    residuals = np.concatenate([effects.residuals, logs])
    expected = latent[-2:] @ np.linalg.solve(latent + np.diag(noise), residuals)
    found = [math.log(speed(learner, TYPES[0], name)) for name in ("k80", "p100")]
    assert found == pytest.approx(expected - logs + np.log([0.9, 3.0]), abs=1e-3)
    covariance = latent[-2:, -2:] - latent[-2:] @ np.linalg.solve(latent + np.diag(noise), latent[:, -2:])
    estimates = [learner.profile.estimate(Entry(TYPES[0], 1, name)) for name in ("k80", "p100")]
    deviations = [math.log(each.high / each.low) / (2 * DEVIATIONS) for each in estimates if each is not None]
    assert deviations == pytest.approx(np.sqrt(np.diag(covariance)), rel=0.01)


def test_a_snapshot_stays_the_same_object_until_a_throughput_moves() -> None:
    learner = gp.ThroughputLearner(HALF)
    first = learner.profile
    assert learner.profile is first
    table = first.matrix(JOBS, ACCELERATORS)
    seen(learner, TYPES[0], "p100", 3.0)
    second = learner.profile
    assert second is not first
    assert (first.matrix(JOBS, ACCELERATORS) == table).all()
    second.matrix(JOBS, ACCELERATORS)
    rate = second.throughput(TYPES[0], 1, "p100")
    seen(learner, TYPES[0], "p100", rate * 1.005)
    assert learner.profile is second


def test_an_update_uses_one_blas_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    made = Posterior.__init__

    def recorded(*args: object, **options: object) -> None:
        calls.append(locking._blas.calls)
        made(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Posterior, "__init__", recorded)
    learner = gp.ThroughputLearner(HALF)
    for rate in (3.0, 2.5):
        seen(learner, TYPES[0], "p100", rate)
        assert learner.profile.matrix(JOBS, ACCELERATORS).shape == (4, 3)
    assert len(calls) > 2
    assert all(calls)
    assert locking._blas.calls == 0


def test_measured_entries_keep_their_value() -> None:
    learner = gp.ThroughputLearner(HALF)
    seen(learner, TYPES[1], "v100", OSDI.throughput(TYPES[1], 1, "v100") * 1.1, times=50)
    assert speed(learner, TYPES[1], "v100") == OSDI.throughput(TYPES[1], 1, "v100")
    assert learner.observations[Entry(TYPES[1], 1, "v100")].count == pytest.approx(50)
    assert not learner.contradictions


def test_contradictions_are_reported_and_not_averaged() -> None:
    learner = gp.ThroughputLearner(HALF)
    seen(learner, TYPES[0], "p100", 3.0, times=5)
    with pytest.warns(gp.GavelWarning, match=r"'ResNet-50 \(batch size 64\)' on 1 x p100 .* observed at 6"):
        seen(learner, TYPES[0], "p100", 6.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen(learner, TYPES[0], "p100", 6.0)
    (found,) = learner.contradictions
    assert (found.rate, found.count) == (pytest.approx(6.0), 2)
    assert found.deviations > 4
    assert learner.observations[found.entry].rate == pytest.approx(3.0)
    with pytest.warns(gp.GavelWarning):
        seen(learner, TYPES[1], "v100", OSDI.throughput(TYPES[1], 1, "v100") * 2, times=20)
    assert speed(learner, TYPES[1], "v100") == OSDI.throughput(TYPES[1], 1, "v100")


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
def test_rates_that_outnumber_what_they_contradict_take_its_place() -> None:
    learner = gp.ThroughputLearner(HALF)
    seen(learner, TYPES[0], "p100", 3.0, times=2)
    seen(learner, TYPES[0], "p100", 6.0, times=2)
    assert speed(learner, TYPES[0], "p100") == pytest.approx(3.0, rel=0.05)
    seen(learner, TYPES[0], "p100", 6.0)
    assert speed(learner, TYPES[0], "p100") == pytest.approx(6.0, rel=0.05)


def test_incredible_rates_do_not_count() -> None:
    learner = gp.ThroughputLearner(HALF)
    estimate = HALF.with_estimates().estimate(Entry(TYPES[0], 1, "p100"))
    assert estimate is not None
    with pytest.warns(gp.GavelWarning):
        seen(learner, TYPES[0], "p100", estimate.median * 11, times=5)
    assert Entry(TYPES[0], 1, "p100") not in learner.observations
    cannot_run = gp.ThroughputProfile("zero", [gp.Measurement(job_type="a", num_gpus=1, accelerator="k80", steps_per_second=0)])
    with pytest.warns(gp.GavelWarning, match="cannot run there"):
        seen(gp.ThroughputLearner(cannot_run), "a", "k80", 1.0)


def test_what_does_not_teach() -> None:
    learner = gp.ThroughputLearner(HALF)
    learner.observe((TYPES[0], 1, "p100"), steps=0, seconds=360)
    learner.observe((TYPES[0], 1, "p100", "spread"), steps=100, seconds=360)
    learner.observe((TYPES[0], 1, "p100", "consolidated", TYPES[1]), steps=100, seconds=360)
    assert not learner.observations


@given(st.floats(1e-3, 1e6), st.integers(1, 60), st.floats(0, 3))
def test_mean_and_variance_of_equal_ages_are_those_of_the_logs(rate: float, count: int, spread: float) -> None:
    logs = math.log(rate) + spread * np.random.default_rng(count).standard_normal(count)
    found = gp.ObservedRate()
    for log in logs:
        found = found.including(math.exp(log), 5.0, 10.0)
    assert found.count == pytest.approx(count)
    assert found.log_mean == pytest.approx(logs.mean(), abs=1e-9)
    assert found.log_variance == pytest.approx(logs.var(), abs=1e-9)


def test_observations_age() -> None:
    found = gp.ObservedRate().including(2.0, 0.0, 100.0).including(4.0, 100.0, 100.0)
    assert found.count == pytest.approx(1.5)
    assert found.log_mean == pytest.approx((0.5 * math.log(2) + math.log(4)) / 1.5)
    learner = gp.ThroughputLearner(HALF, explore="median", half_life_seconds=3600)
    before = speed(learner, TYPES[0], "p100")
    seen(learner, TYPES[0], "p100", before * 1.3, times=20, at=0.0)
    young = speed(learner, TYPES[0], "p100")
    seen(learner, TYPES[0], "k80", speed(learner, TYPES[0], "k80"), at=30 * 3600.0)
    assert abs(math.log(speed(learner, TYPES[0], "p100") / before)) < abs(math.log(young / before)) / 2


def test_a_learner_continues_from_observations_and_pickles() -> None:
    learner = gp.ThroughputLearner(HALF)
    seen(learner, TYPES[0], "p100", 3.0, times=5)
    again = gp.ThroughputLearner(HALF, observations=learner.observations)
    copied = pickle.loads(pickle.dumps(learner))  # noqa: S301
    for each in (again, copied):
        assert each.observations == learner.observations
        assert (each.profile.matrix(JOBS, ACCELERATORS) == learner.profile.matrix(JOBS, ACCELERATORS)).all()


def test_entries_worth_measuring() -> None:
    learner = gp.ThroughputLearner(HALF, explore=0.05)
    entries = [Entry(TYPES[0], 1, name) for name in ACCELERATORS]
    unknown = learner.deviations([*entries, Entry("unheard of", 1, "v100")])
    assert unknown[2] == 0 < min(unknown[:2]) < unknown[3]
    seen(learner, TYPES[0], "p100", speed(learner, TYPES[0], "p100"))
    assert learner.deviations(entries)[1] == 0


def test_draws_of_learned_entries_vary_by_their_posterior() -> None:
    learner = gp.ThroughputLearner(HALF)
    seen(learner, TYPES[0], "p100", 3.0, times=4)
    drawn = learner.profile.sample([Entry(TYPES[0], 1, "p100"), Entry(TYPES[0], 1, "k80"), Entry(TYPES[0], 1, "v100")], 500)
    assert 0.01 < np.log(drawn[:, 0]).std() < 0.05 < np.log(drawn[:, 1]).std()
    assert np.ptp(drawn[:, 2]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"explore": "bold"}, "'optimistic', 'median', or a share"),
        ({"explore": 1.5}, "'optimistic', 'median', or a share"),
        ({"half_life_seconds": 0}, "half_life_seconds"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        gp.ThroughputLearner(HALF, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "steps", "seconds", "message"),
    [
        (("a", 1), 1, 1, "entry: must be"),
        ("a", 1, 1, "entry: must be"),
        (("a", 0, "v100"), 1, 1, "num_gpus above 0"),
        (("a", 1, "v100"), -1, 1, "steps: must be a finite number of at least 0"),
        (("a", 1, "v100"), math.nan, 0, "seconds: must be a finite number greater than 0"),
        (gp.Job("1", job_type="a"), 1, 1, "accelerator: is required"),
    ],
)
def test_wrong_observations(entry: object, steps: float, seconds: float, message: str) -> None:
    with pytest.raises(gp.InputError, match=message):
        gp.ThroughputLearner().observe(entry, steps=steps, seconds=seconds)  # type: ignore[arg-type]


def test_a_job_is_observed_where_it_ran() -> None:
    learner = gp.ThroughputLearner()
    learner.observe(gp.Job("1", job_type="a", num_gpus=2), "v100", steps=10, seconds=5)
    assert list(learner.observations) == [Entry("a", 2, "v100")]
