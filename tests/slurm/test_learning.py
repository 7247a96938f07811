"""A driver that learns speeds from its jobs: what it observes, believes and keeps, also after it was killed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from tests.slurm.fake_slurm import FakeClock, FakeSlurm
from tests.slurm.support import BERT, LSTM, KilledError, cluster, driver, dying_at, events, profile, recorded_commands
from tests.support.commands import Gavel, runner

ROUND, LOADING = 100.0, 50.0
TRUE = {("bert", "v100"): 8.0, ("bert", "k80"): 2.0, ("lstm", "v100"): 3.0, ("lstm", "k80"): 2.0}
KNOWN = {("bert", "v100"), ("lstm", "k80")}
MISSING = TRUE.keys() - KNOWN


def half() -> gp.ThroughputProfile:
    """Return the small profile without half of its figures."""
    return gp.ThroughputProfile("half", [m for m in profile().measurements if (m.job_type, m.accelerator) in KNOWN])


class Lab:
    """A cluster whose jobs load for a while after each start, and then write steps at their true speed to progress files."""

    def __init__(self, folder: Path, jobs: Mapping[str, int], true: Mapping[tuple[str, str], float] = TRUE) -> None:
        self.slurm, self.progress, self.true = cluster(), folder / "progress", true
        self.progress.mkdir()
        self.steps: dict[int, float] = {}
        self.types: dict[int, str] = {}
        for comment, count in jobs.items():
            for _ in range(count):
                number = len(self.types) + 1
                self.types[number] = comment.split("type=")[1].split()[0]
                self.slurm.submit(number, per_job="gpu:1", comment=comment)

    def pass_round(self) -> None:
        """Let the time of a round pass."""
        began = self.slurm.clock.seconds
        self.slurm.clock.seconds += ROUND
        for number, job in self.slurm.jobs.items():
            if job.held:
                name = self.slurm.nodes[next(iter(job.held))][0]
                seconds = max(0.0, self.slurm.clock.seconds - max(began, job.start + LOADING))
                self.steps[number] = self.steps.get(number, 0.0) + self.true[self.types[number], name] * seconds
                (self.progress / str(number)).write_text(f"{self.steps[number]:.1f}")

    def drive(self, driven: gp.SlurmDriver, rounds: int) -> None:
        """Drive some rounds."""
        for _ in range(rounds):
            driven.round()
            self.pass_round()

    def driver(self, folder: Path, learner: gp.ThroughputLearner, **options: Any) -> gp.SlurmDriver:
        return driver(self.slurm, folder, speeds=learner, progress=self.progress, **options)


def learned(learner: gp.ThroughputLearner, entries: set[tuple[str, str]]) -> dict[tuple[str, str], float]:
    return {(kind, name): learner.profile.throughput(kind, 1, name) for kind, name in entries}


@pytest.mark.guard
@pytest.mark.parametrize("explore", ["optimistic", 0.25])
def test_missing_speeds_are_learned_and_survive_a_kill(tmp_path: Path, explore: Any) -> None:
    lab, state, store = Lab(tmp_path, {BERT: 6, LSTM: 6}), tmp_path / "state", gp.ThroughputStore(tmp_path / "store.sqlite")
    learner = gp.ThroughputLearner(half(), explore)
    with lab.driver(state, learner, store=store) as driven:
        lab.drive(driven, 16)
        with dying_at(lab.slurm, 3), pytest.raises(KilledError):
            driven.round()
    truth = {entry: pytest.approx(TRUE[entry], rel=0.1) for entry in MISSING}
    assert learned(learner, MISSING) == truth
    assert not learner.contradictions, "loading is not part of the rates"
    kept = store.observations("slurm")
    assert {(e.job_type, e.accelerator): rate.rate for e, rate in kept.items() if (e.job_type, e.accelerator) in MISSING} == truth
    assert learned(gp.ThroughputLearner(half(), explore, observations=kept), MISSING) == truth
    again = gp.ThroughputLearner(half(), explore)
    with lab.driver(state, again, store=store) as driven:
        driven.look()
        assert learned(again, MISSING) == truth
        assert driven.state is not None
        assert driven.state.scheduler.learner is again
        before = again.observations
        lab.drive(driven, 4)
    assert sum(each.count for each in again.observations.values()) > sum(each.count for each in before.values()) + 4


def test_no_job_is_left_to_slurm_for_want_of_a_speed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, {"gavel: type=llama steps=100000": 1, BERT: 2}, TRUE | {("llama", "v100"): 5.0, ("llama", "k80"): 1.5})
    lab.slurm.jobs[2].per_job = "gpu:3"  # a gang of a size that nothing is known of
    learner = gp.ThroughputLearner(half())
    with lab.driver(tmp_path / "state", learner) as driven:
        lab.drive(driven, 6)
        assert driven.state is not None
        assert not driven.state.unplanned
        assert driven.state.tracked["1"].job_type == "llama"
    seen = {entry[:3]: rate.rate for entry, rate in learner.observations.items()}
    assert any(entry[:2] == ("bert", 3) for entry in seen)
    found = next(rate for entry, rate in seen.items() if entry[0] == "llama")
    assert min(abs(math.log(found / rate)) for rate in (5.0, 1.5)) < 0.01


def test_what_is_only_reckoned_teaches_nothing(tmp_path: Path) -> None:
    """Without progress files, steps follow from the speed that is to be learned."""
    lab, learner = Lab(tmp_path, {BERT: 6, LSTM: 6}), gp.ThroughputLearner(half())
    with driver(lab.slurm, tmp_path / "state", speeds=learner) as driven:
        lab.drive(driven, 8)
        assert driven.state is not None
        assert sum(job.steps_done for job in driven.state.tracked.values()) > 0
    assert not learner.observations


@pytest.mark.parametrize(("rounds", "counts"), [(12, True), (3, False)])
def test_long_finished_runs_without_progress_files_count(tmp_path: Path, rounds: int, counts: bool) -> None:
    slurm, learner = cluster(), gp.ThroughputLearner(half())
    steps = 2 * rounds * ROUND
    slurm.submit(1, per_job="gpu:1", comment=f"gavel: type=bert steps={steps}", more={"features": "k80"})
    with driver(slurm, tmp_path, speeds=learner) as driven:
        for _ in range(rounds):
            driven.round()
            slurm.clock.seconds += ROUND
        slurm.end(1)
        driven.round()
    rates = {entry: rate.rate for entry, rate in learner.observations.items()}
    assert rates == ({gp.throughput_profiles.Entry("bert", 1, "k80"): pytest.approx(2.0, rel=0.02)} if counts else {})


@pytest.mark.parametrize(("options", "count"), [({}, 1), ({"trust": 2.0}, 0), ({"trust": 2.0, "trusted": {"anna": 20.0}}, 1)])
def test_rates_count_within_the_trust_in_users(tmp_path: Path, options: dict[str, Any], count: int) -> None:
    guess = gp.ThroughputLearner(half()).measured.with_estimates().throughput("bert", 1, "k80")
    lab, learner = Lab(tmp_path, {BERT: 1}, {("bert", "k80"): guess / 5}), gp.ThroughputLearner(half())
    lab.slurm.jobs[1].more["features"] = "k80"
    with lab.driver(tmp_path / "state", learner, **options) as driven:
        if count:
            lab.drive(driven, 4)
        else:
            with pytest.warns(gp.GavelWarning, match="it was not averaged, and further ones are counted without a message"):
                lab.drive(driven, 4)
    assert len(learner.observations) == count


def test_contradictions_are_in_the_log_and_on_standard_error(tmp_path: Path) -> None:
    lab, learner = Lab(tmp_path, {BERT: 1}, TRUE | {("bert", "v100"): 4.0}), gp.ThroughputLearner(half())
    with (
        pytest.warns(gp.GavelWarning, match="observed at 4, .* standard deviations from the expected 8;"),
        lab.driver(tmp_path / "state", learner) as driven,
    ):
        lab.drive(driven, 6)
    assert driven.state is not None
    assert driven.state.speeds.speed("bert", 1, "v100") == 8.0, "what was measured stays"
    (found,) = events(tmp_path / "state", "contradiction")
    assert found["why"].startswith("'bert' on 1 x v100 (consolidated) was observed at 4, ")


def test_learning_may_begin_and_end_between_two_starts(tmp_path: Path) -> None:
    lab, state, store = Lab(tmp_path, {BERT: 6, LSTM: 6}), tmp_path / "state", gp.ThroughputStore(tmp_path / "store.sqlite")
    with driver(lab.slurm, state, progress=lab.progress) as driven:
        lab.drive(driven, 2)
    learner = gp.ThroughputLearner(half())
    with lab.driver(state, learner, store=store) as driven:
        lab.drive(driven, 5)
        running = {number for number, job in lab.slurm.jobs.items() if job.held}
    assert learner.observations
    with driver(lab.slurm, state, progress=lab.progress) as driven:
        decided, _ = driven.round()
        assert len(decided.moves.keep) == len(running), "whoever runs stays"
        assert driven.state is not None
        assert driven.state.speeds.speed("bert", 1, "k80") == 2.0
        assert driven.state.scheduler.learner is None
    assert store.observations("slurm") == learner.observations


def test_a_store_that_fails_gets_the_observations_later(tmp_path: Path) -> None:
    lab, learner, store = Lab(tmp_path, {BERT: 6, LSTM: 6}), gp.ThroughputLearner(half()), gp.ThroughputStore(tmp_path / "s.sqlite")

    def fails(*_: object) -> None:
        raise gp.InputError("the server has gone away")

    with lab.driver(tmp_path / "state", learner, store=store) as driven:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "save_observations", fails)
            with pytest.warns(gp.GavelWarning, match="not stored: the server has gone away"):
                lab.drive(driven, 6)
        assert learner.observations
        driven.round()
    assert store.observations("slurm") == learner.observations


def test_gpu_types_that_only_the_specifications_know_are_used(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock(), {"v100-0": ("v100", 4), "l40s-0": ("l40s", 4), "abacus-0": ("abacus", 4)})
    for number in range(1, 7):
        slurm.submit(number, per_job="gpu:1", comment=BERT)
    with driver(slurm, tmp_path, speeds=gp.ThroughputLearner(half())) as driven:
        decided, applied = driven.round()
    assert {slurm.nodes[node][0] for job in slurm.jobs.values() for node in job.held} == {"v100", "l40s"}
    assert len(applied.started) == 6
    assert any("does not have GPU type 'abacus'" in note for note in decided.picture.notes)


def test_a_learner_that_knows_nothing_needs_a_default_type(tmp_path: Path) -> None:
    with pytest.raises(gp.InputError, match="has no job types; name a default type"):
        driver(cluster(), tmp_path, speeds=gp.ThroughputLearner())
    lab, learner = Lab(tmp_path, {BERT: 3}), gp.ThroughputLearner()
    with lab.driver(tmp_path / "state", learner, default_type="other") as driven:
        lab.drive(driven, 4)
    assert {entry.job_type for entry in learner.observations} == {"bert"}


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """The command with a recorded cluster."""
    monkeypatch.setenv("PATH", f"{recorded_commands(tmp_path / 'bin')}:/usr/bin:/bin")
    return runner(capsys, "slurm")


def test_the_command_learns_from_what_its_store_has(gavel: Gavel, tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    gp.ThroughputStore(store).observe("slurm", ("own", 1, "v100"), steps=100, seconds=10)
    half().to_csv(tmp_path / "half.csv")
    options = ("--partition", "opt", "--profile", str(tmp_path / "half.csv"), "--store", str(store), "--state", str(tmp_path / "s"))
    done = gavel("status", *options, "--learn", "median", "--type-of", "*=own")
    assert done.code == 0, done.err
    assert " own " in done.out
    assert gavel("plan", *options, "--learn").code == 0
    refused = gavel("status", *options, "--learn", "--estimate")
    assert (refused.code, "--learn estimates speeds that are not known; omit --estimate" in refused.err) == (2, True)
    (tmp_path / "store.sqlite").write_text("no database")
    done = gavel("status", *options, "--learn")
    assert (done.code, "observed speeds were not read: " in done.err) == (0, True)
