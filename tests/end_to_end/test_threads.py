"""Solvers and schedulers that are used by several threads, called back by policies, and copied by a fork."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.optimization.job_classes import classes_of
from gavel_py.scheduling.options import SchedulerOptions
from tests.scheduling.schedulers import PROFILE, job, refused, scheduler
from tests.scheduling.support import Fixed

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0
"""Seconds after which a test fails instead of waiting for ever."""

Call = Callable[[], Any]


def problem(seed: int, jobs: int = 12) -> gp.AllocationProblem:
    return gp.AllocationProblem.from_arrays(np.random.default_rng(seed).uniform(0.5, 8.0, (jobs, 3)), [4, 3, 2])


def value(seed: int, name: str = "max_min_fairness", jobs: int = 12) -> float:
    found = gp.solve(problem(seed, jobs), name).objective_value
    assert found is not None
    return found


def in_threads(*calls: Call) -> list[Any]:
    """Return the results of calls, each made by a separate thread at the same time, with frequent switches."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            return [each.result(PATIENCE) for each in [pool.submit(call) for call in calls]]
    finally:
        sys.setswitchinterval(before)


def asking(call: Call) -> gp.Policy:
    """A policy that makes this call whenever it decides, and gives each job half of its time."""

    class Asking(Fixed):
        def decide(self, jobs: gp.JobClasses, solver: Any) -> gp.policies.Decision:
            call()
            return super().decide(jobs, solver)

    return Asking(shares={name: {"v100": 0.5} for name in ("a", "b", "c", "d")})


class Waits:
    """A call that signals its start, and ends on request."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)


@contextmanager
def in_the_middle_of(call: Call, waits: Waits) -> Iterator[None]:
    """Keep another thread within the call for the block."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        try:
            assert waits.begun.wait(PATIENCE)
            yield
        finally:
            waits.go_on.set()
        running.result(PATIENCE)


@pytest.mark.deep
@pytest.mark.parametrize("calls", [60, pytest.param(200, marks=pytest.mark.deep)])
def test_four_threads_with_many_mixed_calls_each(calls: int, tmp_path: Path) -> None:
    program = [sys.executable, "-X", "faulthandler", "-m", "tests.support.mixed_calls", str(tmp_path), str(calls)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


class TestSolver:
    def test_different_solvers_run_in_parallel(self) -> None:
        meeting = threading.Barrier(2, timeout=PATIENCE)  # each waits for the other
        in_threads(*(lambda: gp.Solver(asking(meeting.wait)).solve(problem(0)) for _ in range(2)))

    def test_one_solver_solves_one_problem_after_the_other(self) -> None:
        inside: list[int] = []
        most: list[int] = []

        def look_around() -> None:
            inside.append(1)
            time.sleep(0.01)
            most.append(len(inside))
            inside.pop()

        solver = gp.Solver(asking(look_around))
        in_threads(*[lambda: solver.solve(problem(0))] * 4)
        assert most == [1] * 4

    @pytest.mark.parametrize("name", ["max_min_fairness", "max_total_throughput", "nash_welfare"])
    def test_in_parallel_they_find_what_they_find_alone(self, name: str) -> None:
        def values() -> list[float | None]:
            solver = gp.Solver(name)
            return [solver.solve(problem(seed)).objective_value for seed in range(6)]

        expected = [value(seed, name) for seed in range(6)]
        assert all(found == pytest.approx(expected, rel=1e-9) for found in in_threads(*[values] * 4))

    def test_large_programs_which_run_highs_on_threads_of_their_own(self) -> None:
        large, solver = problem(0, jobs=2500), gp.Solver("max_total_throughput")
        found = in_threads(*[lambda: solver.solve(large), lambda: gp.solve(large, "max_total_throughput")] * 2)
        expected = value(0, "max_total_throughput", jobs=2500)
        assert [each.objective_value for each in found] == pytest.approx([expected] * 4, rel=1e-9)

    @pytest.mark.deep
    def test_a_policy_may_use_the_solver_that_asks_it(self) -> None:
        """The policy calls back between two programs of the level search, the second of which starts from the first."""
        others: list[float | None] = []

        class Curious(gp.policy_class("max_min_fairness")):
            def need(self, jobs: gp.JobClasses, level: float) -> NDArray[np.float64]:
                if jobs.num_jobs == 12:
                    others.append(solver.solve(problem(7, jobs=9)).objective_value)
                return super().need(jobs, level)

        solver = gp.Solver(Curious())
        for seed in range(3):
            found, alone = solver.solve(problem(seed)), gp.solve(problem(seed))
            assert found.objective_value == pytest.approx(alone.objective_value, rel=1e-9)
            assert found.shadow_prices == pytest.approx(alone.shadow_prices, rel=1e-6, abs=1e-9)
            assert found.route is not None
            assert found.route.failed == ()
        assert others == pytest.approx([value(7, jobs=9)] * len(others), rel=1e-9)

    @pytest.mark.parametrize(("name", "tolerance"), [("max_total_throughput", 0.2), ("nash_welfare", 0.0)])
    def test_one_allocation_may_be_verified_by_several_threads(self, name: str, tolerance: float) -> None:
        """Its objective is evaluated in the variables of one cvxpy program."""
        allocation = gp.solve(problem(0), name, merge_tolerance=tolerance)
        in_threads(*[lambda: [allocation.verify() for _ in range(50)]] * 4)

    def test_a_value_is_that_of_its_own_fractions_whatever_another_thread_evaluates(self) -> None:
        """The second thread begins while the first is between storing its fractions and reading the value."""
        program = gp.Program(classes_of(problem(0), "test", ()))
        total = program.total(program.normalized_throughput)
        every, none = np.full((12, 3), 1 / 12), np.zeros((12, 3))

        class Interrupted:
            @property
            def value(self) -> Any:
                other.start()
                other.join(0.5)  # the other thread waits for this one, or has stored its own fractions by now
                return total.value

        other = threading.Thread(target=program.value, args=(total, none))
        found = program.value(Interrupted(), every)  # type: ignore[arg-type]
        other.join(60)
        assert found == pytest.approx(program.value(total, every))
        assert found > 0 == program.value(total, none)

    def test_the_calling_program_may_use_highs_with_more_threads(self) -> None:
        """HiGHS keeps the number of threads of its first run on a thread, and refuses another one."""
        different = np.random.default_rng(0).lognormal(size=(3_100, 2))
        large = gp.AllocationProblem.from_arrays(different, [250, 250])

        def solve_after_another_program() -> tuple[float | None, str | None]:
            import highspy

            other = highspy.Highs()
            other.setOptionValue("output_flag", False)
            other.setOptionValue("threads", 3)
            other.addVar(0.0, 1.0)
            assert other.run() == highspy.HighsStatus.kOk
            route = gp.solve(large, "max_total_throughput").route
            return gp.solve(problem(0), "max_total_throughput").objective_value, route and route.algorithm

        ((found, algorithm),) = in_threads(solve_after_another_program)
        assert found == pytest.approx(value(0, "max_total_throughput"), rel=1e-9)
        assert algorithm == "prices"


class TestScheduler:
    @pytest.mark.parametrize("policy", ["fifo", "shortest_job_first"])
    def test_decisions_at_events(self, policy: str) -> None:
        made = scheduler("v100:4/2,k80:4/2", policy=policy, by_events=True)
        rounds: list[gp.Round] = []

        def come_and_go(name: str) -> None:
            for i in range(40):
                made.submit(job(f"{name}{i}", 1 + i % 3, total_steps=100 + i))
                if i >= 5:
                    made.complete(f"{name}{i - 5}")

        def decide() -> None:
            rounds.extend(made.next_round() for _ in range(60))

        def read() -> None:
            for _ in range(20):
                allocation = made.allocation
                assert allocation is None or set(allocation.time_fractions.ravel().tolist()) <= {0.0, 1.0}
                gp.RoundScheduler.from_dict(made.to_dict(), PROFILE).next_round()

        in_threads(lambda: come_and_go("a"), lambda: come_and_go("b"), decide, decide, read)
        assert sorted(each.index for each in rounds) == list(range(120))
        for each in rounds:
            given = [gpu for held in each.assignments.values() for gpu in held.gpus]
            assert len(given) == len(set(given))
        assert {each.job_id for each in made.jobs} == {f"{name}{i}" for name in "ab" for i in range(35, 40)}

    def test_every_call_waits_for_the_decision_in_progress(self, tmp_path: Path) -> None:
        waits = Waits()
        made = scheduler("v100:2", [job("a"), job("b")], policy=asking(waits))
        given: dict[str, Call] = {
            "cancel": lambda: made.cancel("a"),
            "complete": lambda: made.complete("b"),
            "delivery_of": lambda: made.delivery_of("a"),
            "drain": lambda: made.drain("v100-0"),
            "forget": lambda: made.forget(),
            "found_running": lambda: made.found_running("f", {"v100-0": 1}),
            "gpu_back": lambda: made.gpu_back("v100-0", 0),
            "gpu_lost": lambda: made.gpu_lost("v100-0", 0),
            "interrupted": lambda: made.interrupted("a"),
            "is_blocked": lambda: made.is_blocked("a"),
            "job_failed": lambda: made.job_failed("a"),
            "keep_running": lambda: made.keep_running("a", 0.0),
            "lease": lambda: made.lease("a"),
            "node_down": lambda: made.node_down("v100-0"),
            "node_up": lambda: made.node_up("v100-0"),
            "regroup": lambda: made.regroup(made.cluster),
            "note_times": lambda: made.note_times("a", attained_gpu_seconds=0.0, waiting_since_seconds=0.0),
            "report": lambda: made.report("a", steps_done=1),
            "report_all": lambda: made.report_all({"a": 1}),
            "reserve": lambda: made.reserve("v100-0"),
            "save": lambda: made.save(tmp_path / "state.json"),
            "start_waiting": lambda: made.start_waiting(0.0),
            "submit": lambda: made.submit(job("c")),
            "submit_all": lambda: made.submit_all([job("d")]),
            "update": lambda: made.update("a", weight=2.0),
            "wait_of": lambda: made.wait_of("a"),
        }
        ask: dict[str, Call] = {
            "copy": lambda: copy.copy(made),
            "deepcopy": lambda: copy.deepcopy(made),
            "mechanism, set": lambda: setattr(made, "mechanism", "priority"),
        }
        # Options are one frozen record, read without the lock so that nobody waits for a solve.
        unlocked = ("load", "from_dict", "options", *SchedulerOptions.model_fields)
        for name in [name for name in dir(gp.RoundScheduler) if not name.startswith("_") and name not in unlocked]:
            ask[name] = given.get(name) or (lambda name=name: _read(made, name))
        # Rounds do not change the policy and the profile.
        del ask["policy"], ask["profile"]
        ended: list[str] = []

        def call(name: str) -> None:
            try:
                ask[name]()
            except gp.GavelError:  # the job is no longer there
                pass
            finally:
                ended.append(name)

        threads = [threading.Thread(target=call, args=(name,)) for name in ask]
        with in_the_middle_of(made.next_round, waits):
            for each in threads:
                each.start()
            time.sleep(0.3)
            assert ended == []
        for each in threads:
            each.join(PATIENCE)
        assert sorted(ended) == sorted(ask)

    @pytest.mark.parametrize("by", ["policy", "mechanism"])
    def test_who_decides_may_read_and_save(self, by: str, tmp_path: Path) -> None:
        seen: list[tuple[set[str], float, int]] = []

        def look() -> None:
            made.save(tmp_path / "state.json")
            saved = gp.RoundScheduler.load(tmp_path / "state.json", PROFILE, policy=asking(int), mechanism="deficit")
            seen.append((set(made.running), made.delivery().delivered_gpu_seconds, saved.next_round().index))

        made = scheduler("v100:1", [job("a"), job("b")], **called_back(by, look))
        for number in range(3):
            made.update("a", weight=1.0 + number)
            made.next_round()
        assert [(len(running), delivered, index) for running, delivered, index in seen] == [(0, 0, 0), (1, 360, 1), (1, 720, 2)]

    @pytest.mark.parametrize("by", ["policy", "mechanism"])
    def test_what_who_decides_reports_counts_from_the_next_round_on(self, by: str) -> None:
        """But a node that is lost, and a job that leaves, are gone at once, as between `plan_next` and `next_round`."""
        news: list[Call] = []
        made = scheduler("v100:4/1", [job("a"), job("b"), job("c")], **called_back(by, lambda: news and news.pop()()))
        first = made.next_round()
        assert set(first.assignments) == {"a", "b", "c"}
        ((lost, _),) = first.assignments["b"].gpus

        def report() -> None:
            made.submit(job("d"))
            made.cancel("a")
            made.node_down(lost)

        news.append(report)
        made.update("c", weight=2.0)
        second = made.next_round()
        assert set(second.assignments) == {"b", "c"}
        assert lost not in {node for held in second.assignments.values() for node, _ in held.gpus}
        assert set(made.next_round().assignments) == {"b", "c", "d"}
        assert made.allocation is not None
        assert tuple(made.allocation.job_ids) == ("b", "c", "d")

    @pytest.mark.parametrize("by", ["policy", "mechanism"])
    @pytest.mark.parametrize("how", ["next_round", "plan_next"])
    def test_who_decides_may_not_begin_or_plan_a_round(self, by: str, how: str) -> None:
        messages: list[str] = []
        made = scheduler("v100:1", [job("a")], **called_back(by, lambda: messages.append(refused(getattr(made, how)))))
        assert made.next_round().index == 0
        assert made.next_round().index == 1
        assert messages[0].startswith("round scheduler: a policy or mechanism that is deciding cannot begin or plan a round")

    def test_job_ids_of_those_that_leave_meanwhile_are_not_forgotten_at_once(self) -> None:
        messages: list[str] = []

        def leave() -> None:
            if not messages:
                made.cancel("a")
                messages.append(refused(made.forget, "a"))

        made = scheduler("v100:2", [job("a"), job("b")], policy=asking(leave))
        assert set(made.next_round().assignments) == {"b"}
        assert "it can be forgotten after the next one" in messages[0]
        made.next_round()
        made.forget("a")
        assert set(made.delivery().jobs) == {"b"}


def called_back(by: str, call: Call) -> dict[str, Any]:
    """The policy and the mechanism of a scheduler, of which one makes this call whenever it decides."""

    def mechanism(demand: gp.RoundDemand) -> NDArray[np.int64]:
        call()
        return gp.scheduling.choose_jobs(demand)

    return {"policy": asking(call)} if by == "policy" else {"policy": asking(int), "mechanism": mechanism}


def _read(made: gp.RoundScheduler, name: str) -> object:
    found = getattr(made, name)
    return found if isinstance(getattr(gp.RoundScheduler, name), property) else found()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestForkedChild:
    def test_it_goes_on_with_solvers_that_were_used_before(self) -> None:
        solver, large = gp.Solver("max_total_throughput"), problem(1, jobs=2500)
        solver.solve(large)
        made = scheduler("v100:2", [job("a"), job("b"), job("c")])
        made.next_round()

        def go_on() -> None:
            assert solver.solve(problem(2)).objective_value == pytest.approx(value(2, "max_total_throughput"), rel=1e-9)
            assert solver.solve(large).objective_value == pytest.approx(value(1, "max_total_throughput", 2500), rel=1e-9)
            assert made.next_round().index == 1

        in_child(go_on)
        go_on()

    def test_it_goes_on_where_another_thread_was_solving(self) -> None:
        waits = Waits()
        solver = gp.Solver(asking(waits))
        with in_the_middle_of(lambda: solver.solve(problem(0)), waits):
            in_child(lambda: (waits.go_on.set(), solver.solve(problem(1)).verify(), solver.to_dict()))

    @pytest.mark.parametrize("by", ["policy", "mechanism"])
    def test_it_goes_on_where_another_thread_was_deciding_on_a_round(self, by: str) -> None:
        waits = Waits()
        made = scheduler("v100:1", [job("a"), job("b")], **called_back(by, waits))

        def go_on() -> None:
            waits.go_on.set()
            made.report("a", steps_done=3)
            assert [made.next_round().index for _ in range(3)] == [0, 1, 2]
            assert made.delivery().delivered_gpu_seconds == 3 * 360

        with in_the_middle_of(made.next_round, waits):
            in_child(go_on)
        assert made.next_round().index == 1

    def test_it_is_refused_what_another_thread_was_changing(self) -> None:
        """The change may be incomplete, and the child cannot detect how."""
        waits = Waits()

        class Checking(Fixed):
            def check(self, problem: gp.AllocationProblem) -> None:  # noqa: ARG002
                waits()

        made = scheduler("v100:1", policy=Checking())

        def look() -> None:
            for use in (made.delivery, made.next_round, lambda: copy.deepcopy(made)):
                with pytest.raises(gp.GavelError, match="another thread was changing it when this process was forked"):
                    use()

        with in_the_middle_of(lambda: made.submit(job("a")), waits):
            in_child(look)
        assert [each.job_id for each in made.jobs] == ["a"]

    def test_who_decides_may_fork(self) -> None:
        def fork() -> None:
            if not made.delivery().jobs:
                in_child(lambda: made.running)

        made = scheduler("v100:1", [job("a"), job("b")], policy=asking(fork))
        assert [made.next_round().index for _ in range(2)] == [0, 1]

    @pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no locks any more")
    def test_it_goes_on_where_another_thread_was_computing_a_cached_property(self) -> None:
        """The lock of a `cached_property` is shared by all objects of the class."""
        waits, lock = Waits(), vars(gp.AllocationProblem)["equal_share"].lock

        def compute() -> None:
            with lock:
                waits()

        with in_the_middle_of(compute, waits):
            in_child(lambda: gp.solve(problem(0)))

    @pytest.mark.deep
    def test_whenever_it_is_forked(self) -> None:
        """Threads solve, each with its own solver."""
        stop = threading.Event()
        gp.solve(problem(0), "nash_welfare")  # a module that is being imported when a process forks cannot be imported in the child

        def keep_busy() -> None:
            solver, seed = gp.Solver("max_total_throughput"), 0
            while not stop.is_set():
                seed += 1
                gp.solve(problem(seed), "nash_welfare").verify()
                solver.solve(problem(seed)).verify()

        threads = [threading.Thread(target=keep_busy) for _ in range(3)]
        for each in threads:
            each.start()
        try:
            for seed in range(10):
                in_child(lambda seed=seed: gp.solve(problem(seed), "max_total_throughput").verify())
        finally:
            stop.set()
            for each in threads:
                each.join(PATIENCE)


def in_child(call: Call) -> None:
    """Make the call in a forked child, which has to end soon."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(int(PATIENCE))
            call()
            status = 0
        except BaseException as error:  # noqa: BLE001
            os.write(2, f"in the child: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
