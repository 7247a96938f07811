"""Estimated speeds in the commands: how they are asked for, what is named, and what errors say."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import gavel_py as gp
from gavel_py.cli.estimates import sensitivity_text
from tests.support.commands import Gavel, enter_folder, runner, written

ROOT = Path(__file__).resolve().parents[2]
JOBS = """job_id,job_type,num_gpus,total_steps
a,ResNet-50 (batch size 64),1,100000
b,ResNet-50 (batch size 64),2,100000
c,LM (batch size 20),1,3000000
d,LM (batch size 40),1,2000000
"""
CLUSTER = "k80:4/4,p100:2/2,v100:2/2"
HIDDEN = (("ResNet-50 (batch size 64)", 1, "p100"), ("LM (batch size 40)", 1, "v100"), ("ResNet-50 (batch size 64)", 2, "k80"))


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """The command, in a folder with jobs.csv and mine.csv, a profile that lacks three figures that the jobs need."""
    enter_folder(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    written("jobs.csv", JOBS)
    builtin = gp.ThroughputProfile.builtin("gavel-osdi20")
    rows = [m for m in builtin.measurements if m.partner_job_type is None and m.placement == "consolidated"]
    known = [m for m in rows if (m.job_type, m.num_gpus, m.accelerator) not in HIDDEN]
    gp.ThroughputProfile("mine", known).to_csv("mine.csv")
    return runner(capsys)


PLACE = ("jobs.csv", "-c", CLUSTER, "--profile", "mine.csv")


@pytest.mark.parametrize("command", [("solve",), ("rounds",), ("explain", "a"), ("simulate",)])
def test_missing_speeds_are_an_error_that_names_the_option(gavel: Gavel, command: tuple[str, ...]) -> None:
    found = gavel(*command, *PLACE)
    assert found.code == 2
    assert "has no throughput of 'ResNet-50 (batch size 64)' on 1 x p100" in found.err
    hints = "gavel profiles missing lists what to measure\n--estimate fills in speeds that were not measured"
    assert found.err.strip().endswith(hints)
    assert gavel(*command, *PLACE, "--estimate").code == 0


@pytest.mark.deep
def test_estimates_of_elastic_jobs_are_those_of_each_number_of_gpus(gavel: Gavel) -> None:
    """Both jobs run on 4 L40S by an estimate; 8 fit no type, and those of 2 are of the gang."""
    speeds = "model (batch size 8),1,a100,1.1\nmodel (batch size 8),4,a100,3.9\nother,1,a100,6.1\nother,1,l40s,3.2\n"
    written("speeds.csv", "job_type,num_gpus,accelerator,steps_per_second\n" + speeds)
    kind = "model (batch size 8)"
    written("elastic.csv", f"job_id,job_type,num_gpus,gpu_counts\na,{kind},,1|4|8\nb,{kind},,1|4|8\nc,{kind},2,\n")
    place = ("elastic.csv", "-c", "a100:2/2,l40s:4/4", "--profile", "speeds.csv", "--estimate")
    document = json.loads(gavel("solve", *place, "--json").out)
    assert {(each["num_gpus"], each["accelerator"]) for each in document["estimates"]} == {
        *((1, "l40s"), (4, "l40s"), (2, "a100"), (2, "l40s"))
    }
    allocation = gp.solve(
        gp.AllocationProblem.from_jobs(
            gp.JobSet.from_file("elastic.csv"),
            gp.Cluster.from_inline("a100:2/2,l40s:4/4"),
            gp.ThroughputProfile.from_csv("speeds.csv").with_estimates(),
        )
    )
    held = sum(count * time for times in allocation.gpu_counts.values() for (_, count), time in times.items() if count == 4)
    assert held > 1
    (line,) = (line for line in gavel("solve", *place).out.splitlines() if line.split()[-7:-5] == ["4", "l40s"])
    assert float(line.split()[-1]) == pytest.approx(held, rel=1e-3)
    assert "1 l40s 0." in (explained := " ".join(gavel("explain", "a", *place).out.split()))
    assert ", 4 l40s 2." in explained


def test_errors_on_a_matrix_of_speeds_do_not_advise_estimates(gavel: Gavel) -> None:
    written("matrix.csv", "job_id,v100\na,1\nb,1\n")
    found = gavel("solve", "jobs.csv", "-c", CLUSTER, "--throughputs", "matrix.csv")
    assert found.code == 2
    assert "cannot be used" in found.err
    assert "estimate" not in found.err
    assert "profiles missing" not in found.err


@pytest.mark.deep
@pytest.mark.parametrize("command", ["rounds", "simulate"])
def test_rounds_and_simulations_say_how_many_speeds_are_estimates(gavel: Gavel, command: str) -> None:
    assert (
        "3 speeds of these jobs are estimates: --json lists them with their intervals." in gavel(command, *PLACE, "--estimate").out
    )
    listed = json.loads(gavel(command, *PLACE, "--estimate", "--json").out)["estimates"]
    assert {(each["job_type"], each["num_gpus"], each["accelerator"]) for each in listed} == set(HIDDEN)
    without = ("jobs.csv", "-c", CLUSTER)
    assert "estimate" not in gavel(command, *without).out
    assert "estimates" not in json.loads(gavel(command, *without, "--json").out)


def test_estimates_are_those_of_jobs_that_are_not_blocked(gavel: Gavel) -> None:
    written(
        "flow.csv",
        f"{JOBS.splitlines()[0]},depends_on\n"
        + "".join(f"{line},{'a' if n else ''}\n" for n, line in enumerate(JOBS.splitlines()[1:])),
    )
    found = gavel("solve", "flow.csv", *PLACE[1:], "--estimate")
    assert found.code == 0
    assert "1 estimated speed, those" in found.out


def test_each_estimate_is_named_with_its_interval(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *PLACE, "--estimate", "--json").out)
    named = {(each["job_type"], each["num_gpus"], each["accelerator"]) for each in document["estimates"]}
    assert named == set(HIDDEN)
    for each in document["estimates"]:
        assert 0 < each["low"] < each["steps_per_second"] < each["high"]
        assert each["source"].startswith("estimated (gaussian_process), 80%: ")
    text = gavel("solve", *PLACE, "--estimate").out
    assert "3 estimated speeds, those in use and least certain first" in text
    assert " to " in text.split("80 % interval")[1]
    assert max(map(len, text.splitlines())) <= 80
    assert "estimates" not in json.loads(gavel("solve", "jobs.csv", "-c", CLUSTER, "--json").out)


@pytest.mark.deep
def test_what_was_measured_needs_no_estimate(gavel: Gavel) -> None:
    text = gavel("solve", "jobs.csv", "-c", CLUSTER, "--estimate").out
    assert "No speed is estimated: those of all jobs that can run were measured." in text
    plain, estimated = (
        json.loads(gavel("solve", "jobs.csv", "-c", CLUSTER, "--json", *more).out) for more in ((), ("--estimate",))
    )
    assert estimated["jobs"] == plain["jobs"]
    assert estimated["estimates"] == []


def test_the_method_may_be_left_out_wherever_the_option_stands(gavel: Gavel) -> None:
    """The word after --estimate is its value only if it is a method."""
    first = json.loads(gavel("solve", "--estimate", *PLACE, "--json").out)
    last = json.loads(gavel("solve", *PLACE, "--json", "--estimate").out)
    assert first["estimates"] == last["estimates"]
    specs = json.loads(gavel("solve", "--estimate", "specs", *PLACE, "--json").out)
    assert json.loads(gavel("solve", "--estimate=specs", *PLACE, "--json").out)["estimates"] == specs["estimates"]
    assert specs["estimates"] != first["estimates"]
    misspelt = gavel("solve", "--estimate", "spec", *PLACE)
    assert misspelt.code == 2
    assert "'spec' is not one of 'gaussian_process', 'additive', 'specs'" in misspelt.err


def test_confidence_selects_a_quantile(gavel: Gavel) -> None:
    def speeds(*options: str) -> list[float]:
        return [
            each["steps_per_second"]
            for each in json.loads(gavel("solve", *PLACE, "--json", "--estimate", *options).out)["estimates"]
        ]

    median, sure, hopeful = speeds(), speeds("--confidence", "0.8"), speeds("--confidence", "optimistic")
    assert all(low < middle < high for low, middle, high in zip(sure, median, hopeful, strict=True))
    assert (
        gavel("solve", *PLACE, "--confidence", "0.8")
        .err.strip()
        .endswith("--confidence selects values of estimates; add --estimate")
    )
    wrong = gavel("solve", *PLACE, "--estimate", "--confidence", "1.5").err
    assert "'1.5' is neither a probability above 0 and below 1 nor 'optimistic'" in wrong


@pytest.mark.deep
def test_sensitivity_names_what_to_measure_first(gavel: Gavel) -> None:
    text = gavel("solve", *PLACE, "--estimate", "--sensitivity").out
    assert "Measure first: " in text
    assert "of the worst-off job's share" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    found = json.loads(gavel("solve", *PLACE, "--estimate", "--sensitivity", "--json").out)["sensitivity"]
    assert found["estimates"] == 3
    regrets = [each["regret"] for each in found["effects"]]
    assert regrets == sorted(regrets, reverse=True)
    first = found["effects"][0]
    assert f"Measure first: {first['job_type']}" in " ".join(text.split())


@pytest.mark.parametrize(
    ("shown", "examined", "largest_other", "text"),
    [
        (2, 10, 0.0, "; the other 15 cannot change it."),
        (0, 0, 0.0, "; none of 17 can change it."),
        (2, 10, 0.0123, "; none of the other 15 can cost more than 1.2 % of the cost."),
        (2, 10, None, "; 7 of the other 15 not examined."),
        (1, 16, 0.0123, "; none of the other 16 can cost more than 1.2 % of the cost."),
        (16, 16, None, "; the other one not examined."),
        (17, 17, 0.0, "80 % interval."),
    ],
)
def test_counts_of_estimates_add_up(shown: int, examined: int, largest_other: float | None, text: str) -> None:
    """The number in the clause and the rows of the table are all estimates."""
    estimate = gp.Estimate(gp.throughput_profiles.Entry("a", 1, "v100"), 1.0, 1.0, 0.5, 2.0, "estimated")
    effects = [gp.EstimateEffect(estimate, 1, 1.0, 0.1 * (n < shown), 0.0) for n in range(examined)]
    allocation = SimpleNamespace(policy="min_cost")
    found = gp.Sensitivity(allocation, tuple(effects), 17, largest_other)  # type: ignore[arg-type]
    paragraph = " ".join(sensitivity_text(found).partition("\n\n")[0].split())
    assert paragraph.endswith(text)


def test_sensitivity_of_several_policies_and_of_none(gavel: Gavel) -> None:
    text = gavel("solve", *PLACE, "--estimate", "--sensitivity", "-p", "max_min_fairness", "-p", "min_makespan").out
    assert "Under min_makespan" in text
    assert "of the time until the last job ends" in " ".join(text.split())
    assert "so estimates have no regret under it" in gavel("solve", *PLACE, "--estimate", "--sensitivity", "-p", "fifo").err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sensitivity"], "--sensitivity is about estimated speeds; add --estimate"),
        (["--sensitivity", "--estimate", "--sharing"], "leave out --sharing"),
        (["--sensitivity", "--estimate", "--csv"], "use --json"),
    ],
)
def test_what_sensitivity_cannot_be_combined_with(gavel: Gavel, options: list[str], message: str) -> None:
    found = gavel("solve", *PLACE, *options)
    assert found.code == 2
    assert message in " ".join(found.err.split())


def test_explain_names_the_estimated_speeds_of_the_job(gavel: Gavel) -> None:
    text = " ".join(gavel("explain", "a", *PLACE, "--estimate").out.split())
    assert "Estimated steps/s of a, with 80 % interval: p100 " in text
    assert "All of its speeds were measured." in gavel("explain", "c", *PLACE, "--estimate").out
    (only,) = json.loads(gavel("explain", "a", *PLACE, "--estimate", "--json").out)["estimates"]
    assert (only["job_type"], only["accelerator"]) == ("ResNet-50 (batch size 64)", "p100")


@pytest.mark.deep
def test_gang_sizes_alone_are_extrapolated_everywhere(gavel: Gavel) -> None:
    written("gangs.csv", "job_id,job_type,num_gpus,total_steps\na,ResNet-50 (batch size 64),3,1000\n")
    place = ("gangs.csv", "-c", "k80:4/4,p100:4/4,v100:4/4")
    for command in (("solve",), ("rounds",), ("explain", "a"), ("simulate",)):
        assert "has no throughput of" in gavel(*command, *place).err
        assert gavel(*command, *place, "--extrapolate").code == 0
    assert "has no throughput of" in gavel("solve", *PLACE, "--extrapolate").err  # of other figures nothing is estimated


def test_every_number_of_gpus_of_an_elastic_job_is_extrapolated(gavel: Gavel) -> None:
    written("s.csv", "job_type,num_gpus,accelerator,steps_per_second\nm,1,v100,1\nm,2,v100,1.9\n")
    written("e.csv", "job_id,job_type,gpu_counts,total_steps\na,m,1|2|4|8,36000\n")
    place = ("e.csv", "-c", "v100:8", "--profile", "s.csv", "--extrapolate", "--json")
    (job,) = json.loads(gavel("solve", *place).out)["jobs"]
    assert job["gpu_counts"] == {"v100": {"8": 1.0}}
    assert job["throughput"] == pytest.approx(1.9**3)  # each doubling gives 1.9 times as much
    (found,) = json.loads(gavel("simulate", *place, "--mechanism", "direct").out)["policies"]
    assert found["summary"]["makespan_seconds"] == pytest.approx(36000 / 1.9**3)


def test_speeds_by_job_are_not_estimated(gavel: Gavel) -> None:
    written("speeds.csv", "job_id,k80,p100,v100\na,1,2,4\nb,1,2,4\nc,1,,4\nd,1,2,4\n")
    found = gavel("solve", "jobs.csv", "-c", CLUSTER, "--throughputs", "speeds.csv", "--estimate")
    assert "--estimate estimates speeds by job type, but --throughputs gives them by job; omit one" in " ".join(found.err.split())


@pytest.mark.deep
def test_sweeps_take_estimates(gavel: Gavel) -> None:
    spec = f"mode: solve\npolicies: [max_min_fairness]\ntraces: [jobs.csv]\nclusters: ['{CLUSTER}']\nprofile: mine.csv\n"
    assert "has no throughput of" in gavel("sweep", written("bare.yaml", spec)).err
    objectives = []
    for more, option in (("", ["--estimate"]), ("estimate: specs", []), ("estimate: true\nconfidence: 0.8", [])):
        file = written("sweep.yaml", f"{spec}{more}\n")
        found = gavel("sweep", file, *option, "--export", "cells.csv", "--no-progress", "--workers", "1")
        assert found.code == 0, found.err
        with open("cells.csv", encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
        objectives.append(row["objective"])
    assert len(set(objectives)) == 3
    assert (
        "selects values of estimates; set estimate: true as well"
        in gavel("sweep", written("w.yaml", f"{spec}confidence: 0.8\n")).err
    )


def test_jobs_of_an_unknown_model_are_not_estimated(gavel: Gavel) -> None:
    written("new.csv", "job_id,job_type,num_gpus,total_steps\na,Mistral (batch size 4),1,1000\n")
    found = gavel("solve", "new.csv", "-c", CLUSTER, "--estimate")
    assert found.code == 2
    assert "'Mistral (batch size 4)' is missing" in found.err
    assert "an estimate needs a measurement of the job type, or of its family" in found.err
    assert found.err.strip().endswith("gavel profiles missing lists what to measure")


@pytest.mark.deep
def test_traces_get_types_and_steps_from_estimates(gavel: Gavel) -> None:
    """A gang of 3 and a speed on the L40S are in no profile, and only measured accelerators count by default."""
    written("trace.csv", "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,600.0,3,1800.0,11cb48\n")
    place = ("trace", "import", "trace.csv", "--profile", "mine.csv")
    assert "has no job type for the gangs of 1 of 1 jobs" in gavel(*place).err
    (row,) = csv.DictReader(gavel(*place, "--estimate").out.splitlines())
    speed = gp.ThroughputProfile.from_csv("mine.csv").with_estimates().throughput(row["job_type"], 3, "v100")
    assert float(row["total_steps"]) == pytest.approx(600 * speed, rel=1e-6)
    assert gavel(*place, "--estimate", "--reference", "l40s").code == 0
    assert "--profile-out writes the gangs of --extrapolate" in gavel(*place, "--estimate", "--profile-out", "more.csv").err
    assert "--confidence selects values" in gavel(*place, "--confidence", "0.8").err


@pytest.mark.deep
@pytest.mark.parametrize("option", ["--estimate", "--extrapolate"])
def test_traces_are_generated_from_estimates(gavel: Gavel, option: str) -> None:
    place = ("trace", "generate", "--jobs", "2", "--static", "--gangs", "3:1")
    assert "has no job type for gangs of 3 GPUs" in gavel(*place).err
    assert gavel(*place, option).code == 0


COMMANDS = (("slurm", "plan"), ("slurm", "run"), ("trace", "generate"), ("trace", "import"), ("serve", "plan"))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_with_estimates_also_extrapolate(gavel: Gavel, command: tuple[str, ...]) -> None:
    help_of_all = "--help" if command == ("trace", "generate") else "--help-all"
    text = gavel(*command, help_of_all).out
    assert "--estimate" in text
    assert "--extrapolate" in text


def test_training_jobs_beside_services_have_estimates(gavel: Gavel) -> None:
    written("llms.yaml", "services:\n  - {name: chat, model: LLaMA v3.1 8B, rate: 5, mix: {128/128: 1}}\n")
    place = ("serve", "plan", "llms.yaml", "-c", f"{CLUSTER},h100:1", "--seeds", "0")
    training = ("--training", "jobs.csv", "--profile", "mine.csv")
    assert "has no throughput of" in gavel(*place, *training).err
    assert gavel(*place, *training, "--estimate").code == 0
    assert "give --training JOBS with them" in gavel(*place, "--estimate").err


@pytest.mark.deep
def test_estimated_pairs_are_listed_where_jobs_share(gavel: Gavel) -> None:
    """Pairs on the A100 were never measured; those that the answer uses are listed with their intervals, and counted."""
    jobs = ("ResNet-50 (batch size 64)", "A3C", "LM (batch size 20)", "ResNet-50 (batch size 48)")
    written("shared.csv", "job_id,job_type,num_gpus\n" + "".join(f"{'abcd'[n]},{each},1\n" for n, each in enumerate(jobs)))
    place = ("shared.csv", "-c", "v100:2,a100-40gb:1", "--estimate", "--sharing")
    document = json.loads(gavel("solve", *place, "--json").out)
    types = dict(zip("abcd", jobs, strict=True))
    sharing = [pair for pair in document["pairs"] if pair["accelerator"] == "a100-40gb"]
    assert sharing
    sides = {(types[one], types[other]) for pair in sharing for one, other in (pair["jobs"], pair["jobs"][::-1])}
    listed = [each for each in document["estimates"] if each["partner"] is not None]
    assert {(each["job_type"], each["partner"]) for each in listed if each["accelerator"] == "a100-40gb"} == sides
    assert all(0 < each["low"] < each["steps_per_second"] < each["high"] for each in listed)
    text = gavel("solve", *place).out
    assert f"{len(document['estimates'])} estimated speeds, those in use" in text
    job, partner = sorted(sides)[0]
    assert f"{job} beside" in text
    job_id = next(name for name, each in types.items() if each == job)
    assert f"a100-40gb beside {partner} " in " ".join(gavel("explain", job_id, *place).out.split())
    assert f"{len(document['estimates'])} speeds of these jobs are estimates" in gavel("rounds", *place).out


def test_the_output_says_which_value_of_the_estimates_is_used(gavel: Gavel) -> None:
    text = "Estimated speeds are exceeded with probability 0.8: the 20 % quantile, not the median"
    assert text in " ".join(gavel("solve", *PLACE, "--estimate", "--confidence", "0.8").out.split())
    assert text in " ".join(gavel("explain", "a", *PLACE, "--estimate", "--confidence", "0.8").out.split())
    assert "one standard deviation above" in gavel("solve", *PLACE, "--estimate", "--confidence", "optimistic").out
    assert "quantile" not in gavel("solve", *PLACE, "--estimate").out


@pytest.mark.parametrize("options", [("--estimate", "bogus", *PLACE), (*PLACE, "--estimate", "bogus")])
def test_a_wrong_method_is_named_with_the_right_ones(gavel: Gavel, options: tuple[str, ...]) -> None:
    found = gavel("solve", *options)
    assert found.code == 2
    assert "'bogus' is not one of 'gaussian_process', 'additive', 'specs'" in found.err
    assert "unexpected extra argument (more.csv)" in gavel("solve", "--estimate", *PLACE, "more.csv").err


def test_caution_without_estimates_says_that_it_changes_nothing(gavel: Gavel) -> None:
    text = " ".join(gavel("solve", "jobs.csv", "-c", CLUSTER, "-p", "max_min_fairness,caution=1.64").out.split())
    assert "no speed is an estimate, so caution changes nothing" in text
    assert "costliest estimate is 1.64" in " ".join(gavel("solve", *PLACE, "--estimate", "--set", "caution=1.64").out.split())


def test_unknown_memory_is_said_of_jobs_on_gpus_that_may_be_too_small(gavel: Gavel) -> None:
    rows = "big,8,h100,0.25,\nsmall,1,l40s,3,\nsmall,1,h100,9,\nknown,1,h100,2,30\n"
    written("speeds.csv", "job_type,num_gpus,accelerator,steps_per_second,gpu_memory_gb\n" + rows)
    written("jobs.csv", "job_id,job_type,num_gpus\na,big,8\nb,small,1\nc,known,1\nd,small,2\n")
    options = ("solve", "jobs.csv", "--profile", "speeds.csv", "--estimate")
    done = gavel(*options, "-c", "L40S:16")
    assert "GPU memory of big is unknown: l40s, 48 GB each, may not hold it.\n" in done.out
    assert done.out.count("may not hold") == 1
    found = json.loads(gavel(*options, "-c", "L40S:16", "--json").out)["unknown_gpu_memory"]
    assert found == [{"job_type": "big", "accelerator": "l40s", "gpu_memory_gb": 48, "largest_measured_gb": 80}]
    assert "unknown_gpu_memory" not in json.loads(gavel(*options, "-c", "H100:16", "--json").out)
    written(
        "lab.yaml", "nodes: [{name: n, count: 2, accelerator: l40s, num_gpus: 8}]\naccelerator_types: {l40s: {memory_gb: 96}}\n"
    )
    assert "may not hold" not in gavel(*options, "-c", "lab.yaml").out
