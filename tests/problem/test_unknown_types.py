"""Accelerator types that the profile lacks: an error where cluster and profile meet, unless allowed; never later."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp
from gavel_py import AllocationProblem, Cluster, Job
from gavel_py.cli.inputs import warnings_shown
from tests.support.commands import Gavel, runner
from tests.support.fakes import FakeProfile, refusal

PROFILE = FakeProfile({"t": {"h100": 4.0, "v100": 2.0}}, name="lab")
MIXED = Cluster.from_counts({"v100": 8, "t4": 32, "p4": 4})
JOBS = [Job("a", job_type="t", total_steps=4000), Job("b", job_type="t", num_gpus=2, total_steps=4000)]

MAKERS: dict[str, Callable[..., Any]] = {
    "from_jobs": lambda cluster, **options: AllocationProblem.from_jobs(JOBS, cluster, PROFILE, **options),
    "RoundScheduler": lambda cluster, **options: gp.RoundScheduler(cluster, PROFILE, **options),
    "Simulation": lambda cluster, **options: gp.Simulation(JOBS, cluster, PROFILE, **options),
    "simulate": lambda cluster, **options: gp.simulate(JOBS, cluster, PROFILE, **options),
    "known_to": lambda cluster, **options: cluster.known_to(PROFILE, **options),
}
make = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class TestAnError:
    @make
    def test_the_message_lists_known_types_and_remedies(self, make: Callable[..., Any]) -> None:
        first, second, remedy = refusal(make, MIXED).splitlines()
        has = "is not in profile 'lab', which has h100, v100; its"
        assert first == f"cluster, field accelerator 't4': {has} 32 GPUs cannot be used"
        assert second == f"cluster, field accelerator 'p4': {has} 4 GPUs cannot be used"
        for way in ("job_type, num_gpus, accelerator, steps_per_second", "--map-accelerator", "allow_unknown_types=True"):
            assert way in remedy

    @make
    def test_of_its_own_class(self, make: Callable[..., Any]) -> None:
        with pytest.raises(gp.UnknownNameError):
            make(MIXED)

    @make
    @pytest.mark.parametrize("near", ["h10", "h1000", "v10", "vh100"])
    def test_without_a_name_that_comes_near(self, make: Callable[..., Any], near: str) -> None:
        assert "did you mean" not in refusal(make, Cluster.from_counts({"v100": 8, near: 1}))

    @make
    def test_also_where_it_is_allowed_if_none_is_known(self, make: Callable[..., Any]) -> None:
        told = refusal(make, Cluster.from_counts({"t4": 2}), allow_unknown_types=True)
        assert "'t4': is not in profile 'lab'" in told
        assert "allow" not in told

    @make
    def test_not_for_a_type_without_gpus(self, make: Callable[..., Any]) -> None:
        with pytest.warns(gp.GavelWarning, match="0 GPUs are ignored: accelerator 't4'"):
            make(Cluster.from_counts({"v100": 8, "t4": 0}))


class TestAllowed:
    @make
    def test_they_are_left_out_with_a_warning_each(self, make: Callable[..., Any]) -> None:
        with pytest.warns(gp.GavelWarning) as caught:
            make(MIXED, allow_unknown_types=True)
        assert [str(each.message) for each in caught] == [
            "32 GPUs are ignored: accelerator 't4' is not in profile 'lab', which has h100, v100",
            "4 GPUs are ignored: accelerator 'p4' is not in profile 'lab', which has h100, v100",
        ]

    @pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
    def test_the_cluster_tells_of_them(self) -> None:
        scheduler = gp.RoundScheduler(MIXED, PROFILE, allow_unknown_types=True)
        assert (scheduler.cluster.accelerator_names, scheduler.cluster.left_out) == (("v100",), {"t4": 32, "p4": 4})
        assert MIXED.left_out == {}
        assert AllocationProblem.from_jobs(JOBS, MIXED, PROFILE, allow_unknown_types=True).capacities.tolist() == [8]


class TestOtherCase:
    CLUSTER = Cluster(
        [gp.Node(name="n", accelerator="H100", num_gpus=4), gp.Node(name="m", accelerator="V100", num_gpus=2)],
        [gp.AcceleratorType(name="H100", price_per_hour=3.0, memory_gb=80)],
    )
    NOTES = (
        "accelerators of the cluster are treated as those of profile 'lab': 'H100' as 'h100', 'V100' as 'v100'; "
        "they differ only in case",
    )

    @make
    def test_is_matched_with_a_note(self, make: Callable[..., Any]) -> None:
        with pytest.warns(gp.GavelWarning) as caught:
            make(self.CLUSTER)
        assert tuple(str(each.message) for each in caught) == self.NOTES

    def test_a_name_that_is_known_from_specifications_alone(self) -> None:
        """The note does not claim a measurement that the profile lacks."""
        measured = gp.Measurement(job_type="t", num_gpus=1, accelerator="v100", steps_per_second=2)
        profile = gp.ThroughputProfile("alias", [measured]).with_estimates()
        text = r"'a100' of the cluster is treated as 'a100-80gb' of the specifications \(profile 'alias' has no measurement\)"
        with pytest.warns(gp.GavelWarning, match=text):
            Cluster.from_counts({"a100": 1}).known_to(profile)

    def test_one_gpu_is_singular(self) -> None:
        with pytest.raises(gp.UnknownNameError, match="its 1 GPU cannot be used"):
            Cluster.from_counts({"nosuch": 1, "v100": 1}).known_to(PROFILE)

    @pytest.mark.parametrize("made", ["from_jobs", "RoundScheduler", "known_to"])
    def test_the_note_points_at_the_caller(self, made: str) -> None:
        calls: dict[str, Callable[[], Any]] = {
            "from_jobs": lambda: AllocationProblem.from_jobs(JOBS, self.CLUSTER, PROFILE),
            "RoundScheduler": lambda: gp.RoundScheduler(self.CLUSTER, PROFILE),
            "known_to": lambda: None,
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            calls[made]()
        assert {each.filename for each in caught} <= {__file__}

    @pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
    def test_all_gpus_count(self) -> None:
        problem = AllocationProblem.from_jobs(JOBS, self.CLUSTER, PROFILE)
        assert (problem.accelerator_types, problem.capacities.tolist()) == (("h100", "v100"), [4, 2])
        assert problem.prices_per_hour.tolist()[0] == 3.0
        assert problem.throughputs.tolist() == [[4.0, 2.0], [4.0, 2.0]]

    @pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
    def test_names_elsewhere_may_be_those_of_the_cluster_or_of_the_profile(self) -> None:
        jobs = [
            Job("a", job_type="t", allowed_accelerators=["H100"], duration_seconds=100, duration_accelerator="H100"),
            Job("b", job_type="t", allowed_accelerators=["h100", "V100"], total_steps=9),
        ]
        problem = AllocationProblem.from_jobs(jobs, self.CLUSTER, PROFILE, running_on=["H100", "v100"])
        assert problem.runnable.tolist() == [[True, False], [True, True]]
        assert problem.total_steps.tolist() == [400, 9]
        assert problem.running_on.tolist() == [0, 1]
        for name in ("h100", "H100"):
            kept = gp.solve(problem, "max_total_throughput", constraints=[gp.Pin("b", name), gp.MaxGpus(1.5, accelerator=name)])
            assert kept.time_fractions.sum(axis=0).tolist() == pytest.approx([1.5, 0])
            banned = gp.solve(problem, "max_total_throughput", constraints=[gp.Forbid("b", name), gp.Reserve(name, 3, min_gang=2)])
            assert banned.time_fractions.tolist() == [[1, 0], [0, 1]]

    @pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
    def test_rounds_and_simulations(self) -> None:
        jobs = [Job("a", job_type="t", allowed_accelerators=["H100"], duration_seconds=720, duration_accelerator="V100")]
        scheduler = gp.RoundScheduler(self.CLUSTER, PROFILE)
        scheduler.submit(jobs[0])
        assert scheduler.next_round().assignments["a"].accelerator == "h100"
        assert gp.simulate(jobs, self.CLUSTER, PROFILE).jobs["a"].jct_seconds == 360

    def test_a_name_that_is_there_counts_as_it_is(self) -> None:
        both = FakeProfile({"t": {"h100": 4.0, "H100": 2.0}})
        problem = AllocationProblem.from_jobs([Job("a", job_type="t")], Cluster.from_counts({"H100": 1, "h100": 2}), both)
        assert problem.throughputs.tolist() == [[2.0, 4.0]]
        ambiguous = FakeProfile({"t": {"ab": 4.0, "AB": 2.0}})
        assert "'aB': is not in profile" in refusal(Cluster.from_counts({"aB": 1}).known_to, ambiguous)

    @pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
    def test_two_spellings_in_one_cluster_become_one_type(self) -> None:
        nodes = [gp.Node(name=name, accelerator=name, num_gpus=2) for name in ("V100", "v100")]
        assert Cluster(nodes).known_to(PROFILE).capacities.tolist() == [4]
        priced = [gp.AcceleratorType(name="V100", price_per_hour=3), gp.AcceleratorType(name="v100", price_per_hour=1)]
        told = refusal(Cluster(nodes, priced).known_to, PROFILE)
        assert told == (
            "cluster, field accelerator 'V100': is the same as 'v100', since they differ only in case, but has another price; "
            "rename one of them"
        )

    def test_another_name_of_the_same_accelerator_is_matched_too(self) -> None:
        cluster = Cluster.from_counts({"NVIDIA H100 80GB HBM3": 4, "Tesla V100-PCIE-16GB": 2})
        with pytest.warns(gp.GavelWarning, match="they name the same accelerator") as caught:
            problem = AllocationProblem.from_jobs(
                [Job("a", job_type="t", allowed_accelerators=["H100 SXM5 80GB"], total_steps=9)], cluster, PROFILE
            )
        assert len(caught) == 1
        assert problem.accelerator_types == ("h100", "v100")
        assert problem.capacities.tolist() == [4, 2]
        assert problem.runnable.tolist() == [[True, False]]

    def test_another_model_or_form_is_another_accelerator(self) -> None:
        for name in ("H100 PCIe", "H200", "V100-SXM2-32GB"):
            assert "is not in profile" in refusal(Cluster.from_counts({name: 1}).known_to, PROFILE)


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")
class TestNeverLater:
    def scheduler(self) -> gp.RoundScheduler:
        made = gp.RoundScheduler(MIXED, PROFILE, allow_unknown_types=True)
        made.submit_all(JOBS)
        made.next_round()
        return made

    def test_in_rounds(self) -> None:
        made = self.scheduler()
        made.node_down("v100-0")
        made.next_round()
        made.node_up("v100-0")
        made.submit(Job("c", job_type="t", allowed_accelerators=["T4", "v100"]))
        made.update("a", allowed_accelerators=["t4", "V100"])
        assert set(made.next_round().assignments) == {"a", "b", "c"}

    def test_from_a_saved_state(self, tmp_path: Path) -> None:
        made = self.scheduler()
        made.save(tmp_path / "state")
        again = gp.RoundScheduler.load(tmp_path / "state", PROFILE)
        assert again.cluster.left_out == {"t4": 32, "p4": 4}
        assert again.next_round() == made.next_round()

    def test_in_a_simulation_that_goes_on(self, tmp_path: Path) -> None:
        simulation = gp.Simulation(JOBS, MIXED, PROFILE, allow_unknown_types=True)
        simulation.step()
        simulation.save(tmp_path / "state")
        assert gp.Simulation.load(tmp_path / "state", JOBS, PROFILE).run().jobs == simulation.run().jobs

    def test_another_profile_must_have_the_types_in_use(self) -> None:
        made = self.scheduler()
        made.profile = FakeProfile({"t": {"v100": 1.0, "t4": 1.0}})
        told = refusal(setattr, made, "profile", FakeProfile({"t": {"v10": 1.0}}))
        assert told == "round scheduler, field profile: lacks accelerator 'v100', which the cluster has; it has v10"


class TestCommands:
    @pytest.fixture
    def gavel(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
        Path("jobs.csv").write_text("job_id,job_type,total_steps\na,x,5000\nb,x,5000\n")
        rows = "".join(f"x,1,{name},{speed}\n" for name, speed in (("h100", 5), ("v100", 2)))
        Path("lab.csv").write_text(f"job_type,num_gpus,accelerator,steps_per_second\n{rows}")
        return runner(capsys)

    COMMANDS = (
        ("solve", "jobs.csv"),
        ("rounds", "jobs.csv"),
        ("explain", "a", "jobs.csv"),
        ("simulate", "jobs.csv"),
        ("sweep", "-p", "fifo", "--trace", "jobs.csv", "--workers", "1", "--no-progress"),
    )
    ON = ("-c", "H100:2,v100:1,t4:32", "--profile", "lab.csv")
    commands = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])

    @commands
    def test_refuse(self, gavel: Gavel, command: tuple[str, ...]) -> None:
        outcome = gavel(*command, *self.ON)
        assert (outcome.code, outcome.out) == (2, "")
        assert "accelerator 't4': is not in profile 'lab', which has h100, v100; its 32 GPUs cannot be used" in outcome.err
        assert "did you mean" not in outcome.err
        assert "--allow-unknown-types" in outcome.err
        assert "'H100' of the cluster is treated as 'h100' of profile 'lab'" in outcome.err
        assert "'H100': is not" not in outcome.err

    @commands
    def test_or_show_the_gpus_as_not_used(self, gavel: Gavel, command: tuple[str, ...]) -> None:
        outcome = gavel(*command, *self.ON, "--allow-unknown-types")
        assert outcome.code == 0
        assert outcome.err.count("32 GPUs are ignored: accelerator 't4' is not in profile 'lab'") == 1
        assert "GPUs not used, since the profile lacks their type: 32 of t4\n" in outcome.out
        assert outcome.err.splitlines()[-1] == "GPU names: 1 found in the profile under other names; gavel -v lists them"
        assert "treated as" not in outcome.err

    def test_names_under_which_gpus_were_found_are_listed_on_demand(self, gavel: Gavel) -> None:
        outcome = gavel("-v", "solve", "jobs.csv", "-c", "H100:2,V100:1", "--profile", "lab.csv")
        assert f"warning: {TestOtherCase.NOTES[0]}\n" in outcome.err
        assert "GPU names: " not in outcome.err
        brief = gavel("solve", "jobs.csv", "-c", "H100:2,V100:1", "--profile", "lab.csv")
        assert brief.err == "GPU names: 2 found in the profile under other names; gavel -v lists them\n"

    def test_names_are_listed_beside_an_error(self, gavel: Gavel) -> None:
        outcome = gavel("solve", "jobs.csv", "-c", "H100:2,V100:1", "--profile", "lab.csv", "--what-if", "none=1")
        assert outcome.code == 2
        assert outcome.err.index(TestOtherCase.NOTES[0]) < outcome.err.index("none")
        assert "GPU names: " not in outcome.err

    def test_names_are_listed_outside_a_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        with warnings_shown():
            warnings.warn(gp.NameWarning("'A' is 'a'"), stacklevel=1)
        assert capsys.readouterr().err == "warning: 'A' is 'a'\n"

    @pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[1], COMMANDS[3]], ids=lambda command: command[0])
    def test_in_json_too(self, gavel: Gavel, command: tuple[str, ...]) -> None:
        assert json.loads(gavel(*command, *self.ON, "--allow-unknown-types", "--json").out)["unused_gpus"] == {"t4": 32}
        assert "unused_gpus" not in json.loads(gavel(*command, "-c", "v100:1", "--profile", "lab.csv", "--json").out)

    def test_what_if(self, gavel: Gavel) -> None:
        outcome = gavel(
            "solve", "jobs.csv", *self.ON[:1], "H100:2,v100:1", *self.ON[2:], "--what-if", "H100+1", "--what-if", "NVIDIA h100=9"
        )
        assert outcome.code == 0
        assert gavel("solve", "jobs.csv", *self.ON, "--allow-unknown-types", "--what-if", "t4+1").code == 2

    def test_names_of_the_profile_and_the_cluster_in_one_command(self, gavel: Gavel) -> None:
        Path("limits.yaml").write_text(
            "constraints: [{kind: pin, job: a, accelerators: [V100]}, {kind: pin, job: b, accelerators: H100}]\n"
        )
        outcome = gavel(
            "solve", "jobs.csv", "-c", "H100:2,v100:1", "--profile", "lab.csv", "--constraints", "limits.yaml", "--json"
        )
        jobs = json.loads(outcome.out)["jobs"]
        assert [job["time_fractions"] for job in jobs] == [{"h100": 0, "v100": 1}, {"h100": 1, "v100": 0}]

    def test_a_simulation_goes_on_without_the_option(self, gavel: Gavel) -> None:
        options = ("simulate", "jobs.csv", *self.ON)
        begun = gavel(*options, "--allow-unknown-types", "--save-state", "state", "--state-every", "1rounds", "--json")
        gone_on = gavel(*options, "--continue", "state", "--json")
        assert gone_on.code == 0
        assert "32 GPUs are ignored" in gone_on.err
        ended = [json.loads(each.out)["policies"][0] for each in (begun, gone_on)]
        assert ended[0]["ended_seconds"] == ended[1]["ended_seconds"]

    def test_throughputs_by_job(self, gavel: Gavel) -> None:
        Path("speeds.csv").write_text("job_id,V100,k80\na,4,1\nb,2,2\n")
        outcome = gavel("solve", "jobs.csv", "-c", "v100:1,k80:1", "--throughputs", "speeds.csv", "--json")
        assert json.loads(outcome.out)["accelerator_types"] == ["V100", "k80"]
        assert "column of --throughputs" in gavel("solve", "jobs.csv", "-c", "v100:1,k8:1", "--throughputs", "speeds.csv").err


@pytest.mark.filterwarnings("ignore:accelerator 'V100' of the cluster:gavel_py.GavelWarning")
class TestSweeps:
    def spec(self, gpus: int, **keys: Any) -> dict[str, Any]:
        # A process warns once per cluster, so each test has its own clusters.
        clusters = [{"v100": 1, "t4": gpus}, {"V100": 2}]
        return {"policies": ["fifo"], "traces": [{"generate": {"jobs": 2}}], "clusters": clusters} | keys

    def test_refuse(self) -> None:
        told = refusal(gp.plan_sweep, self.spec(3))
        assert "cluster 'v100:1,t4:3', cluster, field accelerator 't4': is not in profile 'gavel-osdi20'" in told

    @pytest.mark.deep
    @pytest.mark.parametrize(("gpus", "mode"), [(4, "simulate"), (5, "solve")])
    def test_allow(self, gpus: int, mode: str) -> None:
        spec = self.spec(gpus, mode=mode, allow_unknown_types=True)
        with pytest.warns(gp.GavelWarning, match=f"{gpus} GPUs are ignored: accelerator 't4' is not in profile 'gavel-osdi20'"):
            plan = gp.plan_sweep(spec if mode == "solve" else spec | {"settings": {"until_seconds": 600}})
        assert plan.unused_gpus == {f"v100:1,t4:{gpus}": {"t4": gpus}}
        assert [row["status"] for row in plan.play(workers=1)] == ["done", "done"]

    def test_a_key_of_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "sweep.yaml"
        lines = ("policies: [fifo]", "traces: [{generate: {jobs: 2}}]", "clusters: ['v100:1,t4:6']", "allow_unknown_types: yes")
        path.write_text("\n".join(lines))
        with pytest.warns(gp.GavelWarning, match="6 GPUs are ignored"):
            assert len(gp.plan_sweep(path)) == 1
