"""A driver with estimates: measurements of running jobs improve them, GPU types that nobody has measured are used, and a driver
may be started again with or without them."""

from __future__ import annotations

from pathlib import Path

import pytest

import gavel_py as gp
from gavel_py.integrations.slurm.speeds import Speeds
from tests.slurm.fake_slurm import FakeClock, FakeSlurm
from tests.slurm.support import BERT, LSTM, driver, profile

MODERN = {f"{name}-0": (name, 4) for name in ("a100", "a30", "b200", "h100", "h200", "l40s")}
STARTS = ("neither", "estimate", "learn")


def lab() -> gp.EstimatedProfile:
    """Two job types of which the second was measured on one GPU type only, by the first method that needs few figures."""
    speeds = {("a", "v100"): 4.0, ("a", "k80"): 1.0, ("b", "v100"): 8.0}
    rows = [gp.Measurement(job_type=job, num_gpus=1, accelerator=name, steps_per_second=v) for (job, name), v in speeds.items()]
    return gp.ThroughputProfile("lab", rows).with_estimates("additive", confidence=0.8)


def test_estimates_stay_when_something_is_measured() -> None:
    profile = lab()
    guess = profile.throughput("b", 1, "k80")
    speeds = Speeds(profile)
    assert speeds.speed("b", 1, "k80") == guess
    measured = Speeds(profile, {("b", 1, "k80"): 3.0})
    assert measured.speed("b", 1, "k80") == 3.0
    assert isinstance(measured.profile, gp.EstimatedProfile)
    assert (measured.profile.method, measured.profile.confidence) == ("additive", 0.8)
    assert measured.speed("a", 1, "v100") == 4.0
    assert measured.speed("b", 2, "k80") != speeds.speed("b", 2, "k80")  # learned from one GPU
    assert speeds.speed("b", 2, "k80") == pytest.approx(profile.throughput("b", 2, "k80"))


def test_without_estimates_only_gang_sizes_are_extrapolated() -> None:
    speeds = Speeds(lab().measured)
    assert speeds.speed("b", 1, "k80") == 0.0
    assert gp.throughput_profiles.Entry("b", 1, "k80") not in {m.entry for m in speeds.profile.measurements}


def site(nodes: dict[str, tuple[str, int]]) -> FakeSlurm:
    """Return a cluster with a job of 4 GPUs for each node, among them one of a type that only a learner takes for its own."""
    slurm = FakeSlurm(FakeClock(), nodes)
    for number in range(1, len(nodes) + 1):
        slurm.submit(number, per_job="gpu:4", comment="gavel: type=llama steps=100000" if number == 3 else (BERT, LSTM)[number % 2])
    return slurm


def speeds_of(start: str, known: gp.ThroughputProfile) -> gp.ThroughputProfile | gp.ThroughputLearner:
    """Return the speeds with which --estimate, --learn or neither of them starts a driver."""
    if start == "learn":
        return gp.ThroughputLearner(known)
    return known.with_estimates() if start == "estimate" else known


def used(slurm: FakeSlurm) -> set[str]:
    """Return the nodes on which jobs run."""
    return {node for job in slurm.jobs.values() for node in job.held}


class TestModernPartition:
    def test_without_estimates_one_message_names_all_types_and_the_ways_out(self, tmp_path: Path) -> None:
        with driver(site(MODERN), tmp_path) as driven, pytest.raises(gp.UnknownNameError) as error:
            driven.look()
        assert str(error.value) == (
            "profile small: does not have GPU types 'a100', 'a30', 'b200', 'h100', 'h200', 'l40s'; it has v100, k80; "
            "--estimate and --learn take speeds from specifications, --map-accelerator OLD=NEW maps a type to a name of the profile"
        )
        assert not (tmp_path / "state.json").exists()

    def test_types_that_have_no_specifications_either_are_an_error_too(self, tmp_path: Path) -> None:
        slurm = FakeSlurm(FakeClock(), {"x-0": ("abacus", 4)})
        with driver(slurm, tmp_path, speeds=profile().with_estimates()) as driven, pytest.raises(gp.UnknownNameError) as error:
            driven.look()
        assert "'abacus'; it has v100, k80, and no specifications are known either (GAVEL_PY_ACCELERATORS" in str(error.value)
        assert "--estimate" not in str(error.value)

    @pytest.mark.parametrize("start", ["estimate", "learn"])
    def test_every_node_is_used_and_those_that_cannot_be_are_named(self, tmp_path: Path, start: str) -> None:
        slurm = site(MODERN | {"x-0": ("abacus", 4), "x-1": ("abacus", 4)})
        with driver(slurm, tmp_path, speeds=speeds_of(start, profile())) as driven:
            decided, _ = driven.round()
        assert used(slurm) == set(MODERN)
        assumed, ignored = decided.picture.notes
        assert assumed.startswith("GPU type 'a100' is treated as 'a100-80gb' of the profile: they name the same accelerator; ")
        assert assumed.endswith("for another one: --map-accelerator a100=NAME")
        assert ignored.startswith("profile small does not have GPU type 'abacus'; it has v100, k80, and no specifications")
        assert ignored.endswith("its nodes are ignored: x-0, x-1")
        assert decided.picture.notes_on_nodes == decided.picture.notes

    def test_nodes_that_estimates_would_make_usable_say_so(self, tmp_path: Path) -> None:
        slurm = site(MODERN | {"v100-0": ("v100", 4)})
        with driver(slurm, tmp_path) as driven:
            notes = driven.look().notes
        assert len(notes) == len(MODERN)
        assert "are ignored (--estimate or --learn uses them by their specifications): a100-0" in notes[0]


class TestNextStart:
    @pytest.mark.parametrize("first", STARTS)
    @pytest.mark.parametrize("second", STARTS)
    def test_any_start_may_follow_any_other(self, tmp_path: Path, first: str, second: str) -> None:
        nodes = MODERN | {"v100-0": ("v100", 4)}
        slurm = site(nodes)
        for start in (first, second, second):
            with driver(slurm, tmp_path, speeds=speeds_of(start, profile())) as driven:
                driven.round()
                assert driven.state is not None
                assert not driven.state.unplanned
                assert driven.state.tracked.keys() == {str(number) for number in slurm.jobs}
            assert used(slurm) == ({"v100-0"} if start == "neither" else set(nodes))
            slurm.clock.seconds += 100

    def test_without_estimates_a_site_that_needs_them_keeps_its_state(self, tmp_path: Path) -> None:
        slurm = site(MODERN)
        for start in ("estimate", "neither", "estimate"):
            with driver(slurm, tmp_path, speeds=speeds_of(start, profile())) as driven:
                if start == "neither":
                    with pytest.raises(gp.UnknownNameError, match="--estimate and --learn"):
                        driven.round()
                else:
                    driven.round()
            assert used(slurm) == set(MODERN), "whoever runs stays"
            slurm.clock.seconds += 100
        assert driven.state is not None
        assert driven.state.rounds == 2

    @pytest.mark.parametrize("start", STARTS)
    def test_jobs_follow_the_speeds_of_the_new_start(self, tmp_path: Path, start: str) -> None:
        """A learner knows every type on every GPU; a profile knows bert on both, lstm on k80 only, and no llama."""
        known = gp.ThroughputProfile("half", [m for m in profile().measurements if (m.job_type, m.accelerator) != ("lstm", "v100")])
        slurm = site({"v100-0": ("v100", 4), "v100-1": ("v100", 4), "k80-0": ("k80", 4)})
        with driver(slurm, tmp_path, speeds=gp.ThroughputLearner(known)) as driven:
            driven.round()
        running = used(slurm)
        with driver(slurm, tmp_path, speeds=speeds_of(start, known), default_type="bert") as driven:
            driven.look()
            assert driven.state is not None
            jobs = {job.job_id: (job.job_type, job.allowed_accelerators) for job in driven.state.scheduler.jobs}
            places = ("k80",) if start == "neither" else None
            own = "llama" if start == "learn" else "bert"
            assert jobs == {"1": ("lstm", places), "2": ("bert", None), "3": (own, None)}
            assert driven.state.tracked["3"].is_known == (start == "learn"), "its speed is not that of the default type"
            assert set(driven.state.scheduler.running) == {"1", "2", "3"}
            driven.round()
        assert running == {"v100-0", "v100-1", "k80-0"}

    def test_jobs_of_a_partition_that_is_down_follow_them_too(self, tmp_path: Path) -> None:
        known = gp.ThroughputProfile("half", [m for m in profile().measurements if m.job_type != "llama"])
        slurm = site({"v100-0": ("v100", 4), "v100-1": ("v100", 4), "k80-0": ("k80", 4)})
        with driver(slurm, tmp_path, speeds=gp.ThroughputLearner(known)) as driven:
            driven.round()
        up, slurm.partitions = slurm.partitions, slurm.partitions.replace("=gpu ", "=gpu State=DOWN ")
        with driver(slurm, tmp_path, speeds=known, default_type="bert") as driven:
            driven.round()
            slurm.partitions = up
            slurm.clock.seconds += 100
            driven.round()
            assert driven.state is not None
            assert {job.job_type for job in driven.state.scheduler.jobs} == {"lstm", "bert"}

    @pytest.mark.parametrize("second", STARTS)
    def test_a_driver_that_saw_no_job_may_be_started_again(self, tmp_path: Path, second: str) -> None:
        slurm = site(MODERN | {"v100-0": ("v100", 4)})
        slurm.jobs, later = {}, slurm.jobs
        for start in ("estimate", second):
            with driver(slurm, tmp_path, speeds=speeds_of(start, profile())) as driven:
                driven.round()
            slurm.clock.seconds += 100
            slurm.jobs = later
        assert used(slurm) == ({"v100-0"} if second == "neither" else {*MODERN, "v100-0"})

    def test_speeds_in_another_unit_survive(self, tmp_path: Path) -> None:
        rows = [m.model_copy(update={"unit": "tokens/s"}) for m in profile().measurements]
        known, slurm = gp.ThroughputProfile("llm", rows), site(MODERN)
        for _ in range(2):
            with driver(slurm, tmp_path, speeds=known.with_estimates()) as driven:
                driven.round()
            slurm.clock.seconds += 100
        assert used(slurm) == set(MODERN)
        assert Speeds(known, {("bert", 1, "k80"): 3.0}).speed("bert", 1, "k80") == 3.0
