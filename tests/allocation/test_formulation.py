"""The published program with one row per job: another solver finds the objective of `solve`, and files hold the same program."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import highspy
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import gavel_py as gp
from tests.support.commands import enter_folder, runner, written
from tests.support.constraint_strategies import constraints, tenanted
from tests.support.examples import examples
from tests.support.fakes import refusal

LINEAR = ["max_min_fairness", "max_total_throughput", "max_progress_rate", "throughput_per_dollar", "water_filling", "hierarchical"]
WITH_OBJECTIVE = [*LINEAR, "min_makespan", "finish_time_fairness", "min_lateness", "nash_welfare", "min_cost"]
PRECISION = 2e-6


@st.composite
def problems(draw: st.DrawFn) -> gp.AllocationProblem:
    """Up to seven jobs of any family of policies; the numbers are moderate, so that a solver without scaling is exact."""
    n, k = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    throughputs = chance.choice([0.0, 1.0, 2.0, 3.0, 5.0], (n, k))
    throughputs[chance.integers(0, n)] += 1.0  # some job can run
    return gp.AllocationProblem.from_arrays(
        throughputs,
        chance.integers(2, 6, k),
        num_gpus=chance.choice([1, 1, 2], n),
        weights=chance.choice([0.5, 1.0, 2.0], n),
        steps_remaining=chance.choice([10.0, 20.0, 70.0], n),
        elapsed_seconds=chance.choice([0.0, 5.0], n),
        isolated_seconds=chance.choice([0.0, 2.0], n),
        deadlines_seconds=chance.choice([4.0, 20.0, 60.0], n),
        arrival_seconds=chance.integers(0, 3, n),
        tenants=chance.choice(["red", "blue"], n).tolist(),
        prices_per_hour=chance.choice([1.0, 2.0, 3.5], k),
    )


def by_clarabel(program: cp.Problem) -> float:
    return float(program.solve(solver=cp.CLARABEL))


def is_same(found: float, expected: float | None) -> bool:
    assert expected is not None
    return abs(found - expected) <= PRECISION * max(1.0, abs(expected))


@pytest.mark.parametrize("policy", WITH_OBJECTIVE)
@settings(max_examples=examples(20))
@given(problem=problems())
def test_another_solver_finds_the_objective_of_solve(policy: str, problem: gp.AllocationProblem) -> None:
    allocation = gp.solve(problem, policy)
    # The program of a policy of several levels is that of the first one.
    expected = allocation.stages[0].value if policy == "hierarchical" and allocation.stages else allocation.objective_value
    assert is_same(by_clarabel(gp.formulation(problem, policy)), expected)


def check_makespan(seed: int, steps: float | None) -> None:
    """Solvers of linear programs reach 1e-5, and SCS 1e-3, in any unit; steps: of all jobs about this many, None: 1 to 1e9."""
    chance = np.random.default_rng(seed)
    remaining = 10 ** chance.uniform(0, 9, 6) if steps is None else steps * chance.uniform(1, 10, 6)
    gangs, gpus = chance.choice([1, 2, 4], 6), chance.integers(4, 20, 3)
    problem = gp.AllocationProblem.from_arrays(chance.lognormal(size=(6, 3)), gpus, num_gpus=gangs, steps_remaining=remaining)
    rules = [gp.MaxGpus(3, accelerator="type-0"), gp.MaxGpus(3, job="1")]
    for limits in ((), rules):
        expected = gp.solve(problem, "min_makespan", constraints=limits).objective_value
        program = gp.formulation(problem, "min_makespan", constraints=limits)
        for solver, precision in ((cp.CLARABEL, 1e-5), (cp.HIGHS, 1e-5), (cp.SCS, 1e-3)):
            assert program.solve(solver=solver) == pytest.approx(expected, rel=precision), (solver, seed, steps)


@pytest.mark.parametrize("steps", [1.0, 1e5, 1e9, None])
def test_the_makespan_is_a_linear_program_in_any_unit(steps: float | None) -> None:
    check_makespan(0, steps)


@pytest.mark.deep
@pytest.mark.parametrize("steps", [*(10.0**n for n in range(10)), None])
def test_the_makespan_is_a_linear_program_in_hundreds_of_draws(steps: float | None) -> None:
    for seed in range(100):
        check_makespan(seed, steps)


def test_the_time_until_the_last_end_is_that_of_the_fractions(problem_of_three: gp.AllocationProblem) -> None:
    rules = [gp.MinThroughput("lstm", 0.5), gp.MaxGpus(0.75, accelerator="v100")]
    allocation = gp.solve(problem_of_three, "min_makespan", constraints=rules)
    program = gp.formulation(problem_of_three, "min_makespan", constraints=rules)
    program.solve(solver=cp.HIGHS)
    fractions = program.var_dict["Y"].value / program.var_dict["θ"].value
    throughputs = (problem_of_three.throughputs * fractions).sum(axis=1)
    assert (problem_of_three.steps_remaining / throughputs).max() == pytest.approx(allocation.objective_value)
    assert throughputs[2] >= 0.5 - 1e-9
    assert fractions[:, 0].sum() <= 0.75 + 1e-9


def test_every_policy_has_a_formulation_or_no_objective(problem_of_three: gp.AllocationProblem) -> None:
    for policy in gp.policy_names():
        if policy in WITH_OBJECTIVE:
            continue
        text = refusal(gp.formulation, problem_of_three, policy)
        assert text == f"policy {policy}: has no objective, and therefore no program"


@pytest.mark.filterwarnings("ignore::gavel_py.GavelWarning")  # of constraints without any job
@settings(max_examples=examples(60))
@given(data=st.data())
def test_the_program_has_the_constraints(data: st.DataObject) -> None:
    problem = data.draw(tenanted())
    wanted = data.draw(constraints(problem))
    for policy in ("max_min_fairness", "max_total_throughput"):
        try:
            program = gp.formulation(problem, policy, constraints=wanted)
            expected = gp.solve(problem, policy, constraints=wanted).objective_value
        except gp.InputError:
            reject()  # the constraints conflict, or no job can run
        assert is_same(by_clarabel(program), expected)


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "nash_welfare", "min_makespan"])
def test_soft_constraints_and_the_cost_of_change_are_part_of_the_objective(
    problem_of_three: gp.AllocationProblem, policy: str
) -> None:
    soft = [
        gp.MaxGpus(0.25, job="lstm", accelerator="k80", penalty=0.5),
        gp.MinThroughput("bert", 3.0, penalty=2.0),
        gp.SwitchCost(0.1),
    ]
    expected = gp.solve(problem_of_three, policy, constraints=soft).objective_value
    assert is_same(by_clarabel(gp.formulation(problem_of_three, policy, constraints=soft)), expected)
    assert expected != gp.solve(problem_of_three, policy).objective_value


def test_compositions_keep_what_comes_before(problem_of_three: gp.AllocationProblem) -> None:
    policies = {name: gp.resolve_policy(name) for name in ("max_min_fairness", "max_total_throughput", "nash_welfare")}
    total = gp.solve(problem_of_three, policies["max_total_throughput"]).objective_value
    then = gp.Then(policies["max_min_fairness"], policies["max_total_throughput"])
    allocation = gp.solve(problem_of_three, then)
    program = gp.formulation(problem_of_three, then)
    assert is_same(by_clarabel(program), allocation.stages[-1].value)
    assert allocation.stages[-1].value < 0.99 * total  # the first objective costs something
    both = policies["nash_welfare"] + 2 * policies["max_total_throughput"]
    assert is_same(by_clarabel(gp.formulation(problem_of_three, both)), gp.solve(problem_of_three, both).objective_value)


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_total_throughput", "min_makespan", "nash_welfare"])
def test_whole_gangs_and_pairs_are_in_the_program(policy: str) -> None:
    cluster = gp.Cluster.from_counts({"v100": (5, 5), "k80": (4, 4)})
    profile = gp.ThroughputProfile.builtin("gavel-osdi20")
    types = ["ResNet-50 (batch size 64)", "LM (batch size 20)", "Recommendation (batch size 512)"]
    jobs = [gp.Job(f"job-{i}", job_type=types[i % 3], num_gpus=(4, 2, 1)[i % 3], total_steps=1e5 * (1 + i)) for i in range(6)]
    for sharing in (False, True):
        problem = gp.AllocationProblem.from_jobs(jobs, cluster, profile, sharing=sharing)
        allocation, program = gp.solve(problem, policy), gp.formulation(problem, policy)
        assert is_same(by_clarabel(program) / allocation.objective_value, 1.0)
        labels = {constraint.label for constraint in program.constraints}
        assert sharing or "what whole gangs can use of v100" in labels


def test_a_policy_of_your_own() -> None:
    class Squares(gp.DemandPolicy):
        def need(self, jobs: gp.JobClasses, level: float) -> np.ndarray:
            return np.full(len(jobs), max(level, 0.0) ** 2)

        def level(self, jobs: gp.JobClasses, throughputs: np.ndarray) -> np.ndarray:  # noqa: ARG002
            return np.sqrt(throughputs)

    class Written(Squares):
        def objective(self, program: gp.Program) -> cp.Expression:
            return cp.sqrt(cp.min(program.throughput))

    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0], [2.0, 1.0]], [1, 1])
    assert "a policy with its own level needs this expression as well" in refusal(gp.formulation, problem, Squares())
    assert is_same(by_clarabel(gp.formulation(problem, Written())), gp.solve(problem, Written()).objective_value)


@pytest.mark.parametrize("ending", ["mps", "lp"])
@pytest.mark.parametrize("policy", [*LINEAR, "min_makespan", "min_cost"])
def test_files_hold_the_same_program(problem_of_three: gp.AllocationProblem, tmp_path: Path, policy: str, ending: str) -> None:
    path = tmp_path / f"program.{ending}"
    gp.write_program(problem_of_three, path, policy)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(path))
    highs.run()
    found = highs.getInfo().objective_function_value
    assert is_same(1 / found if policy == "min_makespan" else found, gp.solve(problem_of_three, policy).objective_value)
    names = {highs.getColName(n)[1] for n in range(highs.getNumCol())}
    assert {"X_0_bert_v100", "X_2_lstm_k80"} <= names
    assert {"time_0", "GPUs_1"} <= {highs.getRowName(n)[1] for n in range(highs.getNumRow())}


def test_every_name_in_a_file_occurs_once(tmp_path: Path) -> None:
    """HiGHS drops all names of a file in which one occurs twice."""
    cluster = gp.Cluster.from_counts({"v100": (5, 5), "k80": (4, 4)})
    types = ["ResNet-50 (batch size 64)", "LM (batch size 20)", "Recommendation (batch size 512)"]
    jobs = [gp.Job(f"job-{i}", job_type=types[i % 3], num_gpus=(4, 2, 1)[i % 3], total_steps=1e5 * (1 + i)) for i in range(9)]
    gangs = gp.AllocationProblem.from_jobs(jobs, cluster, gp.ThroughputProfile.builtin("gavel-osdi20"))
    labels = [constraint.label for constraint in gp.formulation(gangs, "max_total_throughput").constraints]
    assert labels.count("what whole gangs can use of v100") > 1
    alike = gp.AllocationProblem.from_arrays([[2, 1], [1, 3]], [1, 1], accelerator_types=["a 100", "a-100"], job_ids=["x", "x "])
    for problem in (gangs, alike):
        path = tmp_path / "program.lp"
        gp.write_program(problem, path, "max_total_throughput")
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.readModel(str(path))
        columns = [highs.getColName(n)[1] for n in range(highs.getNumCol())]
        rows = [highs.getRowName(n)[1] for n in range(highs.getNumRow())]
        assert len(set(columns)) == len(columns) == problem.runnable.size
        assert len(set(rows)) == len(rows)
        assert all(name.startswith("X_") for name in columns)
        assert {"time_0", "GPUs_1"} <= set(rows)


def test_sharing_needs_pairs_as_in_solve(problem_of_three: gp.AllocationProblem) -> None:
    assert refusal(gp.formulation, problem_of_three, sharing=True) == refusal(gp.solve, problem_of_three, sharing=True)


def test_a_file_that_cannot_be(problem_of_three: gp.AllocationProblem, tmp_path: Path) -> None:
    assert "must end in .mps or .lp" in refusal(gp.write_program, problem_of_three, tmp_path / "a.txt")
    assert "there is no folder" in refusal(gp.write_program, problem_of_three, tmp_path / "none" / "a.lp")
    for policy in ("nash_welfare", "finish_time_fairness"):
        text = refusal(gp.write_program, problem_of_three, tmp_path / "a.lp", policy)
        assert text == f"policy {policy}: has a nonlinear program, which .mps and .lp files cannot represent; " + (
            "gavel_py.formulation returns it for cvxpy"
        )
    assert not list(tmp_path.iterdir())


def test_no_job_that_can_run() -> None:
    problem = gp.AllocationProblem.from_arrays([[0.0], [0.0]], [1])
    assert refusal(gp.formulation, problem) == "formulation, field problem: has no job that can run, and therefore no program"


@pytest.fixture
def problem_of_three() -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(
        [[4, 1], [2, 1], [1, 1]],
        [1, 1],
        job_ids=["bert", "resnet", "lstm"],
        accelerator_types=["v100", "k80"],
        steps_remaining=[100, 50, 20],
        elapsed_seconds=[0, 0, 0],
        deadlines_seconds=[80, 60, 90],
        prices_per_hour=[3, 1],
        previous_fractions=[[1, 0], [0, 0], [0, 1]],
        arrival_seconds=[0, 1, 2],
    )


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    enter_folder(tmp_path, monkeypatch)
    gavel = runner(capsys)
    jobs, out = written("jobs.csv", "job_id,job_type,num_gpus\na,LM (batch size 20),1\nb,LM (batch size 5),2\n"), "a.lp"
    done = gavel("solve", jobs, "-c", "v100:2/2,k80:2/2", "--write-program", out)
    assert (done.code, done.err) == (0, f"The program is in {out}\n")
    assert "X_1_b_v100" in Path(out).read_text()
    both = gavel("solve", jobs, "-c", "v100:2/2", "-p", "fifo", "-p", "max_min_fairness", "--write-program", out)
    assert both.code == 2
    assert "--write-program writes the program of one policy" in both.err
