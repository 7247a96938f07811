"""Observations in a store: beside measurements, for learners to start from and save to, by several writers."""

import math
import threading
from pathlib import Path

import pytest

import gavel_py as gp

KEY = gp.throughput_profiles.Entry("bert", 2, "v100")


@pytest.fixture
def store(tmp_path: Path) -> gp.ThroughputStore:
    return gp.ThroughputStore(tmp_path / "store.sqlite")


def test_rates_are_counted_with_their_variance_and_age(store: gp.ThroughputStore) -> None:
    for number, rate in enumerate((2.0, 4.0)):
        store.observe("mine", KEY, steps=rate * 60, seconds=60, at=100.0 * number, half_life_seconds=100.0)
    (found,) = store.observations("mine").values()
    expected = gp.ObservedRate().including(2.0, 0.0, 100.0).including(4.0, 100.0, 100.0)
    assert found == expected
    assert found.count == pytest.approx(1.5)
    assert found.log_mean == pytest.approx((0.5 * math.log(2) + math.log(4)) / 1.5)


def test_measurements_are_never_overwritten(store: gp.ThroughputStore) -> None:
    measured = gp.Measurement(job_type="bert", num_gpus=2, accelerator="v100", steps_per_second=3.0)
    store.save(gp.ThroughputProfile("mine", [measured], url="https://example.org"))
    store.observe("mine", gp.Job("1", job_type="bert", num_gpus=2), "v100", steps=500, seconds=100)
    store.observe("mine", ("bert", 1, "v100", "consolidated", "gpt"), steps=0.5, seconds=1)
    assert store.load("mine").rows == (measured.row(),)
    store.save(gp.ThroughputProfile("mine", [measured]), replace=True)
    assert store.load("mine").url == ""
    assert list(store.observations("mine")) == [KEY, gp.throughput_profiles.Entry("bert", 1, "v100", "consolidated", "gpt")]
    store.delete("mine")
    store.save(gp.ThroughputProfile("mine", []))
    assert store.observations("mine") == {}


def test_an_observation_that_comes_late_does_not_turn_the_clock_back() -> None:
    """It counts fully, and the others do not age a second time."""
    seen = gp.ObservedRate().including(2.0, 100.0, 100.0).including(2.0, 0.0, 100.0)
    assert (seen.count, seen.last_seconds) == (2.0, 100.0)
    assert seen.including(2.0, 100.0, 100.0).count == 3.0


def test_a_learner_starts_from_a_store_and_saves_to_it(store: gp.ThroughputStore) -> None:
    learner = gp.ThroughputLearner()
    for _ in range(3):
        learner.observe(KEY, steps=300, seconds=100, at=5.0)
    learner.observe(("half", 0.5, "v100"), steps=1, seconds=1)
    store.save_observations("mine", learner.observations)
    again = gp.ThroughputLearner(observations=store.observations("mine"))
    assert again.observations == learner.observations
    assert again.profile.throughput(*KEY) == learner.profile.throughput(*KEY)
    learner.observe(KEY, steps=310, seconds=100, at=6.0)
    store.save_observations("mine", learner.observations)
    assert store.observations("mine") == learner.observations


def test_writers_do_not_lose_each_others_observations(store: gp.ThroughputStore) -> None:
    def write() -> None:
        for _ in range(10):
            store.observe("mine", KEY, steps=3, seconds=1, at=0.0)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.observations("mine")[KEY].count == pytest.approx(40)


def test_a_writer_waits_for_one_that_has_begun_and_not_yet_written(store: gp.ThroughputStore) -> None:
    """Two that had both read before the first wrote could not go on: SQLite would end one of them at once."""
    second = threading.Thread(target=store.observe, args=("mine", KEY), kwargs={"steps": 3, "seconds": 1})
    store.save(gp.ThroughputProfile("other", []))
    with store._database.writing() as session:
        second.start()
        second.join(0.5)  # as far as it comes
        session.execute("DELETE FROM profiles")
    second.join(60)
    assert store.observations("mine")[KEY].count == 1
    assert "other" not in store.names()


def test_what_a_store_refuses(store: gp.ThroughputStore) -> None:
    with pytest.raises(gp.InputError, match="built-in profile"):
        store.observe("gavel-osdi20", KEY, steps=1, seconds=1)
    with pytest.raises(gp.InputError, match="seconds: must be a finite number greater than 0"):
        store.observe("mine", KEY, steps=1, seconds=0)
    with pytest.raises(gp.UnknownNameError, match="has no profile"):
        store.observations("mine")
    store.observe("mine", KEY, steps=0, seconds=1)
    assert store.names()[-1] != "mine"
    assert store.observations("gavel-osdi20") == {}
