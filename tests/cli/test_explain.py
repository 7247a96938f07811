"""The commands `gavel explain` and `gavel solve --what-if`."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gavel_py as gp
from gavel_py.cli import main, tables

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = [str(EXAMPLES / "jobs.csv"), "--cluster", str(EXAMPLES / "cluster.yaml")]
SMALL = ["jobs.csv", "--cluster", "v100:1,k80:1", "--throughputs", "speeds.csv"]

Gavel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gavel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gavel:
    """Run a command line among the files of the tutorial; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_PY_STORE", str(tmp_path / "store.sqlite"))
    (tmp_path / "jobs.csv").write_text("job_id,total_steps,num_gpus\nbert,240,1\nresnet,60,1\nlstm,60,1\nwide,60,2\n")
    (tmp_path / "speeds.csv").write_text("job_id,v100,k80\nbert,4,1\nresnet,2,1\nlstm,1,1\nwide,1,1\n")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(list(arguments))
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return run


def test_the_text_has_allocation_bindings_one_more_gpu_and_holders(gavel: Gavel) -> None:
    code, out, err = gavel("explain", "resnet", *SMALL)
    assert (code, err) == (0, "")
    headings = ["What limits it", "What one more GPU would change", "Jobs that hold GPUs that it could use"]
    assert [heading for heading in headings if heading in out] == headings
    first, second, third, *_ = out.splitlines()
    assert first == "resnet runs 70.0% of the time, and gets 120 % of its fair share."
    gains = "one more v100 would raise what the worst-off jobs get by at most 66.7 % and one more k80 by at most 33.3 %"
    assert second == f"The only v100 and the only k80 are in use; {gains}."  # the prices are 8/15 and 4/15, the level is 0.8
    assert third == "At this speed it ends in 50 s: a forecast without new arrivals; sooner if others leave."
    assert "\n\nresnet (1 GPU) under max_min_fairness: 1.2 steps/s, speed 0.8, 1.2 times its fair share\n" in out
    assert ["bert", "0.5", "."] in [line.split() for line in out.splitlines()]


def test_the_json_equals_the_explanation_of_the_api(gavel: Gavel) -> None:
    document = json.loads(gavel("explain", "resnet", *SMALL, "-p", "min_makespan", "--json")[1])
    explanation = gp.Explanation.from_dict(document)
    assert (explanation.job_id, explanation.policy) == ("resnet", "min_makespan")
    problem = gp.AllocationProblem.from_arrays(
        [[4, 1], [2, 1], [1, 1]], [1, 1], job_ids=["bert", "resnet", "lstm"], total_steps=[240, 60, 60]
    )
    assert explanation.objective == pytest.approx(gp.explain(problem, "resnet", "min_makespan").objective)


def test_an_excluded_job_is_explained_by_the_reason(gavel: Gavel) -> None:
    code, out, _ = gavel("explain", "wide", *SMALL)
    assert code == 0
    assert out == (
        "wide gets no time under max_min_fairness: its gang of 2 GPUs fits nowhere (largest gang that fits: v100: 1, k80: 1)\n"
    )


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "fifo", "isolated"])
def test_nothing_is_wider_than_the_terminal(gavel: Gavel, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    for columns in (50, 60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, explained, _ = gavel("explain", "language-001", *EXAMPLE, "-p", policy)
        _, compared, _ = gavel("solve", *EXAMPLE, "-p", policy, "--what-if", "v100+8")
        lines = explained.splitlines() + compared[compared.index("What if") :].splitlines()
        assert max(map(len, lines)) <= columns


def test_what_if_states_the_next_level_where_a_job_with_all_it_can_use_limits_the_objective(gavel: Gavel, tmp_path: Path) -> None:
    """By hand: first runs all the time, at 1/8 of a GPU per unit of its weight, and the other four share the rest equally."""
    (tmp_path / "weighted.csv").write_text("job_id,weight\nfirst,8\n" + "".join(f"{job},1\n" for job in "abcd"))
    (tmp_path / "ones.csv").write_text("job_id,v100\nfirst,1\n" + "".join(f"{job},1\n" for job in "abcd"))
    files = (str(tmp_path / "weighted.csv"), "-c", "v100:2", "--throughputs", str(tmp_path / "ones.csv"))
    arguments = ("solve", *files, "--what-if", "v100+1", "--what-if", "v100+9")
    lines = gavel(*arguments)[1].splitlines()
    at = lines.index("What if, under max_min_fairness")
    rows = [line.split() for line in lines[at + 2 : at + 5]]
    assert rows == [
        ["GPUs", "2", "3", "11"],
        ["objective", *["0.125", "0.125", "+0.0%", "0.125", "+0.0%"]],
        ["next", "level", "0.25", "0.5", "-"],
    ]
    assert "v100+1: 0.25 to 0.5; 4 of 5 jobs gain, 0 lose, most of all a +0.25" in lines
    assert "v100+9: 0.25 to all that jobs can use; 4 of 5 jobs gain, 0 lose, most of all a +0.75" in lines
    document = json.loads(gavel(*arguments, "--json")[1])
    levels = [document["next_level"], *(each["next_level"] for each in document["what_if"])]
    assert levels == [pytest.approx(0.25), pytest.approx(0.5), None]
    assert "next_level" not in json.loads(gavel("solve", *SMALL, "--what-if", "v100+1", "--json")[1])


def test_what_if_compares_two_proven_answers_under_the_same_normalisers(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *SMALL, "--what-if", "v100+1", "--what-if", "v100=0,k80+1", "--json")[1])
    more, other = document["what_if"]
    assert [each["change"] for each in document["what_if"]] == ["v100+1", "v100=0,k80+1"]
    assert (more["gpus"], other["gpus"]) == ({"v100": 2, "k80": 1}, {"v100": 0, "k80": 2})
    for each in document["what_if"]:
        objective = each["allocation"]["objective"]
        assert objective["value"] == pytest.approx(objective["bound"], rel=1e-6)
        assert each["objective_change"] == pytest.approx(objective["value"] - document["objective"]["value"])
    # lstm is as fast as on all of a V100 with an equal share of 1; two K80 give each of three jobs 2/3 steps/s, bert 2/3 of 2.5.
    assert more["allocation"]["objective"]["value"] == pytest.approx(1.0)
    assert other["allocation"]["objective"]["value"] == pytest.approx(0.4)
    assert gp.Allocation.from_dict(more["allocation"]).normalized_throughputs[:3].min() == pytest.approx(1.0)


def test_the_comparison_names_the_jobs_that_gain_and_lose_most(gavel: Gavel) -> None:
    _, out, _ = gavel("solve", *SMALL, "--what-if", "v100-1")
    assert "v100-1: 0 of 4 jobs gain, 3 lose; most of all" in out
    rows = [line.split() for line in out.splitlines()]
    # A K80 for three: bert needs 2.5 of it for a level of 1, resnet 1.5, lstm 1.
    assert ["objective", "0.8", "0.2", "-75.0%"] in rows
    assert ["least", "speed", "0.8", "0.2", "-75.0%"] in rows
    assert ["bert", "0.8", "0.2", "-0.6"] in rows


def test_jobs_that_lose_the_same_are_named_in_their_order_whatever_their_rounding(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id\n" + "".join(f"job-{i}\n" for i in range(9)))
    (tmp_path / "speeds.csv").write_text("job_id,v100\n" + "".join(f"job-{i},{1 / (i + 3)!r}\n" for i in range(9)))
    _, out, _ = gavel("solve", "jobs.csv", "-c", "v100:5", "--throughputs", "speeds.csv", "--what-if", "v100-1")
    assert [line.split()[0] for line in out.splitlines() if line.endswith("-0.1111")] == ["job-2", "job-1", "job-0"]


def test_newly_excluded_jobs_are_named(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,num_gpus\na,1\nb,2\n")
    (tmp_path / "speeds.csv").write_text("job_id,v100\na,1\nb,1\n")
    _, out, _ = gavel("solve", "jobs.csv", "-c", "v100:2", "--throughputs", "speeds.csv", "--what-if", "v100-1")
    assert "Left out then:\n  b: its gang of 2 GPUs fits nowhere" in out


def test_constraints_infeasible_only_on_the_changed_cluster_name_the_change(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("constraints:\n  - {kind: min_throughput, job: bert, rate: 4}\n")
    code, _, err = gavel("solve", *SMALL, "--constraints", "rules.yaml", "--what-if", "k80+1", "--what-if", "v100-1")
    assert code == 2
    assert "with --what-if v100-1:\n" in err
    assert "the throughput of 4 steps/s for job 'bert'" in err


def test_several_policies_are_each_compared(gavel: Gavel) -> None:
    arguments = ["solve", *SMALL, "-p", "fifo", "-p", "max_min_fairness", "--what-if", "k80+1"]
    out = gavel(*arguments)[1]
    assert "What if, under fifo" in out
    assert "What if, under max_min_fairness" in out
    assert out.count("Objective per extra GPU") == 1  # fifo has no prices
    documents = json.loads(gavel(*arguments, "--json")[1])
    assert [len(document["what_if"]) for document in documents] == [1, 1]
    assert documents[0]["what_if"][0]["objective_change"] is None


def test_csv_has_a_column_for_the_change(gavel: Gavel) -> None:
    rows = list(csv.DictReader(io.StringIO(gavel("solve", *SMALL, "-p", "fifo", "--what-if", "v100+1", "--csv")[1])))
    assert [row["what_if"] for row in rows] == [""] * 4 + ["v100+1"] * 4
    assert [row["v100"] for row in rows if row["job_id"] == "lstm"] == ["0.0", "1.0"]
    assert "what_if" not in gavel("solve", *SMALL, "-p", "fifo", "--csv")[1]


def test_an_unchanged_cluster_has_the_same_allocation(gavel: Gavel) -> None:
    out = gavel("solve", *SMALL, "--what-if", "v100+0")[1]
    assert "v100+0: 0 of 4 jobs gain, 0 lose\n" in out


def test_types_with_signs_and_digits_in_their_names(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text("job_id,a100-40gb,v100-16\nbert,4,1\nresnet,2,1\nlstm,1,1\nwide,1,1\n")
    arguments = ["solve", "jobs.csv", "-c", "a100-40gb:4,v100-16:2", "--throughputs", "speeds.csv", "--json"]
    document = json.loads(gavel(*arguments, "--what-if", " a100-40gb - 3 , v100-16+2")[1])
    assert document["what_if"][0]["gpus"] == {"a100-40gb": 1, "v100-16": 4}


def test_a_job_may_wait_though_its_tenant_has_its_share(gavel: Gavel, tmp_path: Path) -> None:
    """In the order of arrival, a2 comes after a1, which has all GPUs of the tenant."""
    (tmp_path / "teams.csv").write_text("job_id,num_gpus,tenant,total_steps\na1,2,a,100\na2,2,a,100\nb1,2,b,100\nb2,2,b,100\n")
    (tmp_path / "team-speeds.csv").write_text("job_id,v100\na1,1\na2,1\nb1,1\nb2,1\n")
    (tmp_path / "tree.yaml").write_text("tenants:\n  a: {policy: fifo}\n  b: {}\n")
    teams = ["teams.csv", "-c", "v100:4", "--throughputs", "team-speeds.csv", "-p", "hierarchical,tenants=tree.yaml"]
    text = "Its tenant has its share; within it, other jobs are served first."
    assert text in gavel("explain", "a2", *teams)[1].splitlines()
    assert text not in gavel("explain", "a1", *teams)[1]


def test_the_first_lines_name_tenant_and_cost(gavel: Gavel) -> None:
    out = " ".join(gavel("explain", "language-019", *EXAMPLE)[1].split())
    assert "All 32 v100s, 40 p100s and 40 k80s are in use; one more v100 would raise what the worst-off jobs get by at most" in out
    assert "Tenant language has 34.7 % of the cluster's GPUs and 29 % of the throughput; its share is 25 %" in out
    document = json.loads(gavel("explain", "language-019", *EXAMPLE, "--json")[1])
    solved = json.loads(gavel("solve", *EXAMPLE, "--json")[1])
    assert document["tenant"] == next(each for each in solved["tenants"] if each["tenant"] == "language")
    job = next(each for each in solved["jobs"] if each["job_id"] == "language-019")
    for name in ("start_seconds", "end_seconds", "cost_per_hour", "cost_until_done"):
        assert document[name] == job[name]
    again = gp.Explanation.from_dict(document)
    assert again.to_dict() | {"schema_version": 2} == document
    older = {name: value for name, value in document.items() if name not in ("tenant", "capacities", "utilization", "end_seconds")}
    assert gp.Explanation.from_dict(older).tenant is None
    waits = gavel("explain", "vision-100", *EXAMPLE, "-p", "fifo")[1]
    assert waits.startswith("vision-100 waits for GPU time.\n")
    assert "Its GPUs cost" not in waits


@pytest.mark.deep
@pytest.mark.parametrize("columns", ["40", "80"])
def test_names_of_any_form_and_partly_unknown_prices(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    types = "accelerator_types:\n  v100: {price_per_hour: 2}\n"
    nodes = "nodes:\n - {name: a, accelerator: v100, num_gpus: 2}\n - {name: b, accelerator: k80, num_gpus: 2}\n"
    (tmp_path / "part.yaml").write_text(types + nodes)
    names = ["n" * 120, "訓練" * 40, "e\u0301" * 30, "job with spaces", "-", "\U0001f680" * 20]
    lines = "".join(f"{name},A3C,{name},{9000 * (i + 1)}\n" for i, name in enumerate(names))
    (tmp_path / "names.csv").write_text("job_id,job_type,tenant,total_steps\n" + lines)
    given = ["names.csv", "-c", "part.yaml"]
    commands = [["explain", *given[1:], "--", name, "names.csv"] for name in names]
    commands += [
        ["simulate", *given],
        ["simulate", *given, "-p", "fifo", "-p", "isolated"],
        ["solve", *given, "--what-if", "k80+1nodes"],
    ]
    for command in commands:
        code, out, err = gavel(*command)
        assert code == 0, err
        assert max(map(tables.cell_width, out.splitlines())) <= int(columns)
        if command[0] == "explain":
            assert "The cost of its GPUs is unknown, since a price is." in " ".join(out.split())


def test_nodes_that_are_added_hold_gangs_and_gpus_do_not(gavel: Gavel, tmp_path: Path) -> None:
    (tmp_path / "gangs.csv").write_text("job_id,num_gpus,locality\na,4,node\nb,1,any\nc,1,any\n")
    (tmp_path / "fast.csv").write_text("job_id,v100,k80\na,8,0\nb,2,1\nc,1,1\n")
    base = ["solve", "gangs.csv", "-c", "v100:4/2,k80:2/2", "--throughputs", "fast.csv", "--json"]
    changes = ["v100+4", "v100+2nodes/4", "v100=1nodes/4,k80=0nodes", "v100 + 1 node", "V100-1nodes,k80+2"]
    _, out, err = gavel(*base, *(word for each in changes for word in ("--what-if", each)))
    assert out, err
    found = {each["change"]: each for each in json.loads(out)["what_if"]}
    assert [list(each["gpus"].values()) for each in found.values()] == [[8, 2], [12, 2], [8, 0], [6, 2], [2, 4]]
    assert "a" in found["v100+4"]["allocation"]["excluded"]
    assert found["v100+2nodes/4"]["allocation"]["excluded"] == {}
    # The same as another cluster, with the normalisers of this one.
    jobs, speeds = gp.JobSet.from_file(tmp_path / "gangs.csv"), gp.ThroughputProfile.from_matrix(tmp_path / "fast.csv")
    here = gp.AllocationProblem.from_jobs(jobs, gp.Cluster.from_inline("v100:4/2,k80:2/2"), speeds)
    nodes = [*gp.Cluster.from_inline("v100:4/2,k80:2/2").nodes, *(gp.Node(name=n, accelerator="v100", num_gpus=4) for n in "xy")]
    there = dataclasses.replace(
        gp.AllocationProblem.from_jobs(jobs, gp.Cluster(nodes), speeds), share_capacities=here.share_capacities
    )
    wanted = gp.solve(there, "max_min_fairness")
    assert found["v100+2nodes/4"]["allocation"]["objective"]["value"] == pytest.approx(wanted.objective_value)
    speeds_then = [job["normalized_throughput"] for job in found["v100+2nodes/4"]["allocation"]["jobs"]]
    assert speeds_then == pytest.approx(wanted.normalized_throughputs.tolist())
    mixed = gavel("solve", "gangs.csv", "-c", "v100:3/2,k80:2/2", "--throughputs", "fast.csv", "--what-if", "v100+1nodes")
    assert "nodes of v100 have 1 or 2 GPUs; add the GPUs per node, as in v100+1nodes/2" in " ".join(mixed[2].split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "resnt", *SMALL], "there is no job 'resnt'; did you mean 'resnet'?"),
        (["explain", "resnet", *SMALL, "-p", "fifo", "-p", "isolated"], "a job is explained under one --policy at a time"),
        (["explain", "resnet", *SMALL, "--csv"], "an explanation is not a table; leave out --csv, or use --json"),
        (["explain", "resnet"], "Missing argument 'JOBS'"),
        (["explain", "resnet", "nowhere.csv", "-c", "v100:1"], "nowhere.csv: cannot be read"),
        (["solve", *SMALL, "--what-if", "v10+1"], "'v10' is not an accelerator type of this cluster; did you mean 'v100'?"),
        (["solve", *SMALL, "--what-if", "v100-2"], "removes 2 GPUs of v100, but there is only 1"),
        (["solve", *SMALL, "--what-if", "v100=-3"], "the GPUs of v100 must be a whole number of at least 0, found '-3'"),
        (["solve", *SMALL, "--what-if", "v100+1.5"], "must be a whole number of at least 0, found '1.5'"),
        (["solve", *SMALL, "--what-if", "v100+"], "must be a whole number of at least 0, found ''"),
        (["solve", *SMALL, "--what-if", "k80+1e3"], "must be a whole number of at least 0, found '1e3'"),
        (["solve", *SMALL, "--what-if", "k80+9999999999"], "must be a whole number of at least 0, found '9999999999'"),
        (
            ["solve", *SMALL, "--what-if", "k80+1.5nodes"],
            "the nodes of k80 must be a whole number of at least 0 and at most 100,000",
        ),
        (["solve", *SMALL, "--what-if", "k80+1nodes/0"], "the GPUs of a node must be a whole number of at least 1"),
        (["solve", *SMALL, "--what-if", "k80-3nodes/1"], "removes 3 nodes of k80, but there is only 1"),
        (["solve", *SMALL, "--what-if", "k80-1nodes/4"], "removes 1 node of k80, but there are only 0"),
        (["solve", *SMALL, "--what-if", "v100"], "--what-if 'v100' is not of the form TYPE+N, TYPE-N or TYPE=N"),
        (["solve", *SMALL, "--what-if", ""], "--what-if '' is not of the form TYPE+N, TYPE-N or TYPE=N"),
        (["solve", *SMALL, "--what-if", "v100+1,"], "--what-if 'v100+1,' is not of the form"),
        (["solve", *SMALL, "--what-if", "v100+1,v100-1"], "--what-if 'v100+1,v100-1' names 'v100' twice"),
        (["solve", *SMALL, "--what-if", "v100+1", "--rounds", "2"], "leave out one of them"),
    ],
)
def test_mistakes_are_named_and_exit_with_2(gavel: Gavel, arguments: list[str], message: str) -> None:
    code, out, err = gavel(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_numbers_of_the_comparison_are_those_of_separate_solves(gavel: Gavel) -> None:
    document = json.loads(gavel("solve", *SMALL, "-p", "max_total_throughput", "--what-if", "k80+3", "--json")[1])
    problem = gp.AllocationProblem.from_arrays([[4, 1], [2, 1], [1, 1], [1, 1]], [1, 1], num_gpus=[1, 1, 1, 2])
    alone = gp.solve(problem.with_capacities(np.array([1, 4])), "max_total_throughput")
    assert document["what_if"][0]["allocation"]["objective"]["value"] == pytest.approx(alone.objective_value)


def test_a_job_of_a_workflow_says_who_waits_for_whom(gavel: Gavel) -> None:
    Path("jobs.csv").write_text(
        "job_id,total_steps,workflow,depends_on,deadline_seconds\nbert,240,w,,\nresnet,60,w,,\nlstm,60,w,bert|resnet,500\n"
    )
    code, text, _ = gavel("explain", "bert", *SMALL)
    assert code == 0
    assert "It is one of 2 jobs of workflow w that are ready, which share one weight." in text
    assert "lstm waits for it; the longest path of jobs that do takes 60 s on their fastest types." in text
    assert "They can meet their deadlines if it ends within 7.33 minutes." in text
    document = json.loads(gavel("explain", "bert", *SMALL, "--json")[1])
    left = 240 / 4 + 60 / 2 + 60
    assert document["workflow"] == {
        "ready_tasks": 2,
        "workflow_seconds": left,
        "path_seconds": 60,
        "latest_end_seconds": 440,
    }
    assert "lstm gets no time under max_min_fairness: it waits for 'bert' and 'resnet'" in gavel("explain", "lstm", *SMALL)[1]
    apart = json.loads(gavel("explain", "bert", *SMALL, "--json", "--by-job")[1])
    assert "workflow" not in apart
